"""One streamed model request over HTTP: send, read, stop.

How it stops: the call's abort is registered for as long as this thread may block. A stop either shuts the
socket, or sets a bound in which the gateway must end the answer (``ModelCall.abort``). In both cases the
reader goes on to the end of the answer, drops what still comes, and leaves with the stop.
"""

import contextlib
import itertools
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import requests

from core.clock import Alarm, alarm_clock
from core.errors import ProviderNonsense
from core.network.abortable import AbortableSocket
from core.network.abortable_http import Passenger
from core.provider.backoff import RETRYABLE_STATUSES
from core.provider.failures import ServerRejected, cancelled_by_gateway
from core.provider.http_client import Endpoint
from core.provider.http_failures import (
    TRANSPORT_ERRORS,
    body_text,
    broke_off,
    place,
    retry_after_s,
    safe_excerpt,
    transport_failure,
)
from core.provider.model_call import ModelCall
from core.provider.provider import Usage
from core.provider.sse_decoder import SseDecoder

D_co = TypeVar("D_co", covariant=True)
D = TypeVar("D")

#: Bytes of one answer after decoding, at most.
MAX_ANSWER = 16 << 20
_MAX_ERROR_BODY = 64 << 10
_READ = 64 << 10
#: Seconds that a server has for the rest once the reply is complete, and once its end mark came.
_REST_S, _TRAILER_S = 5.0, 0.25


class Reader(Protocol[D_co]):
    """Turns payloads into deltas; knows the wire form that this module does not know."""

    @property
    def may_end(self) -> bool:
        """The reply is complete, whatever becomes of the connection."""

    @property
    def has_ended(self) -> bool:
        """Nothing that matters follows."""

    @property
    def pieces(self) -> int:
        """How many pieces of tool calls have come: of a call, there is no delta before it is whole."""

    def take(self, payload: str) -> Iterable[D_co]:
        """The deltas of one payload."""

    def end(self) -> Iterable[D_co]:
        """The last deltas, or ``ProviderNonsense`` if the reply is not complete."""


def stream_http(
    endpoint: Endpoint, call: ModelCall, body: Mapping[str, Any], reader: Reader[D], secrets: Sequence[str] = ()
) -> Generator[D, None, None]:
    """Post ``body``, and yield the deltas that ``reader`` makes of the answer. For one thread; may be closed early.

    Raises ``ServerUnreachable``, ``ServerRejected``, ``ProviderNonsense``, ``Cancelled`` if the call's scope
    was stopped, ``GoalCancelledException`` on a 499; no message repeats one of the ``secrets``. However it ends,
    the abort is forgotten and the connection is dropped or, if the body was read to its end, back in its pool.
    """
    if not isinstance(call.wire, AbortableSocket):
        raise TypeError("a call over HTTP needs an AbortableSocket as its wire")
    passenger = Passenger(call.wire, call.scope, call.mark_sent)
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    answer = _Answer(endpoint.url, reader, passenger, secrets, call)
    with call.scope.on_cancel(call.abort):
        try:
            with endpoint.post(passenger, data) as response:
                for delta in answer.deltas(response):
                    # What comes between a stop and the end of the answer is no part of the reply any more.
                    if not call.scope.is_stopped:
                        answer.has_said = answer.has_said or not isinstance(delta, Usage)
                        call.note_progress()
                        yield delta
        except TRANSPORT_ERRORS as error:
            # Explaining what a stop broke would be wasted, and 1,000 calls may be doing it at once.
            call.scope.checkpoint(error)
            raise transport_failure(
                error, endpoint.url, has_answered=answer.has_headers, has_said=answer.has_said
            ) from error
        finally:
            answer.call_off_hurry()


class _Answer(Generic[D]):
    """One HTTP answer on its way through a reader."""

    def __init__(
        self, url: str, reader: Reader[D], passenger: Passenger, secrets: Sequence[str], call: ModelCall
    ) -> None:
        self._call = call
        self._url = url
        self._secrets = secrets
        self._reader = reader
        self._passenger = passenger
        self._hurry: Alarm | None = None
        self.has_headers = False
        #: A part of the reply was handed out: a repetition would say it twice.
        self.has_said = False

    def deltas(self, response: requests.Response) -> Iterator[D]:
        """The reply, or the error that the answer amounts to."""
        self.has_headers = True
        self._check_status(response)
        chunks = self._chunks(response)
        first = next(chunks, b"")
        if not first.strip() and (first := first + next(chunks, b"")) == b"":
            raise ProviderNonsense(f"{place(self._url)} answered {response.status_code} with nothing")
        if _is_html(response, first):
            raise ProviderNonsense(f"{place(self._url)} is no model server: the server answered HTML")
        try:
            if _is_json(response, first):
                whole = b"".join((first, *chunks))
                yield from self._tail(response, _strict_text(whole))
            else:
                yield from self._stream(response, SseDecoder(), first, chunks)
        finally:
            chunks.close()
        yield from self._reader.end()

    def call_off_hurry(self) -> None:
        """Forget a bound that was set on the rest of the answer."""
        if self._hurry is not None:
            self._hurry.call_off()

    def _check_status(self, response: requests.Response) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        if status == 499:
            raise cancelled_by_gateway(self._passenger.scope)
        raise ServerRejected(
            f"{place(self._url)} answered {status}: {self._words(response)}",
            status,
            is_retryable=status in RETRYABLE_STATUSES,
            retry_after_s=retry_after_s(response.headers.get("Retry-After")),
        )

    def _words(self, response: requests.Response) -> str:
        self._hurry_up(_REST_S)
        body = b""
        with contextlib.suppress(*TRANSPORT_ERRORS):
            while len(body) < _MAX_ERROR_BODY and (data := response.raw.read1(_READ, decode_content=True)):
                body += data
        if "html" in response.headers.get("Content-Type", "").lower():
            return "the server answered HTML"
        return safe_excerpt(body_text(body) if body.strip() else response.reason or "", self._secrets)

    def _chunks(self, response: requests.Response) -> Generator[bytes, None, None]:
        size = 0
        while True:
            try:
                # read1: what has arrived, at once. iter_content holds text back, or costs per byte.
                data = response.raw.read1(_READ, decode_content=True)
            except TRANSPORT_ERRORS:
                if self._reader.may_end:
                    return
                raise
            if not data:
                return
            size += len(data)
            if size > MAX_ANSWER:
                raise ProviderNonsense(f"{place(self._url)} sent more than {MAX_ANSWER >> 20} MiB")
            yield data

    def _stream(
        self, response: requests.Response, decoder: SseDecoder, first: bytes, rest: Iterator[bytes]
    ) -> Iterator[D]:
        for chunk in itertools.chain((first,), rest):
            for payload in decoder.feed(chunk):
                pieces = self._reader.pieces
                yield from self._reader.take(payload)
                if self._reader.pieces != pieces and not self._call.scope.is_stopped:
                    self._call.note_progress()
                if self._reader.has_ended:
                    self._read_trailer(response, rest)
                    return
                if self._reader.may_end and self._hurry is None:
                    self._hurry_up(_REST_S)
        for payload in decoder.finish():
            yield from self._tail(response, payload)
        if not self._reader.may_end and _is_unframed(response):
            raise broke_off(self._url, has_said=self.has_said)

    def _tail(self, response: requests.Response, payload: str) -> Iterator[D]:
        """A payload that the end of the connection may have cut."""
        try:
            yield from self._reader.take(payload)
        except ProviderNonsense as error:
            if _is_unframed(response):
                raise broke_off(self._url, has_said=self.has_said) from error
            raise

    def _read_trailer(self, response: requests.Response, rest: Iterator[bytes]) -> None:
        """Take the end of the body, which follows the end mark, so that the connection can be used again."""
        connection = getattr(response.raw, "connection", None)
        if connection is None or connection.sock is None:
            return
        self._hurry_up(_TRAILER_S)
        for _ in rest:
            pass

    def _hurry_up(self, seconds: float) -> None:
        """From now on the server has ``seconds`` for the rest."""
        self.call_off_hurry()
        self._hurry = alarm_clock.after(seconds, self._passenger.wire.shut)


def _is_unframed(response: requests.Response) -> bool:
    """Whether the body ends when the connection does, so that an end and a break look alike."""
    return "Content-Length" not in response.headers and not getattr(response.raw, "chunked", False)


def _is_html(response: requests.Response, first: bytes) -> bool:
    return first.lstrip().startswith(b"<") or "html" in response.headers.get("Content-Type", "").lower()


def _is_json(response: requests.Response, first: bytes) -> bool:
    return first.lstrip()[:1] in (b"{", b"[") or "json" in response.headers.get("Content-Type", "").lower()


def _strict_text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProviderNonsense("the model server sent bytes that are not UTF-8") from error
