"""The delegate tool by itself: what it asks for, what it shows of the goals, and what a stop makes of it."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from core.call import CallKind, Outcome
from core.cancellation import Level, Scope
from core.tool.delegate import Delegate
from core.tool.output import SHOWN_BYTES
from core.tool.tool import Delegated, Stops, ToolFailed, ToolRun
from tests.support.causes import USER

GOALS = [{"id": "a", "prompt": "look"}, {"id": "b", "prompt": "tell", "depends_on": ["a"]}]


def _run(*made: Delegated, is_stopped: bool = False) -> tuple[ToolRun, list[Any]]:
    """A call whose delegation comes to these goals, and what it was asked for."""
    scope = Scope.root().open(Level.TURN, "t").open(Level.CALL, "delegate")
    run = ToolRun(scope, "answer", "delegate", lambda stream, text: None, kind=CallKind.SUB_RUN)
    asked: list[Any] = []

    def delegate(goals: list[dict[str, Any]], max_depth: int, max_goals: int) -> list[Delegated]:
        asked.append((goals, max_depth, max_goals))
        if is_stopped:
            scope.cancel(USER)
        return list(made)

    run.delegate = delegate
    return run, asked


def test_it_hands_the_goals_on_with_its_bounds_and_shows_what_each_came_to() -> None:
    run, asked = _run(
        Delegated("a", "COMPLETED", "Ü 🙂"),
        Delegated("b", "CANCELLED", "half", cause="user"),
        Delegated("c", "FAILED", "", error="the model broke"),
        Delegated("d", "CANCELLED", "", cause="dependency"),
    )
    result = Delegate(2, 32).run({"goals": GOALS}, run)
    assert asked == [(GOALS, 2, 32)]
    assert json.loads(result.content) == {
        "goals": [
            {"id": "a", "status": "COMPLETED", "result": "Ü 🙂"},
            {"id": "b", "status": "CANCELLED", "partial": "half", "cause": "user"},
            {"id": "c", "status": "FAILED", "error": "the model broke"},
            {"id": "d", "status": "CANCELLED", "cause": "dependency"},
        ]
    }
    assert "Ü 🙂" in result.content  # a model reads it as it is
    assert (result.is_error, run.outcome) == (False, None)


@pytest.mark.parametrize("status", ["CANCELLED", "FAILED"])
def test_it_is_an_error_if_no_goal_was_completed(status: str) -> None:
    run, _ = _run(Delegated("a", status, "some"), Delegated("b", status, ""))
    assert Delegate(2, 32).run({"goals": GOALS}, run).is_error is True


def test_after_a_stop_it_returns_what_there_is_and_says_that_its_goals_were_stopped() -> None:
    run, _ = _run(Delegated("a", "CANCELLED", "half", cause="user"), is_stopped=True)
    result = Delegate(2, 32).run({"goals": GOALS}, run)
    assert json.loads(result.content)["goals"][0]["partial"] == "half"
    assert run.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("count", [1, 4, 32])
def test_long_texts_share_the_room_and_stay_whole_json(count: int) -> None:
    run, _ = _run(*(Delegated(f"g{number}", "COMPLETED", "é" * 2 * SHOWN_BYTES) for number in range(count)))
    content = Delegate(2, 32).run({"goals": GOALS}, run).content
    assert len(json.loads(content)["goals"]) == count
    assert len(content.encode()) < max(SHOWN_BYTES, count * 1024) + count * 200


def test_what_cannot_be_delegated_is_a_failure_of_the_tool() -> None:
    scope = Scope.root().open(Level.CALL, "delegate")
    run = ToolRun(scope, None, "delegate", lambda stream, text: None)
    with pytest.raises(ToolFailed):
        Delegate(2, 32).run({"goals": GOALS}, run)


def test_it_says_how_it_is_stopped_and_takes_no_goal_that_is_not_one() -> None:
    tool = Delegate(2, 3)
    assert (tool.kind, tool.stops) == (CallKind.SUB_RUN, Stops.IS_ASKED)
    takes = Draft202012Validator(tool.parameters)
    Draft202012Validator.check_schema(tool.parameters)
    assert takes.is_valid({"goals": GOALS})
    assert takes.is_valid({"goals": [{"id": "a", "prompt": "p", "title": "t", "depends_on": []}]})
    for bad in (
        [],
        GOALS * 2,
        [{"id": "a"}],
        [{"prompt": "p"}],
        [{"id": "a", "prompt": ""}],
        [GOALS[0] | {"goals": GOALS}],
    ):
        assert not takes.is_valid({"goals": bad}), bad
    assert not takes.is_valid({"goals": GOALS, "more": 1})


def test_the_model_is_told_which_agents_it_may_name_if_there_are_several() -> None:
    def takes(agent: str, *agents: str) -> bool:
        schema = Draft202012Validator(Delegate(2, 3, agents).parameters)
        return schema.is_valid({"goals": [{"id": "a", "prompt": "p", "agent": agent}]})

    assert takes("writer", "default", "writer")
    assert not takes("nobody", "default", "writer")
    assert not takes("default", "default")  # the only one need not be named
