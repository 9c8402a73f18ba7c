"""Whatever a model answers when it is asked for a plan, there is one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.plan.plan_spec import PlanSpec, check_plan
from core.plan.planner import MAX_PLANNED_GOALS, TOOL, TOOL_NAME, read_plan

MESSAGE = "write a poem about trees"


def _goal(goal_id: str, *depends_on: str) -> dict[str, Any]:
    return {"id": goal_id, "title": goal_id, "prompt": f"do {goal_id}", "depends_on": list(depends_on)}


def _assert_one_goal(spec: PlanSpec, remark: str | None, message: str = MESSAGE) -> None:
    assert [goal.prompt for goal in spec.goals] == [message]
    assert remark is not None
    assert remark.startswith("Working on this as one goal: ")
    assert remark.endswith(".")
    assert "\n" not in remark


def test_a_good_plan_is_taken_as_it_is_without_a_remark() -> None:
    spec, remark = read_plan(json.dumps({"goals": [_goal("a"), _goal("b", "a")]}), MESSAGE)
    assert [goal.id for goal in spec.goals] == ["a", "b"]
    assert spec.goals[1].depends_on == ["a"]
    assert remark is None


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        "",
        "no JSON",
        '{"goals": [',
        "[" * 100_000,
        '{"goals":[' * 3_000,
        "null",
        "[]",
        "{}",
        '{"goals": []}',
        '{"goals": "a"}',
        json.dumps({"goals": [_goal("a", "b"), _goal("b", "a")]}),
        json.dumps({"goals": [_goal("a", "nobody")]}),
        json.dumps({"goals": [_goal("a"), _goal("a")]}),
        json.dumps({"goals": [{"id": "a", "title": "no prompt", "depends_on": []}]}),
        json.dumps({"goals": [_goal(str(n)) for n in range(MAX_PLANNED_GOALS + 1)]}),
        json.dumps({"goals": [{**_goal("a"), "agent": 5}]}),
        json.dumps({"goals": [{**_goal("a"), "agent": "nobody"}]}),
    ],
)
def test_anything_else_is_worked_on_as_one_goal_and_says_why(arguments: str | None) -> None:
    _assert_one_goal(*read_plan(arguments, MESSAGE))


@given(st.text(max_size=100), st.text(max_size=50))
def test_any_text_of_a_model_makes_a_plan(arguments: str, message: str) -> None:
    spec, _ = read_plan(arguments, message)
    assert len(spec.goals) >= 1


def test_characters_that_cannot_be_kept_do_not_come_in_through_a_plan() -> None:
    told = [{**_goal("a"), "prompt": "do \0 and \ud83d", "title": "\0"}]

    spec, remark = read_plan(json.dumps({"goals": told}), MESSAGE)
    assert (spec.goals[0].prompt, spec.goals[0].title, remark) == ("do \ufffd and \ufffd", "\ufffd", None)
    _, remark = read_plan(json.dumps({"goals": [{**_goal("a"), "\0\ud83d": 1}]}), MESSAGE)
    assert not {"\0", "\ud83d"} & set(remark or "")


def test_as_many_goals_as_are_allowed_are_taken() -> None:
    spec, remark = read_plan(json.dumps({"goals": [_goal(str(n)) for n in range(MAX_PLANNED_GOALS)]}), MESSAGE)
    assert check_plan(spec) == MAX_PLANNED_GOALS
    assert remark is None


def test_the_tool_that_the_model_must_call_asks_for_what_is_read() -> None:
    function = TOOL["function"]
    assert function["name"] == TOOL_NAME
    fields = function["parameters"]["properties"]["goals"]["items"]["properties"]
    assert set(fields) == {"id", "title", "prompt", "depends_on"}
    assert function["parameters"]["properties"]["goals"]["maxItems"] == MAX_PLANNED_GOALS
