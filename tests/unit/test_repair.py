"""Repair of a damaged history: each rule by example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.session.repair import EMPTY_MESSAGE, NO_ANSWER, NO_BEGINNING, UNKNOWN_TOOL, repair
from tests.support.repair_kit import Message, called, no_result, repaired, result_of, said, user

# -- calls and results ----------------------------------------------------------------------------


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    history = repaired([user(), said("", called("a"), called("b")), result_of("b"), user("next")])
    assert history[:4] == [user(), said("", called("a"), called("b")), no_result("a"), result_of("b")]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_result_without_a_call_is_left_out_wherever_it_stands(place: int) -> None:
    valid = [user(), said("a")]
    assert repaired([*valid[:place], result_of("nobody"), *valid[place:]]) == valid


def test_of_two_results_for_a_call_the_first_is_kept() -> None:
    broken = [user(), said("", called("a")), result_of("a", "1"), result_of("a", "2"), said("x"), result_of("a", "3")]
    assert repaired(broken) == [user(), said("", called("a")), result_of("a", "1"), said("x")]


def test_results_come_in_the_order_of_the_calls() -> None:
    calls = said("", called("a"), called("b"), called("c"))
    results = [result_of("a", "1"), result_of("b", "2"), result_of("c", "3")]
    assert repaired([user(), calls, *reversed(results)]) == [user(), calls, *results]


def test_a_result_that_came_after_a_user_message_goes_back_to_its_call() -> None:
    broken = [user("1"), said("", called("a")), user("2"), result_of("a"), said("x")]
    assert repaired(broken) == [user("1"), said("", called("a")), result_of("a"), user("2"), said("x")]


def test_a_result_that_stands_before_its_call_goes_after_it() -> None:
    broken = [result_of("a"), user(), said("", called("a")), said("x")]
    assert repaired(broken) == [user(), said("", called("a")), result_of("a"), said("x")]


def test_a_result_keeps_its_further_keys_where_it_is_moved() -> None:
    result = result_of("a", "", is_error=True, turn_id="t_1")
    history = repaired([result, user(), said("", called("a"))])
    assert history == [user(), said("", called("a")), result]


# -- ids ------------------------------------------------------------------------------------------


def test_ids_that_come_again_in_each_round_are_made_unique_and_results_stay_with_their_calls() -> None:
    broken = [
        *(user("1"), said("", called("call_0"), called("call_1")), result_of("call_0", "a"), result_of("call_1", "b")),
        *(said("", called("call_0")), result_of("call_0", "c"), said("x")),
        *(user("2"), said("", called("call_0")), result_of("call_0", "d")),
    ]
    assert repaired(broken) == [
        *(user("1"), said("", called("call_0"), called("call_1")), result_of("call_0", "a"), result_of("call_1", "b")),
        *(said("", called("call_0_2")), result_of("call_0_2", "c"), said("x")),
        *(user("2"), said("", called("call_0_3")), result_of("call_0_3", "d")),
    ]


def test_of_two_rounds_with_the_same_id_the_later_result_belongs_to_the_nearer_call() -> None:
    broken = [user(), said("", called("c")), user("2"), said("", called("c")), result_of("c", "late")]
    history = repaired(broken)
    assert history[1:3] == [said("", called("c")), no_result("c")]
    assert history[4:] == [said("", called("c_2")), result_of("c_2", "late")]


def test_a_result_just_before_its_call_is_not_lost_to_an_answered_call_with_the_same_id() -> None:
    broken = [user(), said("", called("c")), result_of("c", "1"), result_of("c", "2"), said("", called("c"))]
    results = [message for message in repaired(broken) if message["role"] == "tool"]
    assert results == [result_of("c", "1"), result_of("c_2", "2")]


def test_a_result_written_twice_answers_no_later_call_with_the_same_id() -> None:
    broken = [user(), said("", called("c")), result_of("c", "1"), result_of("c", "1"), said("", called("c"))]
    results = [message for message in repaired(broken) if message["role"] == "tool"]
    assert results == [result_of("c", "1"), no_result("c_2")]


def test_a_result_written_twice_before_its_call_answers_that_call_only() -> None:
    broken = [user(), result_of("c", "1"), result_of("c", "1"), said("", called("c")), said("", called("c"))]
    results = [message for message in repaired(broken) if message["role"] == "tool"]
    assert results == [result_of("c", "1"), no_result("c_2")]


def test_a_result_written_twice_does_not_take_the_place_of_a_later_calls_own() -> None:
    rounds = [
        *(said("", called("c")), result_of("c", "1"), result_of("c", "twice")),
        *(said("", called("c")), result_of("c", "2")),
    ]
    results = [message for message in repaired([user(), *rounds]) if message["role"] == "tool"]
    assert results == [result_of("c", "1"), result_of("c_2", "2")]


def test_calls_of_one_message_with_the_same_id_are_answered_in_order() -> None:
    calls = said("", called("c", name="one"), called("c", name="two"))
    broken = [user(), calls, result_of("c", "1"), result_of("c", "2")]
    assert repaired(broken) == [
        user(),
        said("", called("c", name="one"), called("c_2", name="two")),
        result_of("c", "1"),
        result_of("c_2", "2"),
    ]


@pytest.mark.parametrize("missing", [None, ""])
def test_calls_without_ids_get_some_and_their_results_follow(missing: str | None) -> None:
    broken = [user(), said("", called(missing), called(missing)), result_of(missing, "1"), result_of(missing, "2")]
    without = [{key: value for key, value in message.items() if key != "tool_call_id"} for message in broken]
    wanted = [user(), said("", called("call_1"), called("call_2")), result_of("call_1", "1"), result_of("call_2", "2")]
    assert repaired(broken) == wanted
    assert repaired(without) == wanted


def test_a_made_id_is_never_one_that_is_taken() -> None:
    ids = ["c_2", "c", "c", "call_1", "", "c_2", "c_3"]
    history = repaired([user(), said("", *(called(each) for each in ids))])
    made = [call["id"] for call in history[1]["tool_calls"]]
    assert len(set(made)) == len(ids)
    assert made[:2] == ["c_2", "c"]


def test_what_comes_later_does_not_change_the_ids_given_earlier() -> None:
    rounds = [user(), *([said("", called("c")), result_of("c")] * 3), said("", called("c_2")), result_of("c_2")]
    for length in range(1, len(rounds), 2):
        assert repair(rounds[:length])[:length] == repair(rounds)[:length]


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "null", "rm -rf", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_json_object_are_wrapped_in_one(raw: str) -> None:
    history = repaired([user(), said("", called("a", raw)), result_of("a")])
    assert json.loads(history[1]["tool_calls"][0]["function"]["arguments"]) == {"invalid_arguments": raw}


@pytest.mark.parametrize("none", ["", "  ", None])
def test_no_arguments_at_all_are_an_empty_object(none: str | None) -> None:
    assert repaired([user(), said("", called("a", none))])[1] == said("", called("a", "{}"))


def test_arguments_that_are_an_object_are_written_as_text_and_fit_text_stays_as_it_is() -> None:
    history = repaired([user(), said("", called("a", {"city": "Zürich"}), called("b", '{ "x" :1}'))])
    arguments = [call["function"]["arguments"] for call in history[1]["tool_calls"]]
    assert arguments == ['{"city": "Zürich"}', '{ "x" :1}']


def test_a_call_without_type_or_name_gets_them_and_one_that_is_no_object_is_left_out() -> None:
    calls: list[Any] = [{"id": "a"}, "junk", {"id": 5, "function": {"name": "n"}}, called("b", name=" ")]
    history = repaired([user(), said("", *calls)])
    names = [called("a", name=UNKNOWN_TOOL), called("5", name="n"), called("b", name=UNKNOWN_TOOL)]
    assert history[1]["tool_calls"] == names


# -- the order ------------------------------------------------------------------------------------


def test_between_two_user_messages_an_answer_says_that_there_is_none() -> None:
    assert repaired([user("1"), user("2"), said("x")]) == [user("1"), said(NO_ANSWER), user("2"), said("x")]


def test_a_user_message_at_the_end_gets_such_an_answer_too() -> None:
    assert repaired([user("1")]) == [user("1"), said(NO_ANSWER)]


@pytest.mark.parametrize("first", [said("x"), said("", called("a"))])
def test_before_an_assistant_message_at_the_beginning_a_user_message_says_what_is_missing(first: Message) -> None:
    assert repaired([result_of("gone"), first, user()])[:2] == [user(NO_BEGINNING), first]


def test_two_assistant_messages_in_a_row_become_one_and_the_later_ones_keys_win() -> None:
    broken = [
        user(),
        said("one", turn_id="t_1", stopped=True),
        said("two", turn_id="t_2"),
        said(" ", called("a"), turn_id="t_3"),
        result_of("a"),
    ]
    joined = said("one\n\ntwo", called("a"), turn_id="t_3", stopped=True)
    assert repaired(broken) == [user(), joined, result_of("a")]


def test_an_assistant_message_after_a_tool_round_is_not_joined_to_the_one_before() -> None:
    valid = [user(), said("let me see", called("a")), result_of("a"), said("there"), user("2"), said("x")]
    broken = [*valid[:2], said("there"), result_of("a"), *valid[4:]]
    assert repaired(broken) == valid


def test_a_user_message_may_follow_a_tool_round() -> None:
    valid = [user(), said("", called("a")), result_of("a"), user("2"), said("x")]
    assert repair(valid) == valid


@pytest.mark.parametrize("blank", ["", " \n", None])
def test_a_blank_assistant_message_without_calls_is_left_out(blank: str | None) -> None:
    nothing: Message = {"role": "assistant", "content": blank, "tool_calls": []}
    assert repaired([user(), nothing, said("x"), nothing]) == [user(), said("x")]
    assert repaired([nothing]) == []


def test_a_blank_answer_that_was_the_only_one_keeps_its_marks() -> None:
    stopped = said("", stopped=True, cause="user", turn_id="t_1")
    history = repaired([user("1", turn_id="t_1"), stopped, user("2", turn_id="t_2")])
    assert history[1] == stopped | {"content": NO_ANSWER}


def test_of_several_blank_answers_the_marks_of_the_last_stay_and_for_that_message_only() -> None:
    blank = [said("", failed=True), said("", stopped=True)]
    history = repaired([user("1"), *blank, user("2"), user("3"), *blank, said("x")])
    assert history == [
        *(user("1"), said(NO_ANSWER, stopped=True)),
        *(user("2"), said(NO_ANSWER)),
        *(user("3"), said("x")),
    ]


def test_a_message_that_is_put_in_belongs_to_the_turn_of_its_neighbour() -> None:
    history = repaired([said("", called("a"), turn_id="t_1"), user("1", turn_id="t_2"), user("2", turn_id="t_3")])
    assert [message["turn_id"] for message in history] == ["t_1", "t_1", "t_1", "t_2", "t_2", "t_3", "t_3"]


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " \n\t", None])
def test_a_blank_user_message_keeps_its_place(blank: str | None) -> None:
    broken = [{"role": "user", "content": blank, "turn_id": "t_1"}, said("x")]
    assert repaired(broken) == [user(EMPTY_MESSAGE, turn_id="t_1"), said("x")]


def test_half_a_character_becomes_the_replacement_character_and_two_halves_become_whole() -> None:
    half, pair = "a\ud83d", "\ud83d\ude00"
    broken = [user(half + "b"), said(half + "b", called(half, half, half)), result_of(half, half), said(pair)]
    history = repaired(broken)
    json.dumps(history, ensure_ascii=False).encode()
    assert [message["content"] for message in history] == ["a\ufffdb", "a\ufffdb", "a\ufffd", "😀"]
    assert history[1]["tool_calls"][0]["id"] == history[2]["tool_call_id"] == "a\ufffd"


def test_ids_that_differ_in_half_a_character_only_stay_apart() -> None:
    history = repaired([user(), said("", called("\ud800"), called("\ud801")), result_of("\ud801"), result_of("\ud800")])
    assert [message["tool_call_id"] for message in history[2:]] == ["\ufffd", "\ufffd_2"]


def test_content_in_parts_is_read_as_text() -> None:
    parts: Any = [{"type": "text", "text": "one"}, "two", {"type": "image_url"}]
    assert repaired([user(parts), said("x")])[0] == user("one\n\ntwo")


def test_a_message_of_another_role_is_left_out_and_calls_of_a_user_are_too() -> None:
    broken = [{"role": "system", "content": "s"}, user(tool_calls=[called("a")]), {"content": "x"}, said("x")]
    assert repaired(broken) == [user(), said("x")]


def test_nothing_stays_nothing() -> None:
    assert repaired([]) == []
