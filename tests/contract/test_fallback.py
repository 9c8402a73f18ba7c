"""A fallback model, as a user sees it: who answers, and that a stop at any moment never asks the second model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.provider.backoff import RetryPolicy
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer, gate

pytestmark = pytest.mark.spread(2)

PROVIDERS = ("de2generator", "openai", "anthropic")
AGENT = {"name": "default", "model": "first", "fallback_model": "second"}


@pytest.fixture(scope="module", params=PROVIDERS)
def server(
    request: pytest.FixtureRequest, models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server whose agent has a fallback model; it tries twice."""
    folder = tmp_path_factory.mktemp("fallback")
    (folder / "agents.json").write_text(json.dumps([AGENT]))
    url = models.url + ("/v1" if request.param == "openai" else "")
    settings = {"llm_provider": request.param, "llm_api_key": "none", "agents_file": folder / "agents.json"}
    with LocalServer(folder, url, **settings) as local:
        local.main.agents["default"]._retries = RetryPolicy(max_attempts=2, base_s=0)
        yield local
        check_nothing_left(local)


def _lines(key: str, first: str, second: str = "trickle", **options: Any) -> str:
    """What each of the two models does."""
    return "\n".join(
        (
            script(first, model="first", key=key, **options),
            script(second, model="second", key=key, tokens=2, interval_ms=0),
        )
    )


def _asked(models: ModelServer, key: str) -> list[str]:
    """The models that were asked, without the last check's call."""
    return [call.model for call in models.calls(key=key) if call.script != "strict"]


@pytest.mark.parametrize(
    ("first", "options", "attempts"),
    [
        ("error", {"status": 404}, 1),
        ("html", {}, 1),
        ("busy", {"status": 503, "retry_after_s": 0}, 2),
        ("drop", {"tokens": 0}, 2),
    ],
)
def test_where_the_first_model_fails_the_second_answers_and_the_next_turn_tries_the_first_again(
    server: LocalServer, models: ModelServer, key: str, first: str, options: dict[str, Any], attempts: int
) -> None:
    run = server.api(key).start(_lines(key, first, **options))
    events = run.events()

    assert _asked(models, key) == ["first"] * attempts + ["second"]
    retries = [(event["attempt"], event.get("model"), event.get("fallback")) for event in events if event["type"] == "retry"]
    assert retries == [(1, None, None)] * (attempts - 1) + [(attempts, "second", True)]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert [event["model"] for event in events if event["type"] == "usage"][-1] == "second"
    five_checks(run, models, key)
    assert models.calls(key=key)[-1].model == "first"


def test_a_wrong_key_is_told_and_no_second_model_is_asked(server: LocalServer, models: ModelServer, key: str) -> None:
    run = server.api(key).start(_lines(key, "error", status=401))
    assert "401" in run.wait_event("turn_failed")["error"]
    assert _asked(models, key) == ["first"]
    five_checks(run, models, key)


def test_once_text_was_seen_no_second_model_is_asked(server: LocalServer, models: ModelServer, key: str) -> None:
    run = server.api(key).start(_lines(key, "drop", tokens=3, interval_ms=0))
    run.wait_event("turn_failed")
    assert (_asked(models, key), run.transcript()[-1]["content"]) == (["first"], "t1 t2 t3 ")
    five_checks(run, models, key)


def test_the_fallback_has_a_say_in_the_plan_too(server: LocalServer, models: ModelServer, key: str) -> None:
    plan = {"goals": [{"id": "g", "title": "G", "prompt": script("strict", key=key), "depends_on": []}]}
    refused = script("error", status=400, on="plan", model="first", key=key)
    lines = "\n".join((refused, script("plan", plan=plan, model="second", key=key)))
    run = server.api(key).start(lines, planning="auto")
    run.wait_parked()
    assert "g" in run.goals()
    assert [call.model for call in models.calls(key=key)] == ["first", "second", "first"]
    five_checks(run, models, key)


# -- a stop --------------------------------------------------------------------------------

STOPS: dict[str, Callable[[Run], Any]] = {
    "stop": lambda run: run.cancel(),
    "terminate": lambda run: run.terminate(),
    "stopplan": lambda run: run.api.post("/stopplan", {}),
}
each_stop = pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)


def _check_second_never_asked(run: Run, models: ModelServer, key: str, calls: int = 1) -> None:
    run.wait_parked()
    assert _asked(models, key) == ["first"] * calls
    events = five_checks(run, models, key)
    of_turn = [event for event in events if event.get("turn_id") == run.first_turn]
    assert of_turn[-1]["type"] == "turn_cancelled"
    assert not [event for event in of_turn if event.get("fallback")]
    assert set(_asked(models, key)) == {"first"}


@each_stop
@pytest.mark.parametrize("headers", [0, 1])
def test_a_stop_in_an_attempt_of_the_first_model(
    server: LocalServer, models: ModelServer, key: str, stop: Callable[[Run], Any], headers: int
) -> None:
    run = server.api(key).start(_lines(key, "silent", headers=headers))
    models.wait_open(1, key=key)
    stop(run)
    _check_second_never_asked(run, models, key)


@each_stop
def test_a_stop_in_the_wait_before_another_attempt(
    server: LocalServer, models: ModelServer, key: str, stop: Callable[[Run], Any]
) -> None:
    run = server.api(key).start(_lines(key, "busy", retry_after_s=60))
    run.wait_event("retry")
    stop(run)
    _check_second_never_asked(run, models, key)


@each_stop
def test_a_stop_that_comes_just_after_the_failure(
    server: LocalServer, models: ModelServer, key: str, stop: Callable[[Run], Any]
) -> None:
    with gate("agent.after_failure") as failed:
        run = server.api(key).start(_lines(key, "error", status=400))
        failed.wait_reached()
        stop(run)
    _check_second_never_asked(run, models, key)


@each_stop
def test_a_stop_in_the_last_moment_before_the_second_model_is_asked(
    server: LocalServer, models: ModelServer, key: str, stop: Callable[[Run], Any]
) -> None:
    with gate("agent.after_failure") as failed:
        run = server.api(key).start(_lines(key, "error", status=400))
        failed.wait_reached()
        with gate("agent.before_request") as second:
            failed.open()
            second.wait_reached()
            stop(run)
    run.wait_parked()
    assert _asked(models, key) == ["first"]
    five_checks(run, models, key)


@each_stop
def test_a_stop_while_the_second_model_answers_ends_that_call(
    server: LocalServer, models: ModelServer, key: str, stop: Callable[[Run], Any]
) -> None:
    run = server.api(key).start(_lines(key, "error", "silent", status=400))
    models.wait_calls(2, key=key)
    stop(run)
    run.wait_parked()
    assert _asked(models, key) == ["first", "second"]
    five_checks(run, models, key)


def test_a_server_that_shuts_down_asks_no_second_model(models: ModelServer, tmp_path: Path, key: str) -> None:
    (tmp_path / "agents.json").write_text(json.dumps([AGENT]))
    with LocalServer(tmp_path, models.url, agents_file=tmp_path / "agents.json") as local:
        local.api(key).start(_lines(key, "silent"))
        models.wait_open(1, key=key)
    models.wait_open(0, key=key)
    assert _asked(models, key) == ["first"]


def test_a_call_that_the_operator_cancels_at_the_gateway_is_not_given_to_the_second_model(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    (tmp_path / "agents.json").write_text(json.dumps([AGENT]))
    with LocalServer(tmp_path, models.url, agents_file=tmp_path / "agents.json") as local:
        run = local.api(key).start(_lines(key, "silent"))
        (call,) = models.wait_open(1, key=key)
        assert models.cancel(str(call.token)) == "cancelled"
        run.wait_parked()
        assert {goal["status"] for goal in run.goals().values()} == {"CANCELLED"}
        assert _asked(models, key) == ["first"]
        five_checks(run, models, key)
