"""How the list of a server's models is read, from servers of each kind and with each fault."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from core.agent.model_catalog import ModelCatalog
from core.call import Outcome
from core.cancellation import Cancelled, GoalCancelledException
from core.errors import ProviderError, ProviderNonsense, ProviderUnreachable
from core.provider.failures import ServerRejected, ServerUnreachable
from core.provider.make_provider import make_provider
from tests.support.model_kit import USER, Port, goal_scope, new_asked
from tests.support.model_server import ModelServer
from tests.support.provider_kit import new_call
from tests.support.race_kit import Later
from tests.support.raw_server import Peer, RawServer

KINDS = ("de2generator", "openai", "anthropic")
each_provider = pytest.mark.parametrize("kind", KINDS)
SECRET = "a-key-of-any-shape"


def listed(kind: str, script: Callable[[Peer], None]) -> list[str]:
    with RawServer(script) as server:
        provider = make_provider(kind, server.url + ("/v1" if kind == "openai" else ""), SECRET)
        names = provider.list_models(new_call(provider))
        provider.close()
    return names


def failure(kind: str, script: Callable[[Peer], None]) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        listed(kind, script)
    return failed.value


def answer(value: Any, status: str = "200 OK") -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        while peer.read_request() is not None:
            peer.answer(value if isinstance(value, bytes) else json.dumps(value).encode(), status)

    return script


@each_provider
def test_the_list_is_asked_for_where_it_is_and_with_the_key(kind: str) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def script(peer: Peer) -> None:
        request = peer.read_request()
        assert request is not None
        asked.append((request.line, request.headers))
        peer.answer(json.dumps({"object": "list", "data": [{"id": "b"}, {"id": "a"}, {"id": "b"}]}).encode())

    assert listed(kind, script) == ["b", "a"]
    ((line, headers),) = asked
    assert line.split(" ")[0] == "GET"
    assert urlsplit(line.split(" ")[1]).path == "/v1/models"
    assert SECRET in headers["x-api-key" if kind == "anthropic" else "authorization"]


@each_provider
def test_the_stand_in_lists_its_models_in_the_form_of_each_api(kind: str) -> None:
    with ModelServer(listed=("b", "a")) as server:
        provider = make_provider(kind, server.url + ("/v1" if kind == "openai" else ""))
        assert provider.list_models(new_call(provider)) == ["b", "a"]
        provider.close()


def test_pages_are_followed_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.provider.model_list._PAGE_SIZE", 2)
    with ModelServer(listed=("a", "b", "c", "d", "e")) as server:
        provider = make_provider("anthropic", server.url)
        assert provider.list_models(new_call(provider)) == ["a", "b", "c", "d", "e"]
        provider.close()


def test_pages_without_end_are_given_up() -> None:
    seen: list[str] = []

    def script(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            seen.extend(parse_qs(urlsplit(request.path).query).get("after_id", ["-"]))
            name = f"m{len(seen)}"
            peer.answer(json.dumps({"data": [{"id": name}], "has_more": True, "last_id": name}).encode())

    assert len(listed("anthropic", script)) == len(seen) == 50
    assert seen[:3] == ["-", "m1", "m2"]


def test_a_page_that_points_to_itself_is_the_last() -> None:
    page = {"data": [{"id": "a"}], "has_more": True, "last_id": "a"}
    assert listed("anthropic", answer(page)) == ["a"]


def test_a_bare_list_is_taken_and_what_is_no_name_is_passed_over() -> None:
    odd: list[Any] = [{"id": "a"}, {"id": 3}, {"id": ""}, {"id": "x" * 201}, {"id": "a\nb"}, {"id": "\ud800"}, 4, {}]
    assert listed("openai", answer(odd)) == ["a"]


@each_provider
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"<html>welcome</html>", "not JSON"),
        (b"", "not JSON"),
        ({"models": "none"}, "none"),
        ({"data": {}}, "none"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (5 << 20), "MiB"),
    ],
    ids=["html", "nothing", "other-members", "no-list", "deep", "huge"],
)
def test_what_is_no_list_is_nonsense(kind: str, value: Any, words: str) -> None:
    error = failure(kind, answer(value))
    assert isinstance(error, ProviderNonsense)
    assert words in error.detail


@each_provider
def test_a_refusal_has_its_status_and_tells_no_key(kind: str) -> None:
    error = failure(kind, answer({"error": {"message": f"bad key {SECRET}"}}, "503 Busy"))
    assert isinstance(error, ServerRejected)
    assert (error.http_status, error.is_retryable) == (503, True)
    assert SECRET not in error.detail


@each_provider
def test_a_499_to_the_question_is_a_stop(kind: str) -> None:
    with pytest.raises(GoalCancelledException):
        listed(kind, answer({}, "499 Cancelled"))


@each_provider
def test_a_connection_that_breaks_is_told_as_such(kind: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    assert isinstance(failure(kind, script), ProviderUnreachable)


def trickles_for_ever(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    while not peer.go_on.wait(0.01):
        peer.chunk(b" ")


@pytest.mark.parametrize("script", [lambda peer: peer.wait_hang_up(), trickles_for_ever], ids=["silent", "trickles"])
def test_a_list_that_does_not_come_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[Peer], None]
) -> None:
    monkeypatch.setattr("core.provider.model_list.LIST_S", 0.2)
    error = failure("openai", script)
    assert isinstance(error, ServerUnreachable)
    assert "did not list its models" in error.detail
    assert not error.is_retryable


def _hold_after_head(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    peer.chunk(b'{"data": [')
    peer.reached.set()
    peer.wait_hang_up()


def _hold_before_head(peer: Peer) -> None:
    peer.read_request()
    peer.reached.set()
    peer.wait_hang_up()


@each_provider
@pytest.mark.parametrize("hold", [_hold_before_head, _hold_after_head])
def test_a_stop_hangs_up_on_the_question_and_the_goal_is_stopped(kind: str, hold: Callable[[Peer], None]) -> None:
    scope, port = goal_scope(), Port()
    with RawServer(hold) as server:
        provider = make_provider(kind, server.url)
        catalog = ModelCatalog(provider)
        asking = Later(lambda: catalog.names(new_asked(scope), port))
        assert server.peer().reached.wait(10)
        (call,) = port.calls.snapshot()
        scope.cancel(USER)
        with pytest.raises(Cancelled):
            asking.result()
        assert server.peer().hung_up.wait(10)
        assert (call.kind, call.outcome, len(port.calls)) == ("model_call", Outcome.ABORTED, 0)
        provider.close()
