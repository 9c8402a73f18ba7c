"""What the documented stop leaves open, and how it is closed: what it reaches, and who may stop what."""

from pathlib import Path
from typing import Any

import pytest

from core.plan.goal_status import GoalStatus
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, start_plan, start_silent
from tests.support.race_kit import USER, Later, Switch, add_goal, bare_plan
from tests.support.servers import LocalServer, gate

# -- 4. work that is no de2generator request --------------------------------------------------


def _start_kind(local: LocalServer, models: ModelServer, key: str, kind: str) -> Run:
    if kind == "retry wait":
        run = local.api().start(script("busy", retry_after_s=300, key=key))
        run.wait_event("retry")
        return run
    run = local.api().start(script("silent", key=key), planning="auto" if kind == "planning" else "none")
    models.wait_open(1, key=key)
    return run


@pytest.mark.parametrize("provider", ["de2generator", "openai"])
@pytest.mark.parametrize("kind", ["model call", "planning", "retry wait"])
def test_every_kind_of_work_is_reached_through_its_scope(
    models: ModelServer, key: str, tmp_path: Path, provider: str, kind: str
) -> None:
    url = models.url if provider == "de2generator" else f"{models.url}/v1"
    with LocalServer(tmp_path, url, llm_provider=provider) as local:
        run = _start_kind(local, models, key, kind)
        assert local.api().post("/stopplan")["stopped"] is True
        assert run.wait_parked() == "awaiting_input"
        (call,) = models.wait_closed(1, key=key)
        reason = {"de2generator": "cancelled", "openai": "client_gone"}[provider]
        assert call.close_reason == ("finished" if kind == "retry wait" else reason)
        assert (call.asked_to_cancel_at is None) == (provider == "openai" or kind == "retry wait")
        five_checks(run, models, key)


# -- 5. a parent that waits -------------------------------------------------------------------


def _nested(depth: int, prompt: str) -> dict[str, Any]:
    made = goal("leaf", prompt)
    for level in range(depth, 0, -1):
        made = goal(f"level{level}", goals=[made])
    return made


def test_a_pool_of_one_thread_runs_a_plan_fifty_levels_deep(models: ModelServer, key: str, tmp_path: Path) -> None:
    with LocalServer(tmp_path, models.url, call_threads=1) as local:
        run = start_plan(local.api(), _nested(50, script("strict", key=key)))
        assert run.wait_parked() == "awaiting_input"
        goals = run.goals()
        assert len(goals) == 51
        assert {each["status"] for each in goals.values()} == {"COMPLETED"}
        five_checks(run, models, key)


def test_a_parent_that_waits_for_a_silent_child_fifty_levels_down_wakes_at_a_stop(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with LocalServer(tmp_path, models.url, call_threads=1) as local:
        run = start_plan(local.api(), _nested(50, script("silent", key=key)))
        models.wait_open(1, key=key)
        run.cancel(wait_ms=30_000)
        assert {each["status"] for each in run.goals().values()} == {"CANCELLED"}
        five_checks(run, models, key)


def test_an_inner_goal_holds_no_thread_while_its_children_run() -> None:
    plan = bare_plan(places=1)
    parent = plan.plan_goal
    for level in range(50):
        parent = add_goal(plan, f"level{level}", inside=parent)
    held = Switch()
    plan.work = lambda _: held.hold()
    add_goal(plan, "leaf", inside=parent)
    running = Later(plan.run)
    held.wait_reached()
    assert plan.workers.busy == 1  # type: ignore[attr-defined]
    plan.scope.cancel(USER)
    held.open()
    assert running.result() is GoalStatus.CANCELLED


# -- 6. who may stop what ---------------------------------------------------------------------


def test_with_a_session_claim_stopplan_means_the_plan_of_that_session(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    older, newer = (start_silent(local.api(key), models, f"{key}-{number}") for number in (1, 2))
    answer = local.api(key, session_id=older.session_id).post("/stopplan")
    assert answer["run_id"] == older.id
    five_checks(older, models, f"{key}-1")
    assert newer.state == "running"
    newer.cancel(wait_ms=30_000)


def test_without_a_claim_stopplan_means_the_callers_newest_turn_that_is_not_over(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    older, newer = (start_silent(local.api(key), models, f"{key}-{number}") for number in (1, 2))
    done = local.api(key).start(script("strict", key=key))
    done.wait_parked()
    api = local.api(key)
    with gate("turn.before_finish") as unwinding:
        assert api.post("/stopplan")["run_id"] == newer.id
        unwinding.wait_reached()
        assert api.post("/stopplan")["run_id"] == newer.id  # it is not over yet
    newer.wait_parked()
    assert api.post("/stopplan")["run_id"] == older.id
    older.wait_parked()
    assert api.post("/stopplan")["stopped"] is False
    for run, number in ((older, 1), (newer, 2)):
        five_checks(run, models, f"{key}-{number}")


def test_a_batch_run_that_stopplan_stops_ends_as_cancelled(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(key), models, key, interactive=False)
    assert run.api.post("/stopplan")["stopped"] is True
    assert run.wait_parked() == "cancelled"
    assert [event["type"] for event in run.events()][-2:] == ["turn_cancelled", "run_cancelled"]
    five_checks(run, models, key, is_batch=True)


def test_what_a_caller_does_not_own_does_not_exist_for_them(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(key), models, key)
    others = [local.api("mallory"), local.api(key, tenant="another"), local.api(key, session_id="s_another")]
    for other in others:
        assert other.post("/stopplan")["stopped"] is False
        for verb in ("cancel", "terminate"):
            assert other.post(f"{run.path}/{verb}", expect=404)["code"] == "not_found"
    assert run.state == "running"
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)
