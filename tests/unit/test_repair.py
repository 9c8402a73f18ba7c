"""Repair of a damaged history: each rule by example, and that nothing makes it fail or lose what was said."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.provider.surrogates import whole_text
from core.session.repair import EMPTY_MESSAGE, NO_ANSWER, NO_BEGINNING, NO_RESULT, UNKNOWN_TOOL, repair
from de2generator.strict import find_fault

Message = dict[str, Any]

#: Generous: measured at 0.02 to 0.1 s.
LONGEST_REPAIR_S = 20.0


def _user(text: str = "q", **more: Any) -> Message:
    return {"role": "user", "content": text, **more}


def _said(text: str, *calls: Message, **more: Any) -> Message:
    message = {"role": "assistant", "content": text, **more}
    return message | {"tool_calls": list(calls)} if calls else message


def _call(call_id: Any, arguments: Any = "{}", name: str = "look") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: Any, text: str = "found", **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def _no_result(call_id: str) -> Message:
    return _result(call_id, NO_RESULT, is_error=True)


def _fault(history: list[Message]) -> str | None:
    """What the strict model server would say to this history and a message after it."""
    return find_fault([{"role": "system", "content": "s"}, *history, _user("next")])


def _repaired(broken: list[Message]) -> list[Message]:
    """The repaired history, after the checks that hold for every input."""
    before = copy.deepcopy(broken)
    history = repair(broken)
    assert broken == before, "the argument was changed"
    assert _fault(history) is None
    assert not history or history[-1]["role"] != "user"
    assert repair(history) == history
    return history


# -- calls and results ----------------------------------------------------------------------------


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    history = _repaired([_user(), _said("", _call("a"), _call("b")), _result("b"), _user("next")])
    assert history[:4] == [_user(), _said("", _call("a"), _call("b")), _no_result("a"), _result("b")]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_result_without_a_call_is_left_out_wherever_it_stands(place: int) -> None:
    valid = [_user(), _said("a")]
    assert _repaired([*valid[:place], _result("nobody"), *valid[place:]]) == valid


def test_of_two_results_for_a_call_the_first_is_kept() -> None:
    broken = [_user(), _said("", _call("a")), _result("a", "1"), _result("a", "2"), _said("x"), _result("a", "3")]
    assert _repaired(broken) == [_user(), _said("", _call("a")), _result("a", "1"), _said("x")]


def test_results_come_in_the_order_of_the_calls() -> None:
    calls = _said("", _call("a"), _call("b"), _call("c"))
    results = [_result("a", "1"), _result("b", "2"), _result("c", "3")]
    assert _repaired([_user(), calls, *reversed(results)]) == [_user(), calls, *results]


def test_a_result_that_came_after_a_user_message_goes_back_to_its_call() -> None:
    broken = [_user("1"), _said("", _call("a")), _user("2"), _result("a"), _said("x")]
    assert _repaired(broken) == [_user("1"), _said("", _call("a")), _result("a"), _user("2"), _said("x")]


def test_a_result_that_stands_before_its_call_goes_after_it() -> None:
    broken = [_result("a"), _user(), _said("", _call("a")), _said("x")]
    assert _repaired(broken) == [_user(), _said("", _call("a")), _result("a"), _said("x")]


def test_a_result_keeps_its_further_keys_where_it_is_moved() -> None:
    result = _result("a", "", is_error=True, turn_id="t_1")
    history = _repaired([result, _user(), _said("", _call("a"))])
    assert history == [_user(), _said("", _call("a")), result]


# -- ids ------------------------------------------------------------------------------------------


def test_ids_that_come_again_in_each_round_are_made_unique_and_results_stay_with_their_calls() -> None:
    broken = [
        *(_user("1"), _said("", _call("call_0"), _call("call_1")), _result("call_0", "a"), _result("call_1", "b")),
        *(_said("", _call("call_0")), _result("call_0", "c"), _said("x")),
        *(_user("2"), _said("", _call("call_0")), _result("call_0", "d")),
    ]
    assert _repaired(broken) == [
        *(_user("1"), _said("", _call("call_0"), _call("call_1")), _result("call_0", "a"), _result("call_1", "b")),
        *(_said("", _call("call_0_2")), _result("call_0_2", "c"), _said("x")),
        *(_user("2"), _said("", _call("call_0_3")), _result("call_0_3", "d")),
    ]


def test_of_two_rounds_with_the_same_id_the_later_result_belongs_to_the_nearer_call() -> None:
    broken = [_user(), _said("", _call("c")), _user("2"), _said("", _call("c")), _result("c", "late")]
    history = _repaired(broken)
    assert history[1:3] == [_said("", _call("c")), _no_result("c")]
    assert history[4:] == [_said("", _call("c_2")), _result("c_2", "late")]


def test_a_result_just_before_its_call_is_not_lost_to_an_answered_call_with_the_same_id() -> None:
    broken = [_user(), _said("", _call("c")), _result("c", "1"), _result("c", "2"), _said("", _call("c"))]
    results = [message for message in _repaired(broken) if message["role"] == "tool"]
    assert results == [_result("c", "1"), _result("c_2", "2")]


def test_a_result_written_twice_answers_no_later_call_with_the_same_id() -> None:
    broken = [_user(), _said("", _call("c")), _result("c", "1"), _result("c", "1"), _said("", _call("c"))]
    results = [message for message in _repaired(broken) if message["role"] == "tool"]
    assert results == [_result("c", "1"), _no_result("c_2")]


def test_a_result_written_twice_before_its_call_answers_that_call_only() -> None:
    broken = [_user(), _result("c", "1"), _result("c", "1"), _said("", _call("c")), _said("", _call("c"))]
    results = [message for message in _repaired(broken) if message["role"] == "tool"]
    assert results == [_result("c", "1"), _no_result("c_2")]


def test_a_result_written_twice_does_not_take_the_place_of_a_later_calls_own() -> None:
    rounds = [_said("", _call("c")), _result("c", "1"), _result("c", "twice"), _said("", _call("c")), _result("c", "2")]
    results = [message for message in _repaired([_user(), *rounds]) if message["role"] == "tool"]
    assert results == [_result("c", "1"), _result("c_2", "2")]


def test_calls_of_one_message_with_the_same_id_are_answered_in_order() -> None:
    broken = [_user(), _said("", _call("c", name="one"), _call("c", name="two")), _result("c", "1"), _result("c", "2")]
    assert _repaired(broken) == [
        _user(),
        _said("", _call("c", name="one"), _call("c_2", name="two")),
        _result("c", "1"),
        _result("c_2", "2"),
    ]


@pytest.mark.parametrize("missing", [None, ""])
def test_calls_without_ids_get_some_and_their_results_follow(missing: str | None) -> None:
    broken = [_user(), _said("", _call(missing), _call(missing)), _result(missing, "1"), _result(missing, "2")]
    without = [{key: value for key, value in message.items() if key != "tool_call_id"} for message in broken]
    wanted = [_user(), _said("", _call("call_1"), _call("call_2")), _result("call_1", "1"), _result("call_2", "2")]
    assert _repaired(broken) == wanted
    assert _repaired(without) == wanted


def test_a_made_id_is_never_one_that_is_taken() -> None:
    ids = ["c_2", "c", "c", "call_1", "", "c_2", "c_3"]
    history = _repaired([_user(), _said("", *(_call(each) for each in ids))])
    made = [call["id"] for call in history[1]["tool_calls"]]
    assert len(set(made)) == len(ids)
    assert made[:2] == ["c_2", "c"]


def test_what_comes_later_does_not_change_the_ids_given_earlier() -> None:
    rounds = [_user(), *([_said("", _call("c")), _result("c")] * 3), _said("", _call("c_2")), _result("c_2")]
    for length in range(1, len(rounds), 2):
        assert repair(rounds[:length])[:length] == repair(rounds)[:length]


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ['{"a": ', "[1]", '"text"', "null", "rm -rf", '{"a": NaN}', "[" * 100_000])
def test_arguments_that_are_no_json_object_are_wrapped_in_one(raw: str) -> None:
    history = _repaired([_user(), _said("", _call("a", raw)), _result("a")])
    assert json.loads(history[1]["tool_calls"][0]["function"]["arguments"]) == {"invalid_arguments": raw}


@pytest.mark.parametrize("none", ["", "  ", None])
def test_no_arguments_at_all_are_an_empty_object(none: str | None) -> None:
    assert _repaired([_user(), _said("", _call("a", none))])[1] == _said("", _call("a", "{}"))


def test_arguments_that_are_an_object_are_written_as_text_and_fit_text_stays_as_it_is() -> None:
    history = _repaired([_user(), _said("", _call("a", {"city": "Zürich"}), _call("b", '{ "x" :1}'))])
    arguments = [call["function"]["arguments"] for call in history[1]["tool_calls"]]
    assert arguments == ['{"city": "Zürich"}', '{ "x" :1}']


def test_a_call_without_type_or_name_gets_them_and_one_that_is_no_object_is_left_out() -> None:
    calls: list[Any] = [{"id": "a"}, "junk", {"id": 5, "function": {"name": "n"}}, _call("b", name=" ")]
    history = _repaired([_user(), _said("", *calls)])
    names = [_call("a", name=UNKNOWN_TOOL), _call("5", name="n"), _call("b", name=UNKNOWN_TOOL)]
    assert history[1]["tool_calls"] == names


# -- the order ------------------------------------------------------------------------------------


def test_between_two_user_messages_an_answer_says_that_there_is_none() -> None:
    assert _repaired([_user("1"), _user("2"), _said("x")]) == [_user("1"), _said(NO_ANSWER), _user("2"), _said("x")]


def test_a_user_message_at_the_end_gets_such_an_answer_too() -> None:
    assert _repaired([_user("1")]) == [_user("1"), _said(NO_ANSWER)]


@pytest.mark.parametrize("first", [_said("x"), _said("", _call("a"))])
def test_before_an_assistant_message_at_the_beginning_a_user_message_says_what_is_missing(first: Message) -> None:
    assert _repaired([_result("gone"), first, _user()])[:2] == [_user(NO_BEGINNING), first]


def test_two_assistant_messages_in_a_row_become_one_and_the_later_ones_keys_win() -> None:
    broken = [
        _user(),
        _said("one", turn_id="t_1", stopped=True),
        _said("two", turn_id="t_2"),
        _said(" ", _call("a"), turn_id="t_3"),
        _result("a"),
    ]
    joined = _said("one\n\ntwo", _call("a"), turn_id="t_3", stopped=True)
    assert _repaired(broken) == [_user(), joined, _result("a")]


def test_an_assistant_message_after_a_tool_round_is_not_joined_to_the_one_before() -> None:
    valid = [_user(), _said("let me see", _call("a")), _result("a"), _said("there"), _user("2"), _said("x")]
    broken = [*valid[:2], _said("there"), _result("a"), *valid[4:]]
    assert _repaired(broken) == valid


def test_a_user_message_may_follow_a_tool_round() -> None:
    valid = [_user(), _said("", _call("a")), _result("a"), _user("2"), _said("x")]
    assert repair(valid) == valid


@pytest.mark.parametrize("blank", ["", " \n", None])
def test_a_blank_assistant_message_without_calls_is_left_out(blank: str | None) -> None:
    nothing: Message = {"role": "assistant", "content": blank, "tool_calls": []}
    assert _repaired([_user(), nothing, _said("x"), nothing]) == [_user(), _said("x")]
    assert _repaired([nothing]) == []


def test_a_blank_answer_that_was_the_only_one_keeps_its_marks() -> None:
    stopped = _said("", stopped=True, cause="user", turn_id="t_1")
    history = _repaired([_user("1", turn_id="t_1"), stopped, _user("2", turn_id="t_2")])
    assert history[1] == stopped | {"content": NO_ANSWER}


def test_of_several_blank_answers_the_marks_of_the_last_stay_and_for_that_message_only() -> None:
    blank = [_said("", failed=True), _said("", stopped=True)]
    history = _repaired([_user("1"), *blank, _user("2"), _user("3"), *blank, _said("x")])
    assert history == [
        *(_user("1"), _said(NO_ANSWER, stopped=True)),
        *(_user("2"), _said(NO_ANSWER)),
        *(_user("3"), _said("x")),
    ]


def test_a_message_that_is_put_in_belongs_to_the_turn_of_its_neighbour() -> None:
    history = _repaired([_said("", _call("a"), turn_id="t_1"), _user("1", turn_id="t_2"), _user("2", turn_id="t_3")])
    assert [message["turn_id"] for message in history] == ["t_1", "t_1", "t_1", "t_2", "t_2", "t_3", "t_3"]


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " \n\t", None])
def test_a_blank_user_message_keeps_its_place(blank: str | None) -> None:
    broken = [{"role": "user", "content": blank, "turn_id": "t_1"}, _said("x")]
    assert _repaired(broken) == [_user(EMPTY_MESSAGE, turn_id="t_1"), _said("x")]


def test_half_a_character_becomes_the_replacement_character_and_two_halves_become_whole() -> None:
    half, pair = "a\ud83d", "\ud83d\ude00"
    broken = [_user(half + "b"), _said(half + "b", _call(half, half, half)), _result(half, half), _said(pair)]
    history = _repaired(broken)
    json.dumps(history, ensure_ascii=False).encode()
    assert [message["content"] for message in history] == ["a\ufffdb", "a\ufffdb", "a\ufffd", "😀"]
    assert history[1]["tool_calls"][0]["id"] == history[2]["tool_call_id"] == "a\ufffd"


def test_ids_that_differ_in_half_a_character_only_stay_apart() -> None:
    history = _repaired([_user(), _said("", _call("\ud800"), _call("\ud801")), _result("\ud801"), _result("\ud800")])
    assert [message["tool_call_id"] for message in history[2:]] == ["\ufffd", "\ufffd_2"]


def test_content_in_parts_is_read_as_text() -> None:
    parts: Any = [{"type": "text", "text": "one"}, "two", {"type": "image_url"}]
    assert _repaired([_user(parts), _said("x")])[0] == _user("one\n\ntwo")


def test_a_message_of_another_role_is_left_out_and_calls_of_a_user_are_too() -> None:
    broken = [{"role": "system", "content": "s"}, _user(tool_calls=[_call("a")]), {"content": "x"}, _said("x")]
    assert _repaired(broken) == [_user(), _said("x")]


def test_nothing_stays_nothing() -> None:
    assert _repaired([]) == []


# -- whatever comes -------------------------------------------------------------------------------

_numbers = st.integers(0, 4)


@st.composite
def _valid_transcripts(draw: st.DrawFn) -> list[Message]:
    """Turns of a question, tool rounds of up to three calls, and an answer; all texts and ids differ."""
    transcript: list[Message] = []
    for turn in range(draw(st.integers(0, 4))):
        transcript.append(_user(f"question {turn}", turn_id=f"t_{turn}"))
        rounds = draw(st.lists(st.integers(1, 3), max_size=3))
        for number, calls in enumerate(rounds):
            ids = [f"c{turn}.{number}.{call}" for call in range(calls)]
            text = draw(st.sampled_from(["", f"thought {turn}.{number};"]))
            transcript.append(_said(text, *(_call(each, json.dumps({"of": each})) for each in ids)))
            transcript += [_result(each, f"result of {each}") for each in ids]
        if not rounds or draw(st.booleans()):
            transcript.append(_said(f"answer {turn};", turn_id=f"t_{turn}", **draw(_marks)))
    return transcript


_marks: st.SearchStrategy[Message] = st.sampled_from([{}, {"stopped": True, "cause": "user"}, {"failed": True}])
_damages = st.lists(
    st.tuples(
        st.sampled_from(["cut the end", "cut the beginning", "delete", "repeat", "swap", "insert", "same id", "blank"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=8,
)


def _damage(transcript: list[Message], kind: str, one: int, two: int) -> list[Message]:
    """The transcript after one accident; ``one`` and ``two`` say where."""
    if kind == "insert":
        place = one % (len(transcript) + 1)
        return [*transcript[:place], _result(["nobody", "c0.0.0", "", None][two % 4], "foreign"), *transcript[place:]]
    if not transcript:
        return transcript
    damaged = copy.deepcopy(transcript)
    one, two = one % len(damaged), two % len(damaged)
    if kind == "cut the end":
        del damaged[one:]
    elif kind == "cut the beginning":
        del damaged[:one]
    elif kind == "delete":
        del damaged[one]
    elif kind == "repeat":
        damaged.insert(two, copy.deepcopy(damaged[one]))
    elif kind == "swap":
        damaged[one], damaged[two] = damaged[two], damaged[one]
    elif kind == "same id":
        for message in damaged[min(one, two) :]:
            for call in message.get("tool_calls", ()):
                call["id"] = "call_0"
            if message["role"] == "tool":
                message["tool_call_id"] = "call_0"
    elif kind == "blank":
        damaged[one]["content"] = ""
    return damaged


def _assert_all_is_said(broken: list[Message], history: list[Message]) -> None:
    """Every text of user and assistant is there, in its order, and each of the user's as a message of its own."""
    place, offset = 0, 0
    for message in broken:
        text = whole_text(message["content"])
        if message["role"] == "tool" or not text.strip():
            continue
        is_user = message["role"] == "user"
        while place < len(history):
            there = history[place]
            if there["role"] == message["role"]:
                found = -1 if is_user and there["content"] != text else there["content"].find(text, offset)
                if found >= 0:
                    break
            place, offset = place + 1, 0
        assert place < len(history), f"lost: {message}"
        place, offset = (place + 1, 0) if is_user else (place, found + len(text))


@given(_valid_transcripts(), _damages)
@settings(max_examples=200, deadline=None)
def test_whatever_accident_a_transcript_had_a_strict_model_server_takes_it_repaired(
    transcript: list[Message], damages: list[tuple[str, int, int]]
) -> None:
    for kind, one, two in damages:
        transcript = _damage(transcript, kind, one, two)
    _assert_all_is_said(transcript, _repaired(transcript))


@given(_valid_transcripts(), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=200, deadline=None)
def test_a_transcript_may_be_cut_anywhere(transcript: list[Message], begin: int, end: int) -> None:
    part = transcript[begin : len(transcript) - end]
    history = _repaired(part)
    _assert_all_is_said(part, history)
    calls = {call["id"] for message in part for call in message.get("tool_calls", ())}
    own = [message for message in part if message["role"] == "tool" and message["tool_call_id"] in calls]
    assert [m for m in history if m["role"] == "tool" and m["content"] != NO_RESULT] == own


_ids = st.sampled_from(["a", "b", "a_2", "call_1", "", None])
_texts = st.text(st.sampled_from("ab \n\ud83d\ude00é"), max_size=4)
_arguments = st.sampled_from(["{}", '{"a": 1}', "[]", "{", "", None])
_any_message = st.one_of(
    st.builds(_user, _texts),
    st.builds(
        lambda text, calls, marks: _said(text, *calls, **marks),
        _texts, st.lists(st.builds(_call, _ids, _arguments), max_size=3), _marks,
    ),
    st.builds(_result, _ids, _texts),
)  # fmt: skip


@given(st.lists(_any_message, max_size=14))
@settings(max_examples=400, deadline=None)
def test_whatever_list_of_messages_comes_a_strict_model_server_takes_it_repaired(broken: list[Message]) -> None:
    history = _repaired(broken)
    _assert_all_is_said(broken, history)
    ids = [call["id"] for message in history for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == sum(len(message.get("tool_calls", ())) for message in broken)


@given(_valid_transcripts())
@settings(max_examples=200, deadline=None)
def test_a_right_transcript_comes_back_as_it_is(transcript: list[Message]) -> None:
    assert repair(transcript) == transcript


@given(_valid_transcripts(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_results_that_were_scattered_all_find_their_calls_again(transcript: list[Message], random: Any) -> None:
    scattered = [message for message in transcript if message["role"] != "tool"]
    for result in (message for message in transcript if message["role"] == "tool"):
        scattered.insert(random.randint(0, len(scattered)), result)
    assert _repaired(scattered) == transcript


@given(_valid_transcripts())
@settings(max_examples=200, deadline=None)
def test_with_the_same_ids_in_each_round_every_result_still_follows_its_own_call(transcript: list[Message]) -> None:
    same = copy.deepcopy(transcript)
    for message in same:
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{number}"
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{message['tool_call_id'][-1]}"
    history = _repaired(same)
    results = {message["tool_call_id"]: message["content"] for message in history if message["role"] == "tool"}
    for message in history:
        for call in message.get("tool_calls", ()):
            assert results[call["id"]] == f"result of {json.loads(call['function']['arguments'])['of']}"


# -- size -----------------------------------------------------------------------------------------

_MANY = 10_000
_LONG = {
    "right": [_user(), *(m for n in range(_MANY // 2) for m in (_said("x", _call(f"c{n}")), _result(f"c{n}")))],
    "the same id in every round": [m for _ in range(_MANY // 2) for m in (_said("", _call("c")), _result("c", "r"))],
    "calls without ids": [_said("", _call(None))] * _MANY,
    "one message with many calls of one id": [_said("", *[_call("c")] * _MANY), *[_result("c", "r")] * _MANY],
    "results before all calls": [*[_result("c", str(n)) for n in range(_MANY)], *[_said("", _call("c"))] * _MANY],
    "results without calls": [_result("c", str(n)) for n in range(_MANY)],
    "assistant after assistant": [_said("x" * 100)] * _MANY,
    "user after user": [_user()] * _MANY,
    "ids that are taken already": [_said("", _call(f"c_{n}"), _call("c")) for n in range(_MANY // 2)],
}


@pytest.mark.parametrize("broken", _LONG.values(), ids=_LONG)
def test_ten_thousand_messages_are_repaired_at_once(broken: list[Message]) -> None:
    begin = time.perf_counter()
    history = repair(broken)
    assert time.perf_counter() - begin < LONGEST_REPAIR_S
    assert _fault(history) is None
