"""Output on its way to the readers: in order, whole, and not an event for each write."""

import threading

from core.tool.output import Output
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
