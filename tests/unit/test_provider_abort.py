"""A stop reaches a model request in every phase, and the model server sees the hang-up."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cancelled
from core.provider.anthropic import AnthropicProvider
from core.provider.model_call import ModelCall
from core.provider.openai import OpenAIProvider
from core.provider.provider import ModelRequest, Provider, Text
from tests.support.anthropic_kit import said
from tests.support.provider_kit import HELLO, USER, Running, frame, new_call, stop_at_once
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, black_hole, self_signed


@dataclass(frozen=True)
class Dialect:
    """A provider whose calls can only be cut, and a piece of text in its wire form."""

    make: Callable[..., Provider]
    said: Callable[[str], bytes]


DIALECTS = {
    "openai": Dialect(lambda url, **options: OpenAIProvider(f"{url}/v1", **options), frame),
    "anthropic": Dialect(AnthropicProvider, said),
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


def test_in_name_look_up_the_caller_is_released(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        asked.set()
        go_on.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    running = Running(dialect.make("http://model.test"))
    assert asked.wait(PATIENCE_S)

    stop_at_once(running)

    go_on.set()


def test_in_connect_to_a_host_that_does_not_answer(dialect: Dialect) -> None:
    with black_hole() as port:
        running = Running(dialect.make(f"http://127.0.0.1:{port}"))
        # No event tells that the kernel sent its SYN; a stop before that would be right too, but tell less.
        time.sleep(0.1)

        stop_at_once(running)


def test_in_a_tls_handshake_that_stalls(dialect: Dialect) -> None:
    def stall(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.reached.set()
        peer.wait_hang_up()

    with RawServer(stall) as server:
        running = Running(dialect.make(f"https://127.0.0.1:{server.port}"))
        assert server.peer().reached.wait(PATIENCE_S)

        stop_at_once(running)

        assert server.peer().hung_up.wait(PATIENCE_S)


def silent(peer: Peer) -> None:
    peer.read_request()


def chunked(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    peer.chunk(frame("x"))


def with_length(peer: Peer) -> None:
    peer.read_request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + frame("x"))


def until_close(peer: Peer) -> None:
    peer.read_request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + frame("x"))


def whole_json_stalls(peer: Peer) -> None:
    peer.read_request()
    peer.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{"choices"')


def error_body_stalls(peer: Peer) -> None:
    peer.read_request()
    peer.send(b"HTTP/1.1 500 Oops\r\nContent-Length: 9999\r\n\r\nfai")


@pytest.mark.parametrize("begin", [silent, chunked, with_length, until_close, whole_json_stalls, error_body_stalls])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_while_waiting_for_headers_or_body(begin: Callable[[Peer], None], tls: bool, tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        begin(peer)
        peer.reached.set()
        peer.wait_hang_up()

    context, certificate = self_signed(str(tmp_path)) if tls else (None, True)
    with RawServer(script, context) as server:
        running = Running(OpenAIProvider(f"{server.url}/v1", verify=certificate))
        assert server.peer().reached.wait(PATIENCE_S)
        if begin in (chunked, with_length, until_close):
            assert running.first_delta.wait(PATIENCE_S)

        stop_at_once(running)

        assert server.peer().hung_up.wait(PATIENCE_S)


def test_in_an_upload_that_nobody_reads(dialect: Dialect) -> None:
    def never_read(peer: Peer) -> None:
        peer.reached.set()
        peer.go_on.wait(PATIENCE_S)
        peer.wait_hang_up()

    with RawServer(never_read) as server:
        long = ModelRequest([{"role": "user", "content": "x" * 30_000_000}], "m")
        running = Running(dialect.make(server.url), request=long)
        assert server.peer().reached.wait(PATIENCE_S)

        stop_at_once(running)

        server.peer().go_on.set()
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_a_request_of_a_stopped_scope_is_never_sent(dialect: Dialect) -> None:
    with RawServer(lambda peer: None) as server:
        provider = dialect.make(server.url)
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


def test_a_stop_in_the_last_moment_before_sending_sends_no_byte(dialect: Dialect) -> None:
    def script(peer: Peer) -> None:
        assert peer.sock.recv(1) == b""
        peer.hung_up.set()

    with RawServer(script) as server:
        provider = dialect.make(server.url)
        plain = new_call(provider)
        call = StopsWhenSent(plain.scope, "g", plain.wire, provider, 0.5)

        running = Running(provider, call).wait()

        assert type(running.error) is Cancelled
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_except_exception_around_the_request_does_not_swallow_the_stop(dialect: Dialect) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(dialect.said("x"))
        peer.wait_hang_up()

    with RawServer(script) as server:
        provider = dialect.make(server.url)
        call = new_call(provider)

        def careless() -> None:
            try:
                for _ in provider.stream(HELLO, call):
                    call.scope.cancel(USER)
            except Exception:
                pytest.fail("the stop was taken for an ordinary failure")

        with pytest.raises(Cancelled):
            careless()


def test_nothing_that_arrives_after_the_stop_is_handed_out(dialect: Dialect) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(dialect.said("one") + dialect.said("two"))
        peer.wait_hang_up()

    with RawServer(script) as server:
        provider = dialect.make(server.url)
        call = new_call(provider)
        got = []

        def read() -> None:
            for delta in provider.stream(HELLO, call):
                got.append(delta)
                call.scope.cancel(USER)

        with pytest.raises(Cancelled):
            read()
        assert got == [Text("one")]


def test_leaving_the_stream_early_hangs_up_and_forgets_the_abort(dialect: Dialect) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(dialect.said("x"))
        peer.wait_hang_up()

    with RawServer(script) as server:
        provider = dialect.make(server.url)
        call = new_call(provider)
        stream: Any = provider.stream(HELLO, call)
        next(stream)

        stream.close()

        assert server.peer().hung_up.wait(PATIENCE_S)
        call.scope.cancel(USER)
        assert call.outcome is None


def test_an_error_in_the_code_that_reads_the_stream_hangs_up_too(dialect: Dialect) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.begin_stream()
        peer.chunk(dialect.said("x"))
        peer.wait_hang_up()

    with RawServer(script) as server:
        provider = dialect.make(server.url)
        stream: Any = provider.stream(HELLO, new_call(provider))

        def read() -> None:
            with contextlib.closing(stream):
                for _ in stream:
                    raise LookupError

        with pytest.raises(LookupError):
            read()
        assert server.peer().hung_up.wait(PATIENCE_S)
