"""A proxy between us and the model: whatever stands there, the model sees the end of its call after a stop."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cancellation import Cancelled
from core.provider.openai import OpenAIProvider
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan
from tests.support.provider_kit import DONE, STOP, Running, frame, reply, stop_at_once, text_of
from tests.support.proxies import ForwardProxy, ReverseProxy
from tests.support.raw_server import Peer, RawServer, self_signed
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.spread(2)

PROVIDERS = ("de2generator", "openai", "anthropic")
_NO_PROXY = {"no_proxy": "", "NO_PROXY": "", "HTTP_PROXY": "", "https_proxy": "", "HTTPS_PROXY": ""}


@pytest.fixture(scope="module")
def forward() -> Iterator[ForwardProxy]:
    """The proxy of the environment."""
    with ForwardProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def reverse(models: ModelServer) -> Iterator[ReverseProxy]:
    """A proxy in the gateway's place."""
    with ReverseProxy(models.url) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=[(kind, each) for kind in ("forward", "reverse") for each in PROVIDERS], ids="-".join)
def proxied(
    request: pytest.FixtureRequest, models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server behind each kind of proxy, for each kind of provider: told of it, or taking it for the model."""
    kind, provider = request.param
    proxy = request.getfixturevalue(kind)
    told = {**_NO_PROXY, "http_proxy": proxy.url} if kind == "forward" else {}
    url = (models if kind == "forward" else proxy).url + ("/v1" if provider == "openai" else "")
    folder = tmp_path_factory.mktemp("proxied")
    with ServerProcess(folder, url, LLM_PROVIDER=provider, LLM_API_KEY="none", **told) as server:
        yield server


def _stop_and_check(run: Run, server: ServerProcess, models: ModelServer, key: str, calls: int = 1) -> None:
    is_asked = server.environment["LLM_PROVIDER"] == "de2generator"
    stopped_at = time.time()
    answer = run.cancel(wait_ms=30_000)
    assert answer["parked"] is True
    closed = models.wait_closed(calls, key=key)
    assert [call.close_reason for call in closed] == ["cancelled" if is_asked else "client_gone"] * calls
    assert all(call.closed_at is not None and call.closed_at - stopped_at < 2 for call in closed)
    outcomes = {item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"}
    assert outcomes == {"cancelled" if is_asked else "aborted"}
    five_checks(run, models, key)


def test_an_answer_passes_through_piece_by_piece(proxied: ServerProcess, models: ModelServer, key: str) -> None:
    run = proxied.api().start(script("trickle", tokens=3, interval_ms=20, key=key))
    run.wait_parked()
    assert run.transcript()[-1]["content"] == "t1 t2 t3 "
    assert len([event for event in run.events() if event["type"] == "text"]) > 1


def test_a_stop_in_the_middle_of_a_stream_is_seen_by_the_model(
    proxied: ServerProcess, models: ModelServer, key: str
) -> None:
    run = proxied.api().start(script("trickle", tokens=2000, interval_ms=20, key=key))
    run.wait_event("text")
    _stop_and_check(run, proxied, models, key)


@pytest.mark.parametrize("headers", [0, 1])
def test_a_stop_before_the_first_byte_is_seen_by_the_model(
    proxied: ServerProcess, models: ModelServer, key: str, headers: int
) -> None:
    run = proxied.api().start(script("silent", headers=headers, key=key))
    models.wait_open(1, key=key)
    _stop_and_check(run, proxied, models, key)


def test_a_stop_of_many_goals_is_seen_for_each(proxied: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_plan(proxied.api(), *(goal(f"g{number}", script("silent", key=key)) for number in range(8)))
    models.wait_open(8, key=key)
    _stop_and_check(run, proxied, models, key, calls=8)


@pytest.mark.parametrize("proxied", [("forward", each) for each in PROVIDERS], indirect=True, ids=PROVIDERS)
def test_the_proxy_of_the_environment_was_used_also_for_the_cancel_request(
    proxied: ServerProcess, forward: ForwardProxy, models: ModelServer, key: str
) -> None:
    before = len(forward.lines)
    run = proxied.api().start(script("silent", key=key))
    models.wait_open(1, key=key)
    _stop_and_check(run, proxied, models, key)
    paths = [line.split(" ")[1].removeprefix(models.url) for line in forward.lines[before:]]
    is_asked = proxied.environment["LLM_PROVIDER"] == "de2generator"
    assert len(paths) >= 2  # the call, and that of the checks
    assert paths.count("/v1/cancel") == is_asked


# -- https: a tunnel -----------------------------------------------------------------------


@pytest.fixture
def tunnels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    """The proxy for https."""
    with ForwardProxy() as proxy:
        for name in _NO_PROXY:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", proxy.url)
        yield proxy


def _open_stream(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    peer.chunk(frame("some"))
    peer.reached.set()
    peer.wait_hang_up()


def _silent(peer: Peer) -> None:
    peer.read_request()
    peer.reached.set()
    peer.wait_hang_up()


def _whole(peer: Peer) -> None:
    peer.read_request()
    peer.begin_stream()
    peer.chunk(frame("ok") + STOP + DONE)
    peer.chunk(b"")


def test_an_answer_comes_through_a_tunnel(tunnels: ForwardProxy, tmp_path: Path) -> None:
    context, certificate = self_signed(str(tmp_path))
    with RawServer(_whole, context) as server:
        provider = OpenAIProvider(f"{server.url}/v1", verify=certificate)
        assert text_of(reply(provider)) == "ok"
        provider.close()
    assert [line.rpartition(" ")[0] for line in tunnels.lines] == [f"CONNECT 127.0.0.1:{server.port}"]


@pytest.mark.parametrize("begin", [_open_stream, _silent], ids=["streaming", "silent"])
def test_a_stop_through_a_tunnel_is_seen_by_the_model(tunnels: ForwardProxy, tmp_path: Path, begin: object) -> None:
    context, certificate = self_signed(str(tmp_path))
    with RawServer(begin, context) as server:  # type: ignore[arg-type]
        provider = OpenAIProvider(f"{server.url}/v1", verify=certificate)
        running = Running(provider)
        assert server.peer().reached.wait(10)
        stop_at_once(running)
        assert server.peer().hung_up.wait(10)
        provider.close()


def test_a_stop_while_the_proxy_does_not_open_the_tunnel_is_at_once(tunnels: ForwardProxy) -> None:
    tunnels.hold_tunnels()
    running = Running(OpenAIProvider("https://127.0.0.1:9/v1"))
    tunnels.wait_lines(1)
    stop_at_once(running)
    assert type(running.error) is Cancelled
    assert not running.call.is_sent
