"""A stop reaches a request to the Anthropic API in every phase, and the server sees the hang-up."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cancelled
from core.provider.anthropic import AnthropicProvider
from core.provider.model_call import ModelCall
from core.provider.provider import Delta, ModelRequest, Reasoning, Text, Usage
from tests.support.anthropic_kit import WHOLE, called, delta, opened, said, start, stopped
from tests.support.provider_kit import HELLO, USER, Running, new_call
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, black_hole, self_signed

#: Far above what a stop takes (below 10 ms), far below every time limit of a request.
AT_ONCE_S = 2.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def stop_at_once(running: Running) -> None:
    """Stop, and check that the request ended as stopped, soon."""
    begun = time.monotonic()
    running.stop()
    running.wait()
    assert time.monotonic() - begun < AT_ONCE_S
    assert type(running.error) is Cancelled
    assert running.error.scope is running.call.scope
    assert running.call.outcome == "aborted"


def test_in_name_look_up_the_caller_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        asked.set()
        go_on.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    running = Running(AnthropicProvider("http://model.test"))
    assert asked.wait(PATIENCE_S)

    stop_at_once(running)

    go_on.set()


def test_in_connect_to_a_host_that_does_not_answer() -> None:
    with black_hole() as port:
        running = Running(AnthropicProvider(f"http://127.0.0.1:{port}"))
        # No event tells that the kernel sent its SYN; a stop before that would be right too, but tell less.
        time.sleep(0.1)

        stop_at_once(running)


def test_in_a_tls_handshake_that_stalls() -> None:
    def stall(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.reached.set()
        peer.wait_hang_up()

    with RawServer(stall) as server:
        running = Running(AnthropicProvider(f"https://127.0.0.1:{server.port}"))
        assert server.peer().reached.wait(PATIENCE_S)

        stop_at_once(running)

        assert server.peer().hung_up.wait(PATIENCE_S)


def streams(*events: bytes) -> Callable[[Peer], None]:
    """Sends these events and then nothing more."""

    def begin(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(b"".join(events))

    return begin


def sends(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


THINKING = opened("thinking", thinking="", signature="") + delta("thinking_delta", thinking="hm")
IN_A_CALL = opened("tool_use", 1, id="a", name="f", input={}) + delta("input_json_delta", 1, partial_json='{"x":')
#: What the server sends before it falls silent -> the last delta that must have been seen by then.
PHASES: dict[str, tuple[Callable[[Peer], None], Delta | None]] = {
    "before headers": (lambda peer: None, None),
    "after headers": (streams(b": hello\n\n"), None),
    "after the start": (streams(start()), Usage(7, None)),
    "while thinking": (streams(start(), THINKING), Reasoning("hm")),
    "in the text": (streams(start(), said("x")), Text("x")),
    "in the input of a tool call": (streams(start(), said("x"), IN_A_CALL), Text("x")),
    "after the stop reason": (streams(start(), said("x"), stopped()), Usage(7, 3)),
    "in a body with a length": (sends(HEAD + b"Content-Length: 9999\r\n\r\n" + said("x")), Text("x")),
    "in a body until close": (sends(HEAD + b"Connection: close\r\n\r\n" + said("x")), Text("x")),
    "in a whole message": (
        sends(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n" + WHOLE[:40]),
        None,
    ),
    "in an error body": (sends(b"HTTP/1.1 529 Overloaded\r\nContent-Length: 9999\r\n\r\nfai"), None),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_while_waiting_for_headers_or_body(phase: str, tls: bool, tmp_path: Path) -> None:
    begin, last = PHASES[phase]

    def script(peer: Peer) -> None:
        peer.read_request()
        begin(peer)
        peer.reached.set()
        peer.wait_hang_up()

    context, certificate = self_signed(str(tmp_path)) if tls else (None, True)
    with RawServer(script, context) as server:
        running = Watched(AnthropicProvider(server.url, verify=certificate), last)
        assert server.peer().reached.wait(PATIENCE_S)
        assert last is None or running.seen.wait(PATIENCE_S)

        stop_at_once(running)

        assert server.peer().hung_up.wait(PATIENCE_S)
        assert last is None or running.deltas[-1] == last


class Watched(Running):
    """A request that tells when a certain delta has come."""

    def __init__(self, provider: AnthropicProvider, last: Delta | None) -> None:
        self.seen = threading.Event()
        watch = self

        class Deltas(list[Delta]):
            def append(self, delta: Delta) -> None:
                super().append(delta)
                if delta == last:
                    watch.seen.set()

        self.kept = Deltas()
        super().__init__(provider)

    @property
    def deltas(self) -> list[Delta]:
        """What came, in order."""
        return self.kept

    @deltas.setter
    def deltas(self, _: list[Delta]) -> None:
        """The list is ours."""


def test_in_an_upload_that_nobody_reads() -> None:
    def never_read(peer: Peer) -> None:
        peer.reached.set()
        peer.go_on.wait(PATIENCE_S)
        peer.wait_hang_up()

    with RawServer(never_read) as server:
        long = ModelRequest([{"role": "user", "content": "x" * 30_000_000}], "m")
        running = Running(AnthropicProvider(server.url), request=long)
        assert server.peer().reached.wait(PATIENCE_S)

        stop_at_once(running)

        server.peer().go_on.set()
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_a_request_of_a_stopped_scope_is_never_sent() -> None:
    with RawServer(lambda peer: None) as server:
        provider = AnthropicProvider(server.url)
        call = new_call(provider)
        call.scope.cancel(USER)

        running = Running(provider, call).wait()

        assert type(running.error) is Cancelled
        assert server.peers == []


class StopsWhenSent(ModelCall):
    """A call that is stopped at the last moment before its bytes leave."""

    def mark_sent(self) -> None:
        self.scope.cancel(USER)
        super().mark_sent()


def test_a_stop_in_the_last_moment_before_sending_sends_no_byte() -> None:
    def script(peer: Peer) -> None:
        assert peer.sock.recv(1) == b""
        peer.hung_up.set()

    with RawServer(script) as server:
        provider = AnthropicProvider(server.url)
        plain = new_call(provider)
        call = StopsWhenSent(plain.scope, "g", plain.wire, provider, 0.5)

        running = Running(provider, call).wait()

        assert type(running.error) is Cancelled
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_nothing_that_arrives_after_the_stop_is_handed_out() -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(said("one") + said("two") + called("a", "f", index=1) + stopped("tool_use"))
        peer.wait_hang_up()

    with RawServer(script) as server:
        provider = AnthropicProvider(server.url)
        call = new_call(provider)
        got = []

        def read() -> None:
            for each in provider.stream(HELLO, call):
                got.append(each)
                call.scope.cancel(USER)

        with pytest.raises(Cancelled):
            read()
        assert got == [Text("one")]
