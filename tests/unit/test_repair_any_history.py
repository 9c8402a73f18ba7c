"""Repair of whatever history comes: nothing makes it fail, lose what was said, or take long."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.session.repair import NO_RESULT, repair
from core.surrogates import whole_text
from tests.support.repair_kit import Message, called, fault, repaired, result_of, said, user

#: Generous: measured at 0.02 to 0.1 s.
LONGEST_REPAIR_S = 20.0


# -- whatever comes -------------------------------------------------------------------------------

_numbers = st.integers(0, 4)


@st.composite
def _valid_transcripts(draw: st.DrawFn) -> list[Message]:
    """Turns of a question, tool rounds of up to three calls, and an answer; all texts and ids differ."""
    transcript: list[Message] = []
    for turn in range(draw(st.integers(0, 4))):
        transcript.append(user(f"question {turn}", turn_id=f"t_{turn}"))
        rounds = draw(st.lists(st.integers(1, 3), max_size=3))
        for number, calls in enumerate(rounds):
            ids = [f"c{turn}.{number}.{call}" for call in range(calls)]
            text = draw(st.sampled_from(["", f"thought {turn}.{number};"]))
            transcript.append(said(text, *(called(each, json.dumps({"of": each})) for each in ids)))
            transcript += [result_of(each, f"result of {each}") for each in ids]
        if not rounds or draw(st.booleans()):
            transcript.append(said(f"answer {turn};", turn_id=f"t_{turn}", **draw(_marks)))
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
        return [*transcript[:place], result_of(["nobody", "c0.0.0", "", None][two % 4], "foreign"), *transcript[place:]]
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
    _assert_all_is_said(transcript, repaired(transcript))


@given(_valid_transcripts(), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=200, deadline=None)
def test_a_transcript_may_be_cut_anywhere(transcript: list[Message], begin: int, end: int) -> None:
    part = transcript[begin : len(transcript) - end]
    history = repaired(part)
    _assert_all_is_said(part, history)
    calls = {call["id"] for message in part for call in message.get("tool_calls", ())}
    own = [message for message in part if message["role"] == "tool" and message["tool_call_id"] in calls]
    assert [m for m in history if m["role"] == "tool" and m["content"] != NO_RESULT] == own


_ids = st.sampled_from(["a", "b", "a_2", "call_1", "", None])
_texts = st.text(st.sampled_from("ab \n\ud83d\ude00é"), max_size=4)
_arguments = st.sampled_from(["{}", '{"a": 1}', "[]", "{", "", None])
_any_message = st.one_of(
    st.builds(user, _texts),
    st.builds(
        lambda text, calls, marks: said(text, *calls, **marks),
        _texts, st.lists(st.builds(called, _ids, _arguments), max_size=3), _marks,
    ),
    st.builds(result_of, _ids, _texts),
)  # fmt: skip


@given(st.lists(_any_message, max_size=14))
@settings(max_examples=400, deadline=None)
def test_whatever_list_of_messages_comes_a_strict_model_server_takes_it_repaired(broken: list[Message]) -> None:
    history = repaired(broken)
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
    assert repaired(scattered) == transcript


@given(_valid_transcripts())
@settings(max_examples=200, deadline=None)
def test_with_the_same_ids_in_each_round_every_result_still_follows_its_own_call(transcript: list[Message]) -> None:
    same = copy.deepcopy(transcript)
    for message in same:
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{number}"
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{message['tool_call_id'][-1]}"
    history = repaired(same)
    results = {message["tool_call_id"]: message["content"] for message in history if message["role"] == "tool"}
    for message in history:
        for call in message.get("tool_calls", ()):
            assert results[call["id"]] == f"result of {json.loads(call['function']['arguments'])['of']}"


# -- size -----------------------------------------------------------------------------------------

_MANY = 10_000
_LONG = {
    "right": [user(), *(m for n in range(_MANY // 2) for m in (said("x", called(f"c{n}")), result_of(f"c{n}")))],
    "the same id in every round": [m for _ in range(_MANY // 2) for m in (said("", called("c")), result_of("c", "r"))],
    "calls without ids": [said("", called(None))] * _MANY,
    "one message with many calls of one id": [said("", *[called("c")] * _MANY), *[result_of("c", "r")] * _MANY],
    "results before all calls": [*[result_of("c", str(n)) for n in range(_MANY)], *[said("", called("c"))] * _MANY],
    "results without calls": [result_of("c", str(n)) for n in range(_MANY)],
    "assistant after assistant": [said("x" * 100)] * _MANY,
    "user after user": [user()] * _MANY,
    "ids that are taken already": [said("", called(f"c_{n}"), called("c")) for n in range(_MANY // 2)],
}


@pytest.mark.parametrize("broken", _LONG.values(), ids=_LONG)
def test_ten_thousand_messages_are_repaired_at_once(broken: list[Message]) -> None:
    begin = time.perf_counter()
    history = repair(broken)
    assert time.perf_counter() - begin < LONGEST_REPAIR_S
    assert fault(history) is None
