"""Plans as they are handed in: what may run, and what is refused with which words."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.errors import InvalidPlan
from core.plan.plan_spec import MAX_DEPTH, GoalSpec, PlanSpec, check_plan, spec_from_model
from tests.support.core_plans import specs


def _goal(goal_id: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    return {"id": goal_id, "prompt": "do it", "depends_on": list(depends_on), **fields}


def _inner(goal_id: str, *goals: dict[str, Any], depends_on: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"id": goal_id, "goals": list(goals), "depends_on": list(depends_on)}


def _check(*goals: dict[str, Any], **limits: Any) -> int:
    return check_plan(PlanSpec.model_validate({"goals": list(goals)}), **limits)


def _refusal(*goals: dict[str, Any], **limits: Any) -> str:
    with pytest.raises(InvalidPlan) as caught:
        _check(*goals, **limits)
    assert caught.value.status == 422
    assert caught.value.extra == {"field": "plan.goals"}
    return caught.value.detail


def test_the_number_of_goals_counts_inner_ones_too() -> None:
    assert _check(_goal("a"), _inner("b", _goal("c"), _inner("d", _goal("e", "c"), depends_on=("c",)))) == 5


def test_an_id_may_be_used_once_in_the_whole_tree() -> None:
    assert "'a'" in _refusal(_goal("a"), _inner("b", _goal("a")))


def test_an_unknown_dependency_is_named() -> None:
    assert _refusal(_goal("a", "nobody")) == "goal 'a' depends on unknown 'nobody'"


@pytest.mark.parametrize(
    "goals",
    [
        [_goal("a", "a")],
        [_goal("a", "b"), _goal("b", "c"), _goal("c", "a")],
        [_inner("a", _goal("b", "a"))],
        [_inner("a", _goal("b"), depends_on=("b",))],
        [_inner("a", _inner("b", _goal("c")), depends_on=("c",))],
        [_inner("a", _goal("b", "y")), _inner("x", _goal("y"), depends_on=("a",))],
        [_inner("a", _goal("b", "y")), _inner("x", _goal("y", "b"))],
    ],
    ids=["itself", "three", "its parent", "its child", "its grandchild", "across trees", "two leaves"],
)
def test_goals_that_wait_for_each_other_are_refused_by_name(goals: list[dict[str, Any]]) -> None:
    assert re.fullmatch(r"goals wait for each other: [a-z]( -> [a-z])*", _refusal(*goals))


def test_goals_may_depend_across_the_tree_where_nothing_waits_for_itself() -> None:
    assert _check(_inner("a", _goal("b"), _goal("c", "b")), _inner("x", _goal("y", "c", "b"), depends_on=("b",))) == 5


def test_a_goal_has_a_prompt_or_children_and_not_both() -> None:
    assert "'a' needs a prompt, a tool or children" in _refusal({"id": "a"})
    assert "'a' needs a prompt, a tool or children" in _refusal({"id": "a", "prompt": "p", "goals": [_goal("b")]})


def test_a_plan_may_be_a_hundred_deep_and_no_deeper() -> None:
    def nested(depth: int) -> PlanSpec:
        goal = GoalSpec(id=f"g{depth}", prompt="p")
        for level in range(depth - 1, 0, -1):
            goal = GoalSpec(id=f"g{level}", goals=[goal])
        return PlanSpec(goals=[goal])

    assert check_plan(nested(MAX_DEPTH)) == MAX_DEPTH
    with pytest.raises(InvalidPlan, match="more than 100 deep"):
        check_plan(nested(MAX_DEPTH + 1))


def test_more_goals_than_the_limit_are_refused_with_both_numbers() -> None:
    goals = [_goal(str(n)) for n in range(4)]
    assert _check(*goals, max_goals=4) == 4
    assert _refusal(*goals, max_goals=3) == "the plan has 4 goals; at most 3 are allowed"


def test_an_agent_that_is_not_configured_is_refused() -> None:
    assert _check(_goal("a", agent="writer"), agents={"writer": {}}) == 1
    assert "unknown agent" in _refusal(_goal("a", agent="nobody"), agents={"writer": {}})


@pytest.mark.parametrize(
    "plan",
    [
        {"goals": []},
        {},
        {"goals": [{"id": "a b", "prompt": "p"}]},
        {"goals": [{"id": "a\n", "prompt": "p"}]},
        {"goals": [{"id": "", "prompt": "p"}]},
        {"goals": [{"id": "x" * 129, "prompt": "p"}]},
        {"goals": [{"id": "a", "prompt": ""}]},
        {"goals": [{"id": "a", "prompt": "p", "colour": "red"}]},
        {"goals": [{"id": "a", "prompt": "p"}], "colour": "red"},
        {"goals": [{"id": 1, "prompt": "p"}]},
    ],
)
def test_a_wrong_shape_or_an_unknown_field_is_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PlanSpec.model_validate(plan)


@given(st.text(max_size=200))
def test_any_message_makes_a_plan_of_one_goal_with_the_message_verbatim(message: str) -> None:
    spec = PlanSpec.single(message)
    assert [goal.prompt for goal in spec.goals] == [message]
    assert 1 <= len(spec.goals[0].title) <= 80
    assert "\n" not in spec.goals[0].title


def test_ten_thousand_goals_in_a_chain_are_checked_without_recursion() -> None:
    chain = [_goal("0"), *(_goal(str(n), str(n - 1)) for n in range(1, 10_000))]
    assert _check(*chain) == 10_000
    chain[0]["depends_on"] = ["9999"]
    assert len(_refusal(*chain)) < 500


@settings(max_examples=60, deadline=None)
@given(specs())
def test_a_checked_plan_survives_json(spec: PlanSpec) -> None:
    again = spec_from_model(json.loads(spec.model_dump_json()))
    assert again == spec
    assert check_plan(again) == check_plan(spec)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["goals", "id", "prompt", "title", "depends_on", "x"]), inner, max_size=4),
        max_leaves=12,
    )
)
def test_whatever_a_model_hands_in_is_a_plan_or_refused_as_one(data: object) -> None:
    try:
        spec = spec_from_model(data)
    except InvalidPlan as error:
        assert "\n" not in error.detail
        return
    assert isinstance(spec, PlanSpec)


def test_a_models_plan_that_is_nested_beyond_reason_is_refused_and_crashes_nothing() -> None:
    data: dict[str, Any] = {"id": "g", "prompt": "p"}
    for level in range(5_000):
        data = {"id": f"g{level}", "goals": [data]}
    with pytest.raises(InvalidPlan):
        spec_from_model({"goals": [data]})
