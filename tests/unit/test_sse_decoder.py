"""Server-sent events from bytes, however they are cut."""

import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ProviderNonsense
from core.provider.sse_decoder import SseDecoder


def decode(*chunks: bytes) -> list[str]:
    decoder = SseDecoder()
    found = [payload for chunk in chunks for payload in decoder.feed(chunk)]
    return found + list(decoder.finish())


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_any_of_three_ways(end: bytes) -> None:
    assert decode(end.join([b"data: a", b"", b"data: b", b"data: c", b"", b""])) == ["a", "b\nc"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_cut_at_any_byte_changes_nothing(end: bytes) -> None:
    text = "data: a\n\n: remark\nevent: x\ndata:b 😀 é\ndata: 漢字\n\ndata: [DONE]\n\n"
    stream = text.encode().replace(b"\n", end)
    whole = decode(stream)

    assert whole == ["a", "b 😀 é\n漢字", "[DONE]"]
    for cut in range(len(stream) + 1):
        assert decode(stream[:cut], stream[cut:]) == whole
    assert decode(*(stream[i : i + 1] for i in range(len(stream)))) == whole


@given(st.lists(st.integers(0, 60), max_size=8))
def test_any_set_of_cuts_changes_nothing(cuts: list[int]) -> None:
    stream = b"data: x\r\n\r\ndata: \xf0\x9f\x98\x80\r\rdata: y\ndata: z\n\n\ndata: w\r\n\r\n"
    at = sorted({0, len(stream), *cuts})

    assert decode(*(stream[a:b] for a, b in pairwise(at))) == ["x", "😀", "y\nz", "w"]


def test_a_payload_is_handed_out_as_soon_as_its_line_end_came() -> None:
    decoder = SseDecoder()

    assert list(decoder.feed(b"data: a\r\r")) == ["a"]
    assert list(decoder.feed(b"\ndata: b\n\n")) == ["b"]


def test_comments_other_fields_and_empty_events_give_nothing() -> None:
    assert decode(b": hi\n\nid: 1\nretry: 5\nevent: ping\n\n\n\nnonsense\n\n") == []


def test_a_byte_order_mark_at_the_start_is_skipped() -> None:
    assert decode(b"\xef\xbb\xbfdata: a\n\n") == ["a"]


def test_only_one_blank_after_the_colon_is_taken_away() -> None:
    assert decode(b"data:  a\n\ndata:b\n\n") == [" a", "b"]


def test_empty_data_keeps_the_connection_alive_and_is_no_payload() -> None:
    assert decode(b"data\n\ndata:\n\ndata: a\n\n") == ["a"]


def test_a_last_event_without_an_empty_line_is_not_lost() -> None:
    assert decode(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]


def test_bytes_that_are_not_utf_8_are_an_error() -> None:
    with pytest.raises(ProviderNonsense, match="UTF-8"):
        decode(b"data: \xff\xfe\n\n")


def test_an_endless_line_is_refused_in_linear_time_and_bounded_memory() -> None:
    decoder = SseDecoder()
    tracemalloc.start()
    begun = time.monotonic()

    for _ in range(1 << 17):
        list(decoder.feed(b"xxxxxxxx"))
    with pytest.raises(ProviderNonsense, match="line"):
        list(decoder.feed(b"x"))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert time.monotonic() - begun < 60


def test_an_event_of_endless_lines_is_refused() -> None:
    decoder = SseDecoder(max_event=1000)

    for _ in range(1000):
        list(decoder.feed(b"data:\n"))
    with pytest.raises(ProviderNonsense, match="event"):
        list(decoder.feed(b"data:\n"))


def test_a_long_line_inside_one_chunk_is_refused_too() -> None:
    with pytest.raises(ProviderNonsense, match="line"):
        list(SseDecoder(max_line=10).feed(b"data: a\ndata: more than ten\n\n"))
