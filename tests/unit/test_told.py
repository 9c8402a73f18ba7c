"""Messages of the user among a goal's rounds: where they stand, that no two of a role meet, and the log's fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.agent.rounds import Rounds
from core.agent.told import NOT_ANSWERED, Told, told_in_history, told_messages
from core.session.said import Said, turn_messages
from de2generator.strict import find_fault

CUT = "[stopped: redirect before any text]"
ASKED = {"role": "user", "content": "the prompt"}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def _told(text: str, is_cut: bool = False) -> Told:
    return Told(f"id of {text}", text, is_cut)


def _with_call(text: str = "let me see", result: str | None = "done") -> Rounds:
    rounds = Rounds()
    rounds.say(text)
    rounds.call("c1", "look", "{}")
    if result is not None:
        rounds.answer("c1", result, is_error=False)
    return rounds


# -- alone -----------------------------------------------------------------------------------------


def test_several_messages_are_one_and_nothing_is_nothing() -> None:
    assert told_messages([_told("a"), _told("b")], follows_user=False) == [_user("a\n\nb")]
    assert told_messages([], follows_user=True) == told_in_history([]) == []


@pytest.mark.parametrize(("is_cut", "between"), [(False, NOT_ANSWERED), (True, CUT)])
def test_behind_a_user_stands_an_assistant_that_says_why_there_was_no_answer(is_cut: bool, between: str) -> None:
    told = [_told("a"), _told("b", is_cut)]
    assert told_messages(told, follows_user=True) == [_assistant(between), _user("a\n\nb")]


def test_before_a_prompt_it_is_followed_by_an_assistant() -> None:
    assert told_in_history([_told("a")]) == [_user("a"), _assistant(NOT_ANSWERED)]


# -- among rounds -------------------------------------------------------------------------------------


def test_what_is_told_after_a_tool_round_stands_behind_the_result_and_is_asked_with() -> None:
    rounds = _with_call()
    rounds.tell(_told("and now"), rounds.count)
    assert [message["role"] for message in rounds.messages()] == ["assistant", "tool", "user"]
    assert rounds.messages() == rounds.messages_to_ask()
    rounds.say("yes")
    assert rounds.messages()[-2:] == [_user("and now"), _assistant("yes")]


def test_what_the_model_says_behind_a_cut_is_a_new_round() -> None:
    rounds = Rounds()
    rounds.say("half of")
    rounds.tell(_told("rather this", is_cut=True), 1)
    rounds.say("this")
    assert rounds.messages() == [_assistant("half of"), _user("rather this"), _assistant("this")]
    assert rounds.text == "half of\n\nthis"


def test_a_call_behind_a_cut_is_a_new_round_too() -> None:
    rounds = Rounds()
    rounds.say("half of")
    rounds.tell(_told("rather this", is_cut=True), 1)
    rounds.call("c1", "look", "{}")
    assert [(message["role"], message["content"]) for message in rounds.messages()[:3]] == [
        ("assistant", "half of"), ("user", "rather this"), ("assistant", ""),
    ]  # fmt: skip


def test_an_answer_in_flight_that_nothing_cut_off_stays_one_round_and_its_request_has_not_what_came_meanwhile() -> None:
    rounds = Rounds()
    rounds.tell(_told("meanwhile"), 1)
    assert rounds.messages_to_ask() == []
    rounds.say("one")
    rounds.say(" answer")
    assert rounds.messages() == [_assistant("one answer"), _user("meanwhile")]
    assert rounds.messages_to_ask() == rounds.messages()


def test_an_answer_whose_calls_are_not_noted_yet_keeps_them_before_what_came_meanwhile() -> None:
    rounds = Rounds()
    rounds.tell(_told("meanwhile"), 1)
    rounds.call("c1", "look", "{}")
    rounds.answer("c1", "done", is_error=False)
    assert [message["role"] for message in rounds.messages()] == ["assistant", "tool", "user"]


def test_a_request_that_is_made_again_has_what_came_while_the_one_before_was_in_flight() -> None:
    rounds = Rounds()
    rounds.tell(_told("meanwhile"), 1)
    rounds.ask_again()
    assert rounds.messages_to_ask() == [_assistant(NOT_ANSWERED), _user("meanwhile")]
    rounds.say("yes")
    assert rounds.messages()[-1] == _assistant("yes")


def test_a_cut_takes_what_came_before_it_along_in_order() -> None:
    rounds = Rounds()
    rounds.tell(_told("first"), 1)
    rounds.tell(_told("second", is_cut=True), 0)
    assert rounds.messages_to_ask() == [_assistant(CUT), _user("first\n\nsecond")]


def test_what_was_cut_off_is_not_asked_with_if_the_message_that_cut_it_off_did_not_come() -> None:
    rounds = Rounds()
    rounds.say("half of")
    rounds.tell(_told("rather this", is_cut=True), 1)
    rounds.untell("id of rather this")
    assert rounds.messages_to_ask() == []
    assert rounds.messages() == [_assistant("half of")]


def test_a_tool_round_is_asked_with_whatever_was_taken_back_behind_it() -> None:
    rounds = _with_call()
    rounds.tell(_told("no"), 1)
    rounds.untell("id of no")
    assert [message["role"] for message in rounds.messages_to_ask()] == ["assistant", "tool"]


def test_of_several_only_that_one_is_taken_back() -> None:
    rounds = Rounds()
    rounds.tell(_told("a"), 0)
    rounds.tell(_told("b"), 0)
    rounds.untell("id of a")
    assert (rounds.has_told("id of a"), rounds.has_told("id of b")) == (False, True)
    assert rounds.messages()[-1] == _user("b")


# -- a turn's messages ------------------------------------------------------------------------------------


def test_a_single_goal_keeps_the_place_of_what_it_met_and_the_rest_comes_first() -> None:
    rounds = Rounds()
    rounds.say("half")
    rounds.tell(_told("met", is_cut=True), 1)
    rounds.say("whole")
    messages = turn_messages([Said("g", rounds, "whole")], "completed", None, [_told("planned with"), _told("met")])
    assert messages == [
        _assistant(NOT_ANSWERED), _user("planned with"), _assistant("half"), _user("met"), _assistant("whole"),
    ]  # fmt: skip


def test_of_several_goals_what_was_told_comes_before_all_that_they_said() -> None:
    said = [Said("a", Rounds(), "one"), Said("b", Rounds(), "two")]
    assert turn_messages(said, "completed", None, [_told("x")]) == [
        _assistant(NOT_ANSWERED), _user("x"), _assistant("one\n\ntwo"),
    ]  # fmt: skip


@pytest.mark.parametrize(("state", "cause", "end"), [
    ("cancelled", "user", "[stopped by the user before any text]"),
    ("cancelled", "deadline", "[stopped: deadline before any text]"), ("failed", None, "[failed before any text]"),
])  # fmt: skip
def test_a_turn_that_ends_before_it_answers_what_was_told_says_so_behind_it(
    state: str, cause: str | None, end: str
) -> None:
    rounds = Rounds()
    rounds.tell(_told("too late"), 0)
    messages = turn_messages([Said("g", rounds)], state, cause, [_told("too late")])
    assert [message["content"] for message in messages] == [NOT_ANSWERED, "too late", end]
    assert messages[-1].get("stopped" if state == "cancelled" else "failed") is True


# -- anything --------------------------------------------------------------------------------------------------

Step = Callable[[Rounds, int], None]


def _tell_now(is_cut: bool) -> Step:
    return lambda rounds, number: rounds.tell(_told(f"told {number}", is_cut), rounds.count)


def _call(rounds: Rounds, number: int) -> None:
    rounds.call(f"c{number}", "look", "{}")
    rounds.answer(f"c{number}", "done", is_error=False)


STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.sampled_from([
        lambda rounds, number: rounds.say(f"text {number}"), lambda rounds, _: rounds.say(" "), _call, _call,
        _tell_now(False), _tell_now(True),
        lambda rounds, number: rounds.tell(_told(f"meanwhile {number}"), rounds.count + 1),
        lambda rounds, _: rounds.ask_again(),
        lambda rounds, number: rounds.untell(f"id of told {number - 1}"),
    ]), max_size=12,
)  # fmt: skip


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_a_strict_server_takes_the_request_and_the_transcript(steps: list[Step]) -> None:
    rounds = Rounds()
    for number, step in enumerate(steps):
        step(rounds, number)
        assert find_fault([ASKED, *rounds.messages_to_ask()]) is None
        said = turn_messages([Said("g", rounds)], "cancelled", "user", [])
        assert find_fault([ASKED, *said, _user("next")]) is None


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens_each_message_stands_there_once_unless_it_was_taken_back(steps: list[Step]) -> None:
    rounds = Rounds()
    for number, step in enumerate(steps):
        step(rounds, number)
    words = [line for each in rounds.messages() if each["role"] == "user" for line in each["content"].split("\n\n")]
    for number in range(len(steps)):
        for text in (f"told {number}", f"meanwhile {number}"):
            assert words.count(text) == rounds.has_told(f"id of {text}")
