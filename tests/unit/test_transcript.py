"""The transcript: what is written at a turn's end, what is read back, and what a model is asked with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cancellation import Cause, CauseWord
from core.engine.call_pool import CallPool
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.session.records import StopOrder, TurnOutcome
from core.session.said import placeholder, said_by, turn_messages
from core.session.transcript import read_transcript, request_messages, results_for
from core.session.turn_end import end_turn
from core.session.turns import begin_turn
from tests.support.core_kit import Store, build_plan, open_store, send, what_was_said


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


def _plan(*goals: dict[str, Any]) -> tuple[Plan, dict[str, Goal]]:
    return build_plan({"goals": list(goals)}, CallPool(1), lambda _: None)


def _leaf(goal_id: str, *depends_on: str) -> dict[str, Any]:
    return {"id": goal_id, "title": f"title of {goal_id}", "prompt": "p", "depends_on": list(depends_on)}


def _done(goal: Goal, result: str | None) -> None:
    goal.set_goal_status(GoalStatus.IN_PROGRESS)
    goal.set_goal_status(GoalStatus.COMPLETED, result=result)


# -- writing --------------------------------------------------------------------------------------


def test_the_turns_message_holds_the_texts_of_its_goals_in_plan_order_whole_or_as_far_as_they_came() -> None:
    plan, goals = _plan(_leaf("a"), {"id": "i", "goals": [_leaf("b"), _leaf("c")]}, _leaf("d"))
    _done(goals["d"], "whole")
    for text in ("cut ", "of"):
        goals["a"].rounds.say(text)
    goals["c"].rounds.say("also cut")
    assert turn_messages(said_by(plan), "cancelled", "user") == [
        {"role": "assistant", "content": "cut of\n\nalso cut\n\nwhole", "stopped": True, "cause": "user"}
    ]


@pytest.mark.parametrize(
    ("state", "cause", "expected"),
    [
        ("completed", None, {"content": "[completed before any text]"}),
        ("failed", None, {"content": "[failed before any text]", "failed": True}),
        ("cancelled", "user", {"content": "[stopped by the user before any text]", "stopped": True, "cause": "user"}),
        (
            "cancelled",
            "deadline",
            {"content": "[stopped: deadline before any text]", "stopped": True, "cause": "deadline"},
        ),
    ],
)
def test_where_nothing_was_said_a_placeholder_stands(state: str, cause: str | None, expected: dict[str, Any]) -> None:
    assert turn_messages(said_by(None), state, cause) == [{"role": "assistant", **expected}]
    plan, _ = _plan(_leaf("a"))
    assert turn_messages(said_by(plan), state, cause) == [{"role": "assistant", **expected}]


@pytest.mark.parametrize("word", list(CauseWord))
def test_only_a_users_stop_is_told_as_the_users(word: CauseWord) -> None:
    assert ("by the user" in placeholder(word)) == (word is CauseWord.USER)
    stopped = turn_messages(what_was_said("some text"), "cancelled", word)
    (system, *_) = request_messages("", [{"role": "user", "content": "x"}, *stopped], "next")
    assert ("(by the user)" in system["content"]) == (word is CauseWord.USER)


def test_a_goals_text_is_its_result_once_it_has_one() -> None:
    plan, goals = _plan(_leaf("a"), _leaf("b"))
    goals["a"].rounds.say("streamed")
    assert [each.text for each in said_by(plan)] == ["streamed", ""]
    _done(goals["a"], "result")
    goals["b"].rounds.say("streamed")
    _done(goals["b"], None)
    assert [each.text for each in said_by(plan)] == ["result", "streamed"]


# -- asking ------------------------------------------------------------------------------------------


def test_the_prompt_is_the_last_user_message_verbatim_and_instructions_come_first() -> None:
    assert request_messages("be brief", [], " as it is \n") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": " as it is \n"},
    ]
    assert request_messages("", [], "x") == [{"role": "user", "content": "x"}]


def test_a_stop_note_is_given_once_and_only_right_after_the_stop() -> None:
    said = turn_messages(what_was_said("half"), "cancelled", "user")
    stopped: list[dict[str, Any]] = [{"role": "user", "content": "q"}, *said]
    notes = [m for m in request_messages("", stopped, "next") if "was stopped" in str(m["content"])]
    assert len(notes) == 1
    assert notes[0]["role"] == "system"
    later = [*stopped, {"role": "user", "content": "next"}, {"role": "assistant", "content": "done"}]
    assert not any("was stopped" in str(m["content"]) for m in request_messages("", later, "more"))


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ({"cause": "user"}, "was stopped (by the user) before it"),
        ({"cause": "deadline"}, "was stopped (deadline) before it"),
        ({}, "was stopped before it"), ({"cause": None}, "was stopped before it"),
    ],
)  # fmt: skip
def test_a_stop_note_says_why_if_that_is_known(mark: dict[str, Any], told: str) -> None:
    stopped = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "half", "stopped": True, **mark}]
    assert told in request_messages("", stopped, "next")[0]["content"]


def test_nothing_of_ours_goes_to_the_model_with_the_history() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "q", "turn_id": "t_1"},
        {"role": "assistant", "content": "half", "turn_id": "t_1", "stopped": True, "cause": "user"},
    ]
    assert all(set(message) == {"role", "content"} for message in request_messages("i", history, "next"))


@given(st.lists(st.tuples(st.text(), st.lists(st.text(), max_size=3), st.sampled_from(["completed", "cancelled"]))))
def test_whatever_was_said_roles_alternate_and_no_message_is_empty(turns: list[tuple[str, list[str], str]]) -> None:
    history: list[dict[str, Any]] = []
    for question, said, state in turns:
        history.append({"role": "user", "content": question})
        history += turn_messages(what_was_said(*said), state, "user" if state == "cancelled" else None)
    asked = request_messages("be brief", history, "now")
    assert [message["role"] for message in asked] == ["system", *["user", "assistant"] * len(turns), "user"]
    assert all(message["content"] for message in asked if message["role"] == "assistant")


def test_a_goal_sees_the_results_it_waited_for_those_of_what_is_around_it_too_each_once() -> None:
    inner = {"id": "i", "goals": [_leaf("c", "a"), _leaf("d")], "depends_on": ["x"]}
    plan, goals = _plan(_leaf("a"), {"id": "x", "goals": [_leaf("b1"), _leaf("b2"), _leaf("a2")]}, inner)
    for name, result in (("a", "A"), ("b1", "B1"), ("b2", None), ("a2", "A2")):
        _done(goals[name], result)
    assert results_for(goals["c"]) == [("title of a", "A"), ("title of b1", "B1"), ("title of a2", "A2")]
    assert results_for(goals["d"]) == [("title of b1", "B1"), ("title of a2", "A2")]
    assert results_for(goals["a"]) == []
    assert plan.plan_goal.status is GoalStatus.NOT_STARTED


def test_the_message_and_the_results_are_told_to_a_goal_of_a_larger_plan() -> None:
    (system, user) = request_messages("", [], "part", "the whole", [("one", "1")])
    assert "the whole" in system["content"]
    assert "“one”" in system["content"]
    assert user["content"] == "part"


# -- reading ------------------------------------------------------------------------------------------


def test_the_transcript_is_each_turns_question_and_answer_over_all_runs_of_the_session(store: Store) -> None:
    start = store.start(input="one")
    run_id = start.run_id
    ends = [("completed", None, "1"), ("cancelled", StopOrder(Cause(CauseWord.USER)), "2"), ("failed", None, "")]
    for number, (state, order, text) in enumerate(ends):
        store.decide(lambda tx: begin_turn(tx, run_id))
        said = turn_messages(what_was_said(text), state, "user" if order else None)
        outcome = TurnOutcome(state, said, order, [])
        store.decide(lambda tx, s=start, o=outcome: end_turn(tx, run_id, s.turn_id, o))  # type: ignore[misc]
        following = store.decide(lambda tx, n=number: send(tx, run_id, f"q{n}")[1])  # type: ignore[misc]
        assert following is not None
        start = following
    with store.database.connect() as connection:
        whole = read_transcript(connection, "s1")
        before = read_transcript(connection, "s1", before=start.turn_id)
        assert read_transcript(connection, "unknown") == []
    assert [(each["role"], each["content"]) for each in whole] == [
        ("user", "one"), ("assistant", "1"), ("user", "q0"), ("assistant", "2"),
        ("user", "q1"), ("assistant", "[failed before any text]"), ("user", "q2"),
    ]  # fmt: skip
    assert before == whole[:-1]
    assert whole[3] == {
        "role": "assistant", "content": "2", "stopped": True, "cause": "user", "turn_id": whole[3]["turn_id"]
    }  # fmt: skip
    assert whole[3]["turn_id"] == whole[2]["turn_id"] != whole[4]["turn_id"]
    assert json.dumps(whole)
