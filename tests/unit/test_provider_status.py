"""Error statuses, error frames and dead servers: whose fault, worth a retry, and nothing secret in the words."""

import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

from core.cancellation import Cancelled, CauseWord, GoalCancelledException
from core.errors import ProviderError, ProviderNonsense, ProviderRejected, ProviderUnreachable
from core.provider.backoff import RetryPolicy, retry_after_of
from core.provider.http_failures import place, retry_after_s, safe_excerpt
from core.provider.openai import OpenAIProvider
from tests.support.provider_kit import Running, frame, sse
from tests.support.raw_server import PATIENCE_S, Peer, RawServer, black_hole, self_signed

KEY = "sk-secret-0123456789"
POLICY = RetryPolicy()


def run(script: Callable[[Peer], None]) -> Running:
    def read_then(peer: Peer) -> None:
        peer.read_request()
        script(peer)

    with RawServer(read_then) as server:
        return Running(OpenAIProvider(f"{server.url}/v1", KEY)).wait()


def rejected(script: Callable[[Peer], None]) -> ProviderRejected:
    error = run(script).error
    assert isinstance(error, ProviderRejected), repr(error)
    assert KEY not in str(error)
    assert len(error.detail) < 400
    return error


def test_499_before_any_text_means_that_the_goal_was_cancelled_by_an_operator() -> None:
    running = run(lambda peer: peer.answer(b'{"error": {"code": 499}}', "499 Client Closed Request"))

    assert isinstance(running.error, GoalCancelledException)
    assert running.error.cause.word == CauseWord.OPERATOR
    assert running.error.scope is running.call.scope


@pytest.mark.parametrize("code", [499, "499"])
def test_499_as_a_frame_after_text(code: object) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(frame("some") + sse({"error": {"code": code, "message": "cancelled"}}))
        peer.wait_hang_up()

    running = run(script)

    assert isinstance(running.error, GoalCancelledException)
    assert running.text == "some"


def test_499_in_a_json_body_of_status_200() -> None:
    running = run(lambda peer: peer.answer(b'{"error": {"code": 499, "message": "cancelled"}}'))

    assert isinstance(running.error, GoalCancelledException)


@pytest.mark.parametrize("as_frame", [False, True])
def test_if_we_stopped_it_ourselves_our_cause_stands_over_the_499(as_frame: bool) -> None:
    def script(peer: Peer) -> None:
        if as_frame:
            peer.begin_stream()
            peer.chunk(frame("x"))
        peer.reached.set()
        peer.go_on.wait(PATIENCE_S)
        if as_frame:
            peer.chunk(sse({"error": {"code": 499}}))
        else:
            peer.answer(b"", "499 Client Closed Request")

    from core.provider.de2generator import De2GeneratorProvider

    def read_then(peer: Peer) -> None:
        peer.read_request()
        script(peer)

    with RawServer(read_then) as server:
        running = Running(De2GeneratorProvider(server.url))
        assert server.peer().reached.wait(PATIENCE_S)
        running.stop()
        server.peer().go_on.set()
        running.wait()

    assert isinstance(running.error, GoalCancelledException)
    assert running.error.cause.word == CauseWord.USER


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_worth_a_retry(status: int) -> None:
    error = rejected(lambda peer: peer.answer(b'{"error": {"message": "slow down"}}', f"{status} Oops"))

    assert error.http_status == status
    assert "slow down" in error.detail
    assert POLICY.is_retryable(error)
    assert retry_after_of(error) is None


@pytest.mark.parametrize("status", [301, 400, 401, 404, 422])
def test_a_wrong_request_is_not(status: int) -> None:
    error = rejected(lambda peer: peer.answer(b'{"detail": "no such model"}', f"{status} Oops"))

    assert error.http_status == status
    assert "no such model" in error.detail
    assert not POLICY.is_retryable(error)


def test_a_redirect_is_not_followed_with_the_key() -> None:
    with RawServer(lambda peer: None) as other:

        def script(peer: Peer) -> None:
            peer.send(f"HTTP/1.1 307 T\r\nLocation: {other.url}/v1\r\nContent-Length: 0\r\n\r\n".encode())

        assert rejected(script).http_status == 307
        assert other.peers == []


def test_the_wait_that_a_busy_server_asks_for_is_kept() -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 429 Busy\r\nRetry-After: 277403\r\nContent-Length: 0\r\n\r\n")

    assert retry_after_of(rejected(script)) == 277403


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert retry_after_s("3") == 3
    assert retry_after_s(" 1.5 ") == 1.5
    assert retry_after_s("9" * 400) is None
    assert retry_after_s("1" + "0" * 50) == 1e50
    assert retry_after_s(formatdate(1000, usegmt=True), now=970) == 30
    assert retry_after_s(formatdate(1000, usegmt=True), now=2000) == 0
    assert retry_after_s("soon") is None
    assert retry_after_s("nan") is None
    assert retry_after_s("-5") is None
    assert retry_after_s(None) is None


@pytest.mark.parametrize(
    "body",
    [
        f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode(),
        f"your header was Authorization: Bearer {KEY}".encode(),
        f'{{"error": "{KEY} is not known"}}'.encode(),
    ],
)
def test_a_server_that_repeats_the_key_does_not_bring_it_into_the_message(body: bytes) -> None:
    assert "[hidden]" in rejected(lambda peer: peer.answer(body, "401 Unauthorized")).detail


def test_an_error_page_is_not_quoted() -> None:
    page = b"<html><body>502 Bad Gateway</body></html>"
    error = rejected(lambda peer: peer.answer(page, "502 Bad Gateway", "text/html"))

    assert "the server answered HTML" in error.detail
    assert "<" not in error.detail


def test_an_endless_error_body_is_cut() -> None:
    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 500 Oops\r\n\r\n")
        while True:
            peer.send(b"x" * 65536)

    assert len(rejected(script).detail) < 400


def test_an_excerpt_is_one_short_printable_line() -> None:
    assert safe_excerpt("a\r\n\x00b\x1b[31m") == "a b [31m"
    assert len(safe_excerpt("x" * 5000)) == 300
    assert safe_excerpt("  <!doctype HTML>…") == "the server answered HTML"


def test_an_error_frame_before_any_text_is_worth_a_retry_and_after_text_not() -> None:
    busy = sse({"error": {"code": 503, "message": "overloaded"}})

    def fresh(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(busy)

    def late(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(frame("some") + busy)

    assert rejected(fresh).http_status == 503
    assert POLICY.is_retryable(rejected(fresh))
    assert not POLICY.is_retryable(rejected(late))


@pytest.mark.parametrize("error", ["plain words", {"type": "server_error"}, {"code": "x"}, {"code": 12}, [1]])
def test_an_error_frame_of_any_shape_is_an_error(error: object) -> None:
    def script(peer: Peer) -> None:
        peer.begin_stream()
        peer.chunk(sse({"error": error}))

    assert rejected(script).http_status == 502


def unreachable(url: str) -> ProviderError:
    running = Running(OpenAIProvider(url, KEY)).wait()
    assert isinstance(running.error, ProviderUnreachable), repr(running.error)
    return running.error


def test_a_server_that_is_not_there_is_named_and_worth_a_retry() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    error = unreachable(f"http://user:pass@127.0.0.1:{port}/v1")

    assert error.detail == f"http://127.0.0.1:{port} cannot be reached: connection refused"
    assert POLICY.is_retryable(error)


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.provider.http_client.LIMITS_S", (0.2, 5.0))
    with black_hole() as port:
        error = unreachable(f"http://127.0.0.1:{port}/v1")

    assert "no connection in time" in error.detail
    assert POLICY.is_retryable(error)


def silent(peer: Peer) -> None:
    peer.wait_hang_up()


def test_a_silent_server_is_given_up_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.provider.http_client.LIMITS_S", (5.0, 0.2))

    error = run(silent).error

    assert isinstance(error, ProviderUnreachable)
    assert "nothing for too long" in error.detail
    assert not POLICY.is_retryable(error)


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    assert "name is not known" in unreachable("http://model.test/v1").detail


def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    context, _ = self_signed(str(tmp_path))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with RawServer(lambda peer: None, context) as server:
        error = unreachable(f"{server.url}/v1")

    assert "TLS" in error.detail
    assert not POLICY.is_retryable(error)


def test_a_server_that_hangs_up_without_an_answer_is_worth_a_retry() -> None:
    error = run(lambda peer: None).error

    assert isinstance(error, ProviderUnreachable)
    assert POLICY.is_retryable(error)
    assert not isinstance(error, ProviderNonsense | Cancelled)


def test_a_place_holds_no_password_and_no_path() -> None:
    assert place("https://user:pw@h.example/v1?x=1") == "https://h.example:443"
    assert place("http://[::1]:8080/v1") == "http://[::1]:8080"
