"""A stop at every point between the accepted message and its first request: nothing reaches the model server.

The interactive run's first turn and ``cancel`` are in ``test_stop_versus``; here are the other ways to launch a turn,
and the other ways to stop it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, say_done, start_plan
from tests.support.race_kit import Later, check_nothing_left
from tests.support.servers import REMOTE_TOKEN, LocalServer, gate

pytestmark = pytest.mark.spread(3)

#: In the order in which a turn passes them.
BEFORE_IT_IS_KNOWN = ("engine.accepted",)
AFTER_THE_LAUNCH = (
    "engine.claimed", "engine.began", "chatbot.before_planning", "goal.before_children", "scheduler.before_goal_starts",
    "agent.before_request", "model_call.before_sent",
)  # fmt: skip
every_point = pytest.mark.parametrize("point", [*BEFORE_IT_IS_KNOWN, *AFTER_THE_LAUNCH])
every_later_point = pytest.mark.parametrize("point", AFTER_THE_LAUNCH)


def _stop(local: LocalServer, run: Run, how: str) -> Any:
    if how == "remote":
        return Api(local.url, REMOTE_TOKEN).post(f"/sessions/session/{run.session_id}/stop")
    return run.api.post("/stopplan" if how == "/stopplan" else f"{run.path}/{how}")


def _shown(api: Api) -> Run:
    """The only run of that user, whose start has not been answered yet."""
    (shown,) = api.get("/v1/runs")["runs"]
    return Run(api, shown)


def _assert_cancelled_untouched(run: Run, turn_id: str) -> None:
    """That turn ended once, by the user, and its goals never had a word from a model."""
    of_turn = [event for event in all_events(run) if event.get("turn_id") == turn_id]
    assert [event["cause"] for event in of_turn if event["type"] in ("stop_requested", "turn_cancelled")] == ["user"] * 2
    assert of_turn[-1]["type"] == "turn_cancelled"
    assert not {"text", "usage", "retry", "turn_completed"} & {event["type"] for event in of_turn}
    assert {each["status"] for each in run.goals(turn_id).values()} <= {"CANCELLED"}


@every_point
@pytest.mark.parametrize("how", ["/stopplan", "terminate", "remote"])
def test_a_batch_run_that_is_stopped_while_it_is_launched_never_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str, how: str
) -> None:
    plan = [goal("a", goals=[goal("b", script("strict", key=key))]), goal("c", script("strict", key=key), "a")]
    with gate(point) as before:
        started = Later(lambda: start_plan(local.api(key), *plan, interactive=False))
        before.wait_reached()
        run = _shown(local.api(key))
        assert _stop(local, run, how)["stopped"] is True
    assert started.result().id == run.id
    assert run.wait_parked() == "cancelled"
    assert models.calls(key=key) == []
    assert [event["type"] for event in all_events(run)][-2:] == ["turn_cancelled", "run_cancelled"]
    _assert_cancelled_untouched(run, run.first_turn)
    five_checks(run, models, key, is_batch=True)


@every_point
def test_an_interactive_run_that_is_terminated_while_it_is_launched_never_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate(point) as before:
        started = Later(lambda: start_plan(local.api(key), goal("a", script("strict", key=key))))
        before.wait_reached()
        run = _shown(local.api(key))
        assert run.terminate()["stopped"] is True
    started.result()
    assert run.wait_parked() == "cancelled"
    assert models.calls(key=key) == []
    _assert_cancelled_untouched(run, run.first_turn)
    five_checks(run, models, key, is_batch=True)


@every_later_point
@pytest.mark.parametrize("how", ["cancel", "/stopplan", "remote"])
def test_a_turn_that_a_waiting_message_launches_is_stopped_before_it_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str, how: str
) -> None:
    with gate("engine.before_final_write") as ending:
        run = local.api(key).start(script("strict", key=key))
        ending.wait_reached()
        assert run.say(script("strict", key=key))["disposition"] == "queued"
        with gate(point) as before:
            ending.open()
            before.wait_reached()
            turn_id = run.view()["turn_id"]
            assert turn_id != run.first_turn
            assert _stop(local, run, how)["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert len(models.calls(key=key)) == 1
    _assert_cancelled_untouched(run, turn_id)
    assert [message["content"] for message in run.transcript()][-1] == "[stopped by the user before any text]"
    five_checks(run, models, key)


@every_point
def test_a_stopped_turn_that_is_resumed_and_stopped_again_while_it_is_launched_never_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    run = start_plan(local.api(key), goal("done", say_done(key)), goal("cut", script("silent", key=key), "done"))
    models.wait_calls(2, key=key)
    run.cancel(wait_ms=30_000)
    with gate(point) as before:
        resumed = Later(lambda: local.api(key).post(f"{run.path}/resume", {}, expect=202))
        before.wait_reached()
        turn_id = run.view()["turn_id"]
        assert turn_id != run.first_turn
        assert run.cancel()["stopped"] is True
    assert resumed.result()["turn_id"] == turn_id
    assert run.wait_parked() == "awaiting_input"
    assert len(models.calls(key=key)) == 2
    end = next(event for event in all_events(run) if event["type"] == "turn_cancelled" and event["turn_id"] == turn_id)
    assert end["cause"] == "user"
    five_checks(run, models, key)


@every_later_point
def test_a_batch_run_that_goes_on_with_a_prompt_is_stopped_before_that_reaches_the_model_server(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    run = local.api(key).start(script("silent", key=key), interactive=False)
    models.wait_calls(1, key=key)
    with gate(point) as before:
        run.cancel(continue_with=script("strict", key=key))
        before.wait_reached()
        turn_id = run.view()["turn_id"]
        assert turn_id != run.first_turn
        assert run.terminate()["stopped"] is True
    assert run.wait_parked() == "cancelled"
    assert len(models.calls(key=key)) == 1
    _assert_cancelled_untouched(run, turn_id)
    five_checks(run, models, key, is_batch=True)


@pytest.fixture
def narrow(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server that starts one turn at a time."""
    with LocalServer(tmp_path, models.url, turn_workers=1) as server:
        yield server
        check_nothing_left(server)


@pytest.mark.parametrize(("how", "interactive"), [("cancel", True), ("/stopplan", True), ("/stopplan", False)])
def test_a_turn_that_waits_for_its_start_is_stopped_at_once_and_never_starts(
    narrow: LocalServer, models: ModelServer, key: str, how: str, interactive: bool
) -> None:
    with gate("engine.claimed") as starting:
        first = narrow.api("first").start(script("strict", key=f"{key}-first"))
        starting.wait_reached()
        run = narrow.api(key).start(script("strict", key=key), interactive=interactive)
        assert run.state == "queued"
        assert _stop(narrow, run, how)["stopped"] is True
        assert run.state == "stopping"
    assert run.wait_parked() == ("awaiting_input" if interactive else "cancelled")
    assert models.calls(key=key) == []
    _assert_cancelled_untouched(run, run.first_turn)
    first.wait_parked()
    assert "turn_completed" in [event["type"] for event in all_events(first)], "the one before it was not touched"
    five_checks(run, models, key, is_batch=not interactive)
