"""Output on its way to the readers: in order, whole, and not an event for each write."""

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from core.tool.output import SHOWN_BYTES, Excerpt, Output, shorten
from tests.support.api_client import PATIENCE_S


def test_many_small_writes_become_few_pieces_and_nothing_is_lost_or_out_of_order() -> None:
    pieces: list[tuple[str, str]] = []
    output = Output(1 << 20, lambda *piece: pieces.append(piece))
    for number in range(1000):
        output.take("stderr" if number % 100 == 99 else "stdout", f"{number}\n".encode())
    output.finish()
    assert len(pieces) < 500
    assert "".join(text for _, text in pieces) == "".join(f"{number}\n" for number in range(1000))
    assert [text for stream, text in pieces if stream == "stderr"] == [f"{number}\n" for number in range(99, 1000, 100)]


def test_what_is_gathered_is_handed_on_although_nothing_more_comes() -> None:
    seen: list[str] = []
    is_all_there = threading.Event()

    def emit(_: str, text: str) -> None:
        seen.append(text)
        if "".join(seen) == "one two":
            is_all_there.set()

    output = Output(100, emit)
    output.take("stdout", b"one ")
    output.take("stdout", b"two")
    assert is_all_there.wait(PATIENCE_S), seen


_PIECES = st.lists(st.tuples(st.sampled_from("aé€😀\n"), st.integers(0, 3 * SHOWN_BYTES)), max_size=6)


@given(pieces=_PIECES, limit=st.sampled_from([SHOWN_BYTES, SHOWN_BYTES - 47, 1024]))
def test_an_excerpt_of_pieces_shows_what_is_shown_of_the_whole(pieces: list[tuple[str, int]], limit: int) -> None:
    excerpt = Excerpt()
    texts = [sign * (size // len(sign.encode())) for sign, size in pieces]
    for text in texts:
        excerpt.add(text)
    assert excerpt.shown(limit) == shorten("".join(texts), limit) == Excerpt("".join(texts)).shown(limit)


def test_an_excerpt_keeps_a_bounded_part_however_much_comes() -> None:
    excerpt = Excerpt()
    for number in range(3000):
        excerpt.add(f"{number}" * 1000)
    excerpt.add("the end")
    assert excerpt.shown().endswith("the end")
    assert sys.getsizeof(excerpt._head) + sys.getsizeof(excerpt._tail) < 8 * SHOWN_BYTES
