"""An agent whose model is a pattern, as a user sees it; also while the list of models does not come."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.provider.backoff import RetryPolicy
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.proxies import ReverseProxy
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer

LISTED = ("m-3.6-mini", "m-3.10-mini", "m-4-large", "m-3.10")


@pytest.fixture(scope="module")
def listing() -> Iterator[ModelServer]:
    """A gateway with several models."""
    with ModelServer(strict=True, listed=LISTED) as server:
        yield server


@pytest.fixture
def proxy(listing: ModelServer) -> Iterator[ReverseProxy]:
    """A place in front of it where the list can be held up."""
    with ReverseProxy(listing.url) as reverse:
        yield reverse


@contextmanager
def _server(folder: Path, url: str, provider: str, **agent: str) -> Iterator[LocalServer]:
    agents = folder / "agents.json"
    agents.write_text(json.dumps([{"name": "default", **agent}]))
    url += "/v1" if provider == "openai" else ""
    with LocalServer(folder, url, llm_provider=provider, llm_api_key="none", agents_file=agents) as local:
        local.main.agents["default"]._retries = RetryPolicy(max_attempts=2, base_s=0)
        yield local
        check_nothing_left(local)


each_provider = pytest.mark.parametrize("provider", ["de2generator", "openai", "anthropic"])


@each_provider
def test_the_newest_model_that_fits_answers_and_the_list_is_asked_for_once(
    proxy: ReverseProxy, listing: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    with _server(tmp_path, proxy.url, provider, model_pattern="m-*-mini") as server:
        run = start_plan(server.api(), *(goal(f"g{number}", say_done(key)) for number in range(6)))
        events = run.events()
        assert {call.model for call in listing.calls(key=key)} == {"m-3.10-mini"}
        assert {event["model"] for event in events if event["type"] == "usage"} == {"m-3.10-mini"}
        five_checks(run, listing, key)
        assert proxy._paths.count("/v1/models") == 1


@each_provider
def test_a_pattern_that_fits_nothing_fails_the_turn_with_the_pattern_and_what_there_was(
    listing: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    with _server(tmp_path, listing.url, provider, model_pattern="gpt-*") as server:
        run = server.api().start(say_done(key))
        error = run.wait_event("turn_failed")["error"]
        assert "'gpt-*'" in error
        assert "m-3.6-mini" in error
        assert listing.calls(key=key) == []


@each_provider
@pytest.mark.parametrize("stop", ["cancel", "terminate", "stopplan"])
def test_a_stop_while_the_list_is_awaited_parks_the_turn_and_asks_no_model(
    proxy: ReverseProxy, listing: ModelServer, tmp_path: Path, key: str, provider: str, stop: str
) -> None:
    with _server(tmp_path, proxy.url, provider, model_pattern="m-*-mini", fallback_model="m-4-large") as server:
        proxy.hold("/v1/models")
        run = start_plan(server.api(), *(goal(f"g{number}", say_done(key)) for number in range(3)))
        proxy.wait_request("/v1/models")
        if stop == "stopplan":
            run.api.post("/stopplan", {})
        else:
            getattr(run, stop)()
        proxy.wait_gone(1)
        run.wait_parked()
        assert listing.calls(key=key) == []
        kinds = {(item["kind"], item["outcome"]) for item in _receipt(run) if item["kind"] != "goal"}
        assert ("model_call", "aborted") in kinds
        assert kinds <= {("model_call", "aborted"), ("wait", "cancelled")}
        proxy.let_through("/v1/models")
        five_checks(run, listing, key)
        assert [call.model for call in listing.calls(key=key)] == ["m-3.10-mini"]


def test_a_server_that_lists_nothing_is_no_matter_where_there_is_a_fallback(tmp_path: Path, key: str) -> None:
    with ModelServer(listed=("other",)) as bare, _server(
        tmp_path, bare.url, "openai", model_pattern="m-*", fallback_model="other"
    ) as server:
        run = server.api().start(script("trickle", tokens=1, key=key))
        assert run.wait_event("retry", fallback=True)["model"] == "other"
        run.wait_parked()
        assert run.transcript()[-1]["content"] == "t1 "


def _receipt(run: Run) -> list[dict[str, object]]:
    receipt: list[dict[str, object]] = run.api.get(f"{run.path}/receipts")["receipts"][-1]["receipt"]
    return receipt
