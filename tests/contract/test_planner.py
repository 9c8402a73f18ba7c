"""A plan made by a model: believable, absurd or none at all; the message is worked on either way."""

from typing import Any

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done
from tests.support.servers import ServerProcess


def _plan(run: Run) -> dict[str, Any]:
    assert "turn_completed" in [event["type"] for event in run.events()]
    plan: dict[str, Any] = run.api.get(f"{run.path}/plan")
    return plan


def test_a_believable_plan_is_shown_and_run(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    goals = [
        {"id": "facts", "title": "Facts", "prompt": say_done(key), "depends_on": []},
        {"id": "sum", "title": "Sum up", "prompt": say_done(key), "depends_on": ["facts"]},
    ]
    run = any_server.api().start(script("plan", plan={"goals": goals}, key=key), planning="auto")
    plan = _plan(run)
    assert plan["note"] is None
    assert [(each["id"], each["title"], each["status"]) for each in plan["goals"]] == [
        ("facts", "Facts", "COMPLETED"), ("sum", "Sum up", "COMPLETED")
    ]  # fmt: skip
    planning, *working = models.calls(key=key)
    assert planning.must_call is not None
    assert planning.last_user_text == run.transcript()[0]["content"]
    assert [call.must_call for call in working] == [None, None]
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "odd",
    ["nonsense", "cycle", "unknown", "duplicate", "empty", "text"],
)
def test_an_odd_plan_becomes_one_goal_with_a_note_that_says_so(
    any_server: ServerProcess, models: ModelServer, key: str, odd: str
) -> None:
    message = f"{script('plan', **{odd: 1}, key=key)}\n{say_done(key)}"
    run = any_server.api().start(message, planning="auto")
    plan = _plan(run)
    (only,) = plan["goals"]
    assert (only["prompt"], only["status"]) == (message, "COMPLETED")
    assert plan["note"].startswith("Working on this as one goal: ")
    shown = [event["note"] for event in run.events() if event["type"] == "plan_updated"]
    assert set(shown) == {plan["note"]}
    assert len(models.calls(key=key)) == 2
    five_checks(run, models, key)


def test_a_plan_of_far_too_many_goals_becomes_one_goal_with_a_note(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    message = f"{script('plan', many=500, key=key)}\n{say_done(key)}"
    plan = _plan(any_server.api().start(message, planning="auto"))
    assert len(plan["goals"]) == 1
    assert "500" in plan["note"]
    assert len(models.calls(key=key)) == 2


@pytest.mark.parametrize("shape", [{"goals": "x"}, {"goals": [1]}, {"goals": [{"id": "a"}]}, {"x": 1}, [[]], 7])
def test_a_plan_of_the_wrong_shape_becomes_one_goal_with_a_note(
    server: ServerProcess, models: ModelServer, key: str, shape: object
) -> None:
    message = f"/script plan plan={_json(shape)} key={key}\n{say_done(key)}"
    plan = _plan(server.api().start(message, planning="auto"))
    assert [each["prompt"] for each in plan["goals"]] == [message]
    assert plan["note"].startswith("Working on this as one goal: ")


@pytest.mark.parametrize("line", [("error", {"status": 400}), ("html", {}), ("nothing", {}), ("halfjson", {})])
def test_a_model_server_that_cannot_call_tools_can_still_answer(
    any_server: ServerProcess, models: ModelServer, key: str, line: tuple[str, dict[str, int]]
) -> None:
    message = f"{script(line[0], **line[1], on='plan', key=key)}\n{say_done(key)}"
    run = any_server.api().start(message, planning="auto")
    plan = _plan(run)
    assert [each["prompt"] for each in plan["goals"]] == [message]
    assert "no plan was made" in plan["note"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


def test_a_plan_that_is_handed_in_serves_the_first_turn_only(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    given = {"goals": [{"id": "mine", "prompt": say_done(key)}]}
    run = server.api().start("go on", planning="auto", plan=given)
    assert [each["id"] for each in _plan(run)["goals"]] == ["mine"]
    made = [{"id": "made", "title": "", "prompt": say_done(key), "depends_on": []}]
    after = run.view()["last_seq"]
    turn = run.say(script("plan", plan=made, key=key))["turn_id"]
    run.events(after=after)
    assert list(run.goals(turn)) == ["made"]
    assert list(run.goals(run.first_turn)) == ["mine"]


def test_without_planning_the_message_is_the_one_goal_and_no_plan_is_asked_for(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api().start(say_done(key), planning="none")
    plan = _plan(run)
    assert [each["prompt"] for each in plan["goals"]] == [say_done(key)]
    assert plan["note"] is None
    assert [call.must_call for call in models.calls(key=key)] == [None]


def test_a_stop_while_planning_waits_for_a_busy_server_makes_no_goal(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("busy", retry_after_s=40, on="plan", key=key), planning="auto")
    run.wait_event("retry")
    assert run.cancel(wait_ms=30_000)["parked"] is True
    assert run.goals(run.first_turn) == {}
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


def _json(value: object) -> str:
    return repr(value).replace("'", '"').replace(" ", "")
