"""A stop reaches the HTTP tool in every phase, the server sees the hang-up, and what had come is kept."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core import gates
from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Scope
from core.network.resolver import resolver
from core.tool.http_request import HttpRequest
from tests.support.http_kit import (
    AT_ONCE_S,
    HttpCall,
    answers,
    redirects,
    requests_of,
    says,
    tool,
    wait_seen_close,
)
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, black_hole, self_signed
from tests.support.servers import gate
from tests.support.shell_kit import STOP

NEVER_SENT, CUT = (Outcome.NOT_STARTED, "never began"), (Outcome.ABORTED, "socket shut")


@pytest.fixture(autouse=True)
def _open_gates() -> Iterator[None]:
    yield
    gates.installed.clear()


def stop_unsent(call: HttpCall) -> None:
    """Nothing had been sent: the call has nothing to show."""
    with pytest.raises(Cancelled) as stop:
        call.stop()
    assert stop.value.scope is call.scope
    assert call.took_s < AT_ONCE_S
    assert call.receipt() == NEVER_SENT


# -- before anything is sent -----------------------------------------------------------------


def test_a_call_that_was_stopped_before_it_began_sends_nothing() -> None:
    with RawServer(answers(b"")) as server:
        call = StoppedFirst(server.url)
        with pytest.raises(Cancelled):
            call.answer()
        assert call.receipt() == NEVER_SENT
        assert server.peers == []


class StoppedFirst(HttpCall):
    """Its scope is stopped before the tool runs."""

    def start(self) -> "StoppedFirst":
        self.request_stop()
        super().start()
        return self


class SlowNames:
    """Stands in for ``getaddrinfo``: answers at once for numbers, and for names once it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".test"):
            return self._real(host, *rest, **more)
        self.asked.set()
        self.go_on.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")


def test_a_stop_in_name_look_up_releases_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNames(monkeypatch)
    call = HttpCall("http://slow-name.test/")
    assert names.asked.wait(PATIENCE_S)

    stop_unsent(call)

    names.go_on.set()


def test_the_time_limit_in_name_look_up_releases_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNames(monkeypatch)
    call = HttpCall("http://slow-and-limited.test/", timeout_ms=100)
    assert names.asked.wait(PATIENCE_S)

    answer = call.answer()

    assert (answer.status, answer.error) == (None, "the request was ended after 0.1 s")
    assert "interrupted" not in answer.fields
    assert call.run.outcome is Outcome.NOT_STARTED
    names.go_on.set()


def test_names_that_nobody_answers_for_do_not_hold_up_the_look_ups_of_model_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = SlowNames(monkeypatch)
    calls = [HttpCall(f"http://slow-{number}.test/") for number in range(20)]
    assert names.asked.wait(PATIENCE_S)

    found = resolver.look_up("localhost", 80, socket.AF_UNSPEC, Scope.root(), AT_ONCE_S)

    assert found
    for call in calls:
        stop_unsent(call)
    names.go_on.set()


def test_a_stop_in_connect_to_a_host_that_does_not_answer() -> None:
    with black_hole() as port:
        call = HttpCall(f"http://127.0.0.1:{port}")
        # No event tells that the kernel sent its SYN; a stop before that would be right too, but tell less.
        time.sleep(0.1)

        stop_unsent(call)


def test_a_stop_in_a_tls_handshake_that_stalls() -> None:
    def stall(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.reached.set()
        peer.wait_hang_up()

    with RawServer(stall) as server:
        call = HttpCall(f"https://127.0.0.1:{server.port}")
        assert server.peer().reached.wait(PATIENCE_S)

        stop_unsent(call)

        wait_seen_close(server)


def test_a_stop_between_connecting_and_sending_keeps_the_request_from_being_sent() -> None:
    with RawServer(answers(b"")) as server, gate("http_request.before_sent") as held:
        call = HttpCall(server.url, method="DELETE")
        held.wait_reached()
        call.request_stop()
        held.open()

        with pytest.raises(Cancelled):
            call.answer()

        assert call.receipt() == NEVER_SENT
        assert server.peer().gone.wait(PATIENCE_S)
        assert requests_of(server) == []


# -- before the answer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Ty", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["nothing", "half-the-headers", "continue"],
)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_stop_before_the_headers(sent: bytes, tls: bool, tmp_path: Path) -> None:
    context, certificate = self_signed(str(tmp_path)) if tls else (None, True)
    with RawServer(says(sent), context) as server:
        call = HttpCall(server.url, tool(verify=certificate), method="POST", body="x")
        assert server.peer().reached.wait(PATIENCE_S)

        answer = call.stop_at_once()

        wait_seen_close(server)
    assert (answer.status, answer.headers, answer.body, answer.url) == (None, {}, "", f"{server.url}/")
    assert (answer.interrupted, answer.success, answer.result.is_error) == (True, False, True)
    assert answer.error == "the request was interrupted (user)"
    assert call.receipt() == CUT


def test_a_stop_in_an_upload_that_nobody_reads() -> None:
    def deaf(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.reached.set()
        peer.go_on.wait(PATIENCE_S)
        peer.wait_hang_up()

    with RawServer(deaf) as server:
        call = HttpCall(server.url, method="PUT", body="x" * 30_000_000)
        assert server.peer().reached.wait(PATIENCE_S)

        answer = call.stop_at_once()

        server.peer().go_on.set()
        wait_seen_close(server)
    assert (answer.status, answer.interrupted) == (None, True)
    assert call.receipt() == CUT


# -- in the body -------------------------------------------------------------------------------


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
BODIES = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n8\r\nso far, \r\n",
    "half-a-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\nso far, ",
    "length": HEAD + b"Content-Length: 9999\r\n\r\nso far, ",
    "until-close": HEAD + b"Connection: close\r\n\r\nso far, ",
    "error": b"HTTP/1.1 500 Oops\r\nContent-Length: 9999\r\n\r\nso far, ",
}


@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_stop_in_the_body_keeps_what_had_come(sent: bytes, tls: bool, tmp_path: Path) -> None:
    context, certificate = self_signed(str(tmp_path)) if tls else (None, True)
    with RawServer(says(sent), context) as server:
        call = HttpCall(server.url, tool(verify=certificate)).wait_said("so far, ")

        answer = call.stop_at_once()

        wait_seen_close(server)
    assert (answer.status, answer.body) == (500 if b"500" in sent else 200, "so far, ")
    assert (answer.interrupted, answer.truncated, answer.success) == (True, True, False)
    assert answer.result.is_error
    assert call.receipt() == CUT


def test_a_stop_of_a_server_that_is_deaf_to_the_hang_up_and_goes_on_sending_ends_the_call() -> None:
    def flood(peer: Peer) -> None:
        peer.read_request()
        peer.send(HEAD + b"Content-Length: 90000000\r\n\r\n")
        while True:
            peer.send(b"x" * 100)
            peer.reached.set()

    with RawServer(flood) as server:
        call = HttpCall(server.url, tool(output_cap=60_000_000))
        assert server.peer().reached.wait(PATIENCE_S)
        call.wait_said("xxx")

        answer = call.stop_at_once()

        wait_seen_close(server)
    assert answer.interrupted is True
    assert call.receipt() == CUT


def test_a_stop_of_a_binary_body_says_how_much_had_come() -> None:
    with RawServer(says(HEAD.replace(b"text/plain", b"image/png") + b"Content-Length: 9999\r\n\r\n\x89PNG")) as server:
        with gate("http_request.after_read") as held:
            call = HttpCall(server.url)
            held.wait_reached()
            call.request_stop()
            held.open()
            answer = call.answer()

    assert answer.body == "[4 bytes of image/png, which is no text]"
    assert answer.interrupted is True


@pytest.mark.parametrize("cause", [CauseWord.OPERATOR, CauseWord.DEADLINE, CauseWord.SHUTDOWN])
def test_a_stop_with_any_cause_is_an_interruption_and_not_a_limit(cause: CauseWord) -> None:
    with RawServer(says(BODIES["length"])) as server:
        call = HttpCall(server.url).wait_said("so far, ")

        answer = call.stop(Cause(cause))

    assert answer.error == f"the request was interrupted ({cause})"
    assert answer.interrupted is True
    assert call.run.limit_hit is None


class StopsItself(HttpCall):
    """Its stop comes when the first text is handed on: on the reading thread, before it reads on."""

    def _emit(self, stream: str, text: str) -> None:
        super()._emit(stream, text)
        self.request_stop()


def test_a_stop_that_comes_when_the_last_byte_is_there_changes_nothing() -> None:
    with RawServer(answers(b"whole")) as server:
        call = StopsItself(server.url)
        answer = call.answer()

    assert (answer.status, answer.body, answer.success) == (200, "whole", True)
    assert "interrupted" not in answer.fields
    assert call.receipt() == (Outcome.ALREADY_DONE, "it had finished")


def test_a_shut_socket_does_not_pass_for_the_end_of_a_body_without_a_length() -> None:
    with RawServer(says(BODIES["until-close"])) as server:
        call = StopsItself(server.url)
        answer = call.answer()

    assert (answer.body, answer.interrupted, answer.success) == ("so far, ", True, False)
    assert call.receipt() == CUT


def test_a_second_stop_changes_nothing() -> None:
    with RawServer(says(BODIES["length"])) as server:
        call = HttpCall(server.url).wait_said("so far, ")
        call.request_stop()
        call.scope.cancel(Cause(CauseWord.OPERATOR))

        assert call.answer().error == "the request was interrupted (user)"


# -- in a chain of redirects -------------------------------------------------------------------


def test_a_stop_while_a_redirect_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNames(monkeypatch)
    with RawServer(redirects("http://slow-redirect.test/1")) as server:
        call = HttpCall(server.url)
        assert names.asked.wait(PATIENCE_S)

        answer = call.stop_at_once()

        assert server.peer().gone.wait(PATIENCE_S)
        names.go_on.set()
    assert (answer.status, answer.url, answer.interrupted) == (None, "http://slow-redirect.test/1", True)
    assert call.receipt() == CUT


def test_a_stop_while_the_second_server_is_silent_is_seen_by_it() -> None:
    with RawServer(says(b"")) as second, RawServer(redirects(f"{second.url}/1")) as first:
        call = HttpCall(first.url)
        assert second.peer().reached.wait(PATIENCE_S)

        answer = call.stop_at_once()

        wait_seen_close(second)
        assert first.peer().gone.wait(PATIENCE_S)
    assert (answer.status, answer.url) == (None, f"{second.url}/1")
    assert call.receipt() == CUT


def test_a_stop_between_two_requests_of_a_chain_keeps_the_second_from_being_sent() -> None:
    reached: list[Callable[[], None]] = []

    with RawServer(answers(b"")) as second, RawServer(redirects(f"{second.url}/1")) as first:

        def at_gate() -> None:
            reached.append(at_gate)
            if len(reached) == 2:
                call.request_stop()

        gates.installed["http_request.before_sent"] = at_gate
        call = HttpCall(first.url)
        answer = call.answer()

        assert second.peer().gone.wait(PATIENCE_S)
        assert (len(reached), requests_of(second)) == (2, [])
    assert answer.interrupted is True
    assert call.receipt() == CUT


def test_many_calls_are_stopped_together() -> None:
    made = HttpRequest(("127.0.0.0/8",))
    with RawServer(says(BODIES["length"])) as server:
        calls = [HttpCall(server.url, made).wait_said("so far, ") for _ in range(30)]
        for call in calls:
            call.request_stop(STOP)

        assert [call.answer().body for call in calls] == ["so far, "] * 30
        for number in range(30):
            wait_seen_close(server, number)
