"""The gateway: a token in each request, a cancel request that is bounded, and 499."""

import json
import threading
import time
from collections.abc import Callable

import pytest

from core.cancellation import Cancelled, CauseWord, GoalCancelledException
from core.errors import ProviderError, ProviderNonsense, ProviderRejected, ProviderUnreachable
from core.provider.de2generator import De2GeneratorProvider
from tests.support.provider_kit import WHOLE, Running, frame, good_reply, new_call, reply, sse, text_of
from tests.support.raw_server import PATIENCE_S, Peer, RawServer


def test_the_request_carries_the_token_of_its_call() -> None:
    with RawServer(good_reply) as server:
        provider = De2GeneratorProvider(f"{server.url}//", "key")

        running = Running(provider).wait()

        assert running.text == "ok"
        request = server.peer().requests[0]
        assert request.path == "/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer key"
        body = json.loads(request.body)
        assert body["metadata"] == {"cancellation_token": running.call.token}
        assert body["stream"] is True


def test_two_calls_have_two_tokens() -> None:
    with RawServer(good_reply) as server:
        provider = De2GeneratorProvider(server.url)

        reply(provider)
        reply(provider)

        tokens = [json.loads(request.body)["metadata"] for request in server.peer().requests]
        assert tokens[0] != tokens[1]


def gateway(answer: bytes, status: str = "200 OK") -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        while peer.read_request() is not None:
            peer.answer(answer, status)

    return script


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b'{"status": "cancelled"}', "cancelled"),
        (b'{"status": "already_cancelled"}', "already_cancelled"),
        (b'{"result": "cancelled"}', "cancelled"),
        (b'{"message": "already_cancelled"}', "already_cancelled"),
        (b'"cancelled"', "cancelled"),
        (b"already_cancelled\n", "already_cancelled"),
    ],
)
def test_a_yes_is_understood_in_each_form(answer: bytes, word: str) -> None:
    with RawServer(gateway(answer)) as server:
        provider = De2GeneratorProvider(server.url + "/")
        call = new_call(provider)

        assert provider.ask_cancel(call, PATIENCE_S) == word

        request = server.peer().requests[0]
        assert request.path == "/v1/cancel"
        assert json.loads(request.body) == {"cancellation_token": call.token}


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (b'{"status": "unknown"}', "200 OK", ProviderNonsense),
        (b'{"cancelled": true}', "200 OK", ProviderNonsense),
        (b"", "200 OK", ProviderNonsense),
        (b"<html>cancelled</html>", "200 OK", ProviderNonsense),
        (b"[" * 5000, "200 OK", ProviderNonsense),
        (b'{"status": "cancelled"}', "404 Not Found", ProviderRejected),
        (b'{"error": "boom"}', "500 Oops", ProviderRejected),
    ],
)
def test_anything_else_is_an_error(answer: bytes, status: str, kind: type[ProviderError]) -> None:
    with RawServer(gateway(answer, status)) as server:
        provider = De2GeneratorProvider(server.url)

        with pytest.raises(kind):
            provider.ask_cancel(new_call(provider), PATIENCE_S)


def test_cancel_requests_share_a_connection_of_their_own() -> None:
    with RawServer(gateway(b'{"status": "cancelled"}')) as server:
        provider = De2GeneratorProvider(server.url)

        for _ in range(5):
            provider.ask_cancel(new_call(provider), PATIENCE_S)

        assert len(server.peers) == 1


def silent(peer: Peer) -> None:
    peer.wait_hang_up()


def trickling(peer: Peer) -> None:
    peer.read_request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    # The trickle is the point: each byte comes before any limit on one read would strike.
    while not peer.go_on.wait(0.02):
        peer.send(b" ")


@pytest.mark.parametrize("script", [silent, trickling])
def test_a_cancel_request_is_bounded_whatever_the_gateway_does(
    script: Callable[[Peer], None],
) -> None:
    with RawServer(script) as server:
        provider = De2GeneratorProvider(server.url)
        begun = time.monotonic()

        with pytest.raises(ProviderUnreachable, match="in time"):
            provider.ask_cancel(new_call(provider), 0.2)

        assert 0.15 < time.monotonic() - begun < 2
        assert server.peer().gone.wait(PATIENCE_S)


def test_a_gateway_that_is_dead_is_an_error_at_once() -> None:
    with RawServer(silent) as server:
        url = server.url
    provider = De2GeneratorProvider(url)

    with pytest.raises(ProviderUnreachable, match="refused"):
        provider.ask_cancel(new_call(provider), PATIENCE_S)
    assert isinstance(Running(provider).wait().error, ProviderUnreachable)


class Gateway:
    """A gateway that streams one call and ends it when it is asked to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.obeys = True

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            if request.path == "/v1/cancel":
                self.asked.set()
                peer.answer(b'{"status": "cancelled"}')
                continue
            peer.begin_stream()
            peer.chunk(frame("some"))
            peer.reached.set()
            self.asked.wait(PATIENCE_S)
            if self.obeys:
                peer.chunk(frame("late") + sse({"error": {"code": 499, "message": "cancelled"}}))
                peer.chunk(b"")
            peer.wait_hang_up()
            return


def test_a_stopped_call_is_asked_for_and_ends_with_the_499() -> None:
    gateway = Gateway()
    with RawServer(gateway) as server:
        running = Running(De2GeneratorProvider(server.url), cancel_timeout_s=PATIENCE_S)
        assert running.first_delta.wait(PATIENCE_S)

        running.stop()
        running.call.cancel_request(PATIENCE_S)
        running.wait()

        assert isinstance(running.error, GoalCancelledException)
        assert running.error.cause.word == CauseWord.USER
        assert running.text == "some"
        assert running.call.outcome == "cancelled"


def test_a_gateway_that_agrees_and_does_nothing_is_hung_up_on() -> None:
    gateway = Gateway()
    gateway.obeys = False
    with RawServer(gateway) as server:
        running = Running(De2GeneratorProvider(server.url), cancel_timeout_s=PATIENCE_S)
        assert running.first_delta.wait(PATIENCE_S)
        begun = time.monotonic()

        running.stop()
        running.call.cancel_request(PATIENCE_S)
        running.wait()

        assert type(running.error) is Cancelled
        assert time.monotonic() - begun < 2
        assert running.call.outcome == "cancelled"
        assert server.peer().hung_up.wait(PATIENCE_S)


def test_a_call_that_nobody_asks_for_is_shut_when_its_time_is_over() -> None:
    gateway = Gateway()
    with RawServer(gateway) as server:
        running = Running(De2GeneratorProvider(server.url), cancel_timeout_s=0.2)
        assert running.first_delta.wait(PATIENCE_S)

        running.stop()
        running.wait()

        assert type(running.error) is Cancelled
        assert running.call.outcome == "aborted"
        assert not gateway.asked.is_set()
        gateway.asked.set()


def test_a_call_that_is_not_yet_sent_is_shut_and_not_asked_for() -> None:
    with RawServer(lambda peer: peer.answer(WHOLE)) as server:
        provider = De2GeneratorProvider(server.url)
        call = new_call(provider)

        call.abort()
        running = Running(provider, call).wait()

        assert isinstance(running.error, ProviderUnreachable)
        assert call.outcome == "aborted"
        assert all(peer.requests == [] for peer in server.peers)
        assert text_of(running.deltas) == ""
