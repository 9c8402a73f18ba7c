"""Event streams: frames, heartbeats, and the client that hangs up."""

import threading
from collections.abc import Callable, Iterator
from typing import Final

from flask import Response, request

from api.gunicorn_server import THREADS
from api.hangup import hangup_watch
from core.errors import TooManyStreams
from core.session.event_source import EventSource
from core.store.feed import StoredEvent

#: A comment line is sent when nothing came for so long, so that proxies keep the stream open.
HEARTBEAT_S: Final = 15.0

#: Streams at once; the threads above that are kept for requests, so that STOP always finds one.
MAX_STREAMS: Final = THREADS - 32

_places = threading.BoundedSemaphore(MAX_STREAMS)


class StreamPlace:
    """One of the places for streams. Taken before anything is started that only its reader would know of."""

    def __init__(self) -> None:
        if not _places.acquire(blocking=False):
            error = TooManyStreams()
            error.headers["Retry-After"] = "5"
            raise error
        self._is_taken = True

    def release(self) -> None:
        """Give it back. Harmless if repeated."""
        if self._is_taken:
            self._is_taken = False
            _places.release()


def wants_stream() -> bool:
    """Whether the client asks for an event stream as the answer."""
    kinds = request.headers.get("Accept", "").lower().split(",")
    return any(kind.partition(";")[0].strip() == "text/event-stream" for kind in kinds)


def event_stream(
    source: EventSource, place: StreamPlace, after: int, until_parked: bool = False,
    on_gone: Callable[[], None] | None = None,
) -> Response:  # fmt: skip
    """Answer with the events of ``source`` behind ``after``.

    Closes after the run's terminal event; with ``until_parked`` also after ``awaiting_input``. ``on_gone`` runs if
    the client hangs up before that.
    """
    stream = _Stream(source, place, after, until_parked, on_gone)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Response(stream, mimetype="text/event-stream", headers=headers)


class _Stream:
    """The body of the answer. The server calls ``close`` however the request ends."""

    def __init__(
        self, source: EventSource, place: StreamPlace, after: int, until_parked: bool,
        on_gone: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self._source = source
        self._place = place
        self._on_gone = on_gone
        self._is_complete = False
        self._is_closed = False
        self._frames = self._run(after, until_parked)
        client = request.environ.get("gunicorn.socket")
        self._watch = hangup_watch.watch(client, source.reader.end) if client is not None else None

    def __iter__(self) -> Iterator[bytes]:
        return self._frames

    def _run(self, after: int, until_parked: bool) -> Iterator[bytes]:
        yield b": connected\n\n"  # headers leave now, not with the first event
        for batch in self._source.batches(after, HEARTBEAT_S):
            if batch is None:
                yield b"event: resync\ndata: {}\n\n"
                break
            kept = _until_parked(batch) if until_parked else batch
            yield b"".join(map(_frame, kept)) if kept else b": still here\n\n"
            if kept and (kept[-1].ends_run or (until_parked and kept[-1].parks_run)):
                break
        else:
            return
        self._is_complete = True

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._watch is not None:
            self._watch.release()
        self._source.close()
        self._place.release()
        if not self._is_complete and self._on_gone is not None:
            self._on_gone()


def _until_parked(batch: list[StoredEvent]) -> list[StoredEvent]:
    """The events up to the first one after which the run waits or is over."""
    for index, event in enumerate(batch):
        if event.parks_run:
            return batch[: index + 1]
    return batch


def _frame(event: StoredEvent) -> bytes:
    if event.frame is None:  # encoded once, for all readers
        event.frame = f"id: {event.seq}\nevent: {event.type}\ndata: {event.json}\n\n".encode()
    return event.frame
