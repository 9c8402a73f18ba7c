"""Event streams: frames, ends, heartbeats, places, and the client that hangs up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Response

from api import sse
from api.sse import StreamPlace, event_stream
from core.errors import TooManyStreams
from core.events import Event, EventType
from core.store.feed import StoredEvent
from tests.support.model_server import ModelServer, script
from tests.support.servers import LocalServer

inside_a_request = pytest.mark.usefixtures("_in_a_request")
Batches = list[list[StoredEvent] | None]


class FakeSource:
    """A run's log that gives what the test says."""

    def __init__(self, batches: Batches) -> None:
        self.given = batches
        self.asked: list[tuple[int, float]] = []
        self.closes = 0
        self.reader = self

    def batches(self, after: int, heartbeat_s: float) -> Iterator[list[StoredEvent] | None]:
        self.asked.append((after, heartbeat_s))
        yield from self.given

    def end(self) -> None:
        """A reader is ended by its hang-up watch."""

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def _in_a_request() -> Iterator[None]:
    with Flask("test").test_request_context("/"):
        yield


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> threading.BoundedSemaphore:
    places = threading.BoundedSemaphore(2)
    monkeypatch.setattr(sse, "_places", places)
    return places


def _event(seq: int, event_type: str = "text", **data: Any) -> StoredEvent:
    return StoredEvent.of(Event("r_1", EventType(event_type), data, "t_1", seq=seq), json.dumps(data))


def _open(source: FakeSource, after: int = 0, **options: Any) -> Response:
    return event_stream(source, StreamPlace(), after, **options)  # type: ignore[arg-type]


def _body(response: Response) -> str:
    text = b"".join(response.response).decode()  # type: ignore[arg-type]
    response.close()
    return text


def _free(places: threading.BoundedSemaphore) -> int:
    taken = 0
    while places.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        places.release()
    return taken


@inside_a_request
def test_a_frame_has_the_number_the_type_and_the_event_as_json() -> None:
    source = FakeSource([[_event(7, text="a\nb \u2028 é")]])
    first, frame, *rest = _body(_open(source, 6)).split("\n\n")
    assert first == ": connected"
    lines = frame.split("\n")
    assert lines[:2] == ["id: 7", "event: text"]
    assert lines[2].startswith("data: ")
    assert len(lines) == 3, "a line end in the text would cut the frame"
    assert json.loads(lines[2][6:])["text"] == "a\nb \u2028 é"
    assert rest == [""]
    assert source.asked == [(6, sse.HEARTBEAT_S)]


@inside_a_request
def test_the_answer_is_an_event_stream_that_nobody_stores_or_buffers() -> None:
    response = _open(FakeSource([]))
    assert response.mimetype == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Accel-Buffering"] == "no"
    response.close()


@inside_a_request
def test_a_batch_is_one_piece_and_a_frame_is_encoded_once_for_all_readers() -> None:
    batch = [_event(1), _event(2)]
    pieces = list(_open(FakeSource([batch])).response)
    assert len(pieces) == 2
    kept = batch[0].frame
    assert kept is not None
    _body(_open(FakeSource([batch])))
    assert batch[0].frame is kept


@inside_a_request
def test_silence_is_filled_with_a_comment() -> None:
    assert _body(_open(FakeSource([[], [_event(1)], []]))).count(": still here\n\n") == 2


@inside_a_request
def test_a_stream_ends_after_the_runs_end_and_only_then() -> None:
    ends = [[_event(1, "awaiting_input")], [_event(2)], [_event(3), _event(4, "run_cancelled")], [_event(5)]]
    body = _body(_open(FakeSource(list(ends))))
    assert [line for line in body.split("\n") if line.startswith("id: ")] == ["id: 1", "id: 2", "id: 3", "id: 4"]


@inside_a_request
@pytest.mark.parametrize("last", ["awaiting_input", "run_completed", "run_cancelled", "run_failed"])
def test_a_stream_until_parked_ends_there_and_shows_nothing_of_what_follows(last: str) -> None:
    body = _body(_open(FakeSource([[_event(1), _event(2, last), _event(3)], [_event(4)]]), until_parked=True))
    assert [line for line in body.split("\n") if line.startswith("id: ")] == ["id: 1", "id: 2"]


@inside_a_request
def test_a_reader_that_fell_behind_is_told_to_start_again() -> None:
    assert _body(_open(FakeSource([[_event(1)], None, [_event(9)]]))).endswith("event: resync\ndata: {}\n\n")


@inside_a_request
@pytest.mark.parametrize(
    ("batches", "is_gone"),
    [([[_event(1, "awaiting_input")]], False), ([[_event(1, "run_failed")]], False), ([None], False),
     ([[_event(1)]], True), ([], True)],
)  # fmt: skip
def test_a_client_is_gone_if_it_left_before_the_end_of_what_it_wanted(batches: Batches, is_gone: bool) -> None:
    gone: list[int] = []
    response = _open(FakeSource(batches), until_parked=True, on_gone=lambda: gone.append(1))
    _body(response)
    response.close()
    assert gone == [1] * is_gone


@inside_a_request
def test_a_client_that_leaves_in_the_middle_or_before_the_first_byte_is_gone_too() -> None:
    for read in (0, 1, 2):
        gone: list[int] = []
        source = FakeSource([[_event(1)], [_event(2, "awaiting_input")]])
        response = _open(source, until_parked=True, on_gone=lambda gone=gone: gone.append(1))
        stream = iter(response.response)
        for _ in range(read):
            next(stream)
        response.close()
        assert (gone, source.closes) == ([1], 1)


@inside_a_request
def test_over_the_cap_a_stream_is_refused_with_a_time_to_come_back_before_anything_is_begun_for_it(
    places: threading.BoundedSemaphore,
) -> None:
    held = [_open(FakeSource([])) for _ in range(2)]
    refused = FakeSource([])
    with pytest.raises(TooManyStreams) as caught:
        _open(refused)
    assert caught.value.status == 503
    assert int(caught.value.headers["Retry-After"]) > 0
    assert refused.closes == 0
    for response in held:
        response.close()
        response.close()
    assert _free(places) == 2


@inside_a_request
def test_a_place_is_given_back_once_however_the_stream_ends(places: threading.BoundedSemaphore) -> None:
    def fail() -> None:
        raise RuntimeError("the stop failed")

    _body(_open(FakeSource([[_event(1, "run_completed")]])))
    _open(FakeSource([])).close()
    response = _open(FakeSource([]), on_gone=fail)
    with pytest.raises(RuntimeError):
        response.close()
    response.close()
    assert _free(places) == 2


def test_a_reader_that_has_seen_the_end_of_a_run_and_comes_back_is_not_kept(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = local.api().start(script("trickle", tokens=2, interval_ms=1, key=key), interactive=False)
    run.wait_parked()
    last = run.view()["last_seq"]
    for after in (last, last + 5):
        with run.stream(after) as reader:
            assert list(reader) == []
    with run.stream(last - 1) as reader:
        assert [each["type"] for each in reader] == ["run_completed"]
