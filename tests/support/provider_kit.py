"""What the tests of the providers share: a call, a thread that runs it, and a few frames."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.network.abortable import AbortableSocket
from core.provider.model_call import ModelCall
from core.provider.provider import Delta, Finish, ModelRequest, Provider, Text
from tests.support.raw_server import PATIENCE_S, Peer

USER = Cause(CauseWord.USER)
#: Far above what a stop takes (below 10 ms), far below every time limit of a request.
AT_ONCE_S = 2.0
HELLO = ModelRequest(messages=[{"role": "user", "content": "hello"}], model="m")


def frame(text: str | None = None, **more: Any) -> bytes:
    """One chunk of a streamed reply as an SSE frame; keywords are members of the choice."""
    delta = {} if text is None else {"content": text}
    return sse({"choices": [{"index": 0, "delta": delta, **more}]})


def sse(value: Any) -> bytes:
    """Any JSON as an SSE frame."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


STOP = frame(finish_reason="stop")
DONE = b"data: [DONE]\n\n"
WHOLE = json.dumps({"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}).encode()


def good_reply(peer: Peer) -> None:
    """A script: answers every request of the connection with the word ``ok``."""
    while peer.read_request() is not None:
        peer.begin_stream()
        peer.chunk(frame("ok") + STOP + DONE)
        peer.chunk(b"")


def after_request(script: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """A script: reads a request first."""

    def read_then(peer: Peer) -> None:
        peer.read_request()
        script(peer)

    return read_then


def answers(body: bytes, content_type: str = "text/event-stream") -> Callable[[Peer], None]:
    """A script: the body, with its length."""
    return lambda peer: peer.answer(body, content_type=content_type)


def cut(*pieces: bytes) -> Callable[[Peer], None]:
    """A script: begins a stream with these pieces, and hangs up without an end to the body."""

    def begin(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"".join(pieces))

    return begin


def split_at_every_byte(stream: bytes) -> Callable[[Peer], None]:
    """A script: the whole stream for each request, in two chunks; the first is one byte longer each time."""

    def script(peer: Peer) -> None:
        for length in range(1, len(stream)):
            if peer.read_request() is None:
                return
            peer.begin_stream()
            peer.chunk(stream[:length])
            peer.chunk(stream[length:])
            peer.chunk(b"")

    return script


def held_after_every_byte(stream: bytes, first: int) -> Callable[[Peer], None]:
    """A script: begins the stream and waits; ``first`` bytes for the first connection, and one more for each later."""

    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(stream[: first + peer.number])
        peer.wait_hang_up()

    return script


def new_call(provider: Provider, scope: Scope | None = None, cancel_timeout_s: float = 0.5) -> ModelCall:
    """A call in a scope of its own."""
    scope = (scope or Scope.root()).open(Level.CALL, "call")
    return ModelCall(scope, "g", AbortableSocket(), provider, cancel_timeout_s)


class Running:
    """A model request on its own thread, and how it ended."""

    def __init__(
        self,
        provider: Provider,
        call: ModelCall | None = None,
        request: ModelRequest = HELLO,
        cancel_timeout_s: float = 0.5,
    ) -> None:
        self.call = call or new_call(provider, cancel_timeout_s=cancel_timeout_s)
        self.deltas: list[Delta] = []
        self.error: BaseException | None = None
        self.first_delta = threading.Event()
        self._stream: Iterator[Delta] = provider.stream(request, self.call)
        self._thread = threading.Thread(target=self._run, name="model-request", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for delta in self._stream:
                self.deltas.append(delta)
                self.first_delta.set()
        except BaseException as error:
            self.error = error
        finally:
            self.call.ended.set()

    def stop(self) -> None:
        """Stop the call's scope."""
        self.call.scope.cancel(USER)

    def wait(self) -> "Running":
        """Until it ended."""
        self._thread.join(6 * PATIENCE_S)
        assert not self._thread.is_alive(), "the model request is still running"
        return self

    @property
    def text(self) -> str:
        """All text so far."""
        return text_of(self.deltas)


def text_of(deltas: list[Delta]) -> str:
    """The text in a row of deltas."""
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


def reply(provider: Provider, request: ModelRequest = HELLO) -> list[Delta]:
    """A whole reply, read on this thread; it must end with ``Finish``."""
    deltas = list(provider.stream(request, new_call(provider)))
    assert isinstance(deltas[-1], Finish)
    return deltas


def text_at_the_stop(running: Running) -> str:
    """Stop after the first delta; the text that was handed out by then."""
    assert running.first_delta.wait(PATIENCE_S)
    running.stop()
    running.wait()
    assert type(running.error) is Cancelled
    return running.text


def stop_at_once(running: Running) -> None:
    """Stop, and check that the request ended as stopped, soon."""
    begun = time.monotonic()
    running.stop()
    running.wait()
    assert time.monotonic() - begun < AT_ONCE_S
    assert type(running.error) is Cancelled
    assert running.error.scope is running.call.scope
    assert running.call.outcome == "aborted"
