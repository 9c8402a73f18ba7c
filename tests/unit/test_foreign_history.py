"""Conversations handed in: both styles read to the same form, and what cannot be read is named by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest
from core.session.foreign import MAX_CALL_ID, MAX_MESSAGES, read_history
from core.session.repair import repair
from de2generator.strict import find_fault

Message = dict[str, Any]


def _read(*messages: Any) -> list[Message]:
    return read_history(list(messages))[0]


def _call(call_id: str, name: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# -- the style of OpenAI --------------------------------------------------------------------------


def test_a_conversation_in_the_style_of_openai_is_read() -> None:
    call = _call("a", "look", '{"at": "it"}')
    messages, system = read_history([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello", "name": "bob"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "found"}]},
        {"role": "assistant", "content": "there", "annotations": [], "turn_id": "t_of_somebody"},
    ])  # fmt: skip
    assert system == ["be brief", "be kind"]
    assert messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "assistant", "content": "there"},
    ]


def test_text_in_parts_is_joined_by_blank_lines() -> None:
    parts = [{"type": kind, "text": kind} for kind in ("text", "input_text", "output_text")]
    refusal = {"type": "refusal", "refusal": "no"}
    assert _read({"role": "user", "content": parts}, {"role": "assistant", "content": [*parts, refusal]}) == [
        {"role": "user", "content": "text\n\ninput_text\n\noutput_text"},
        {"role": "assistant", "content": "text\n\ninput_text\n\noutput_text\n\nno"},
    ]


def test_one_text_is_kept_to_the_letter_and_blank_ones_beside_it_are_not() -> None:
    odd = {"type": "text", "text": "  odd\n"}
    blank = {"type": "text", "text": " "}
    assert _read({"role": "user", "content": [odd]}) == _read({"role": "user", "content": [blank, odd]})
    assert _read({"role": "user", "content": [odd]}) == [{"role": "user", "content": "  odd\n"}]
    assert _read({"role": "user", "content": [blank]}) == [{"role": "user", "content": " "}]


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert _read({"role": "assistant", "content": None, "refusal": "no"}) == [{"role": "assistant", "content": "no"}]


def test_arguments_are_kept_to_the_letter_also_when_they_are_broken() -> None:
    raw = ['{ "a" :1}', '{"a', ""]
    calls = [_call("a", "f", each) for each in raw]
    assert _read({"role": "assistant", "tool_calls": calls})[0]["tool_calls"] == calls


def test_arguments_that_are_an_object_or_missing_become_text() -> None:
    functions: list[Message] = [{"name": "f", "arguments": {"ö": 1}}, {"name": "f"}]
    (read,) = _read({"role": "assistant", "tool_calls": [{"id": "a", "function": each} for each in functions]})
    assert [call["function"]["arguments"] for call in read["tool_calls"]] == ['{"ö": 1}', "{}"]


def test_function_calls_of_the_old_form_find_their_results() -> None:
    history = repair(_read(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"n": 1}'}},
        {"role": "function", "name": "f", "content": "one"},
        {"role": "assistant", "content": "more", "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"n": 2}'}},
        {"role": "function", "name": "f", "content": "two"},
        {"role": "function", "name": "f", "content": "of no call"},
    ))  # fmt: skip
    assert [message["content"] for message in history] == ["q", "", "one", "more", "[no result was recorded]", "", "two"]
    results = [message["tool_call_id"] for message in history if message["role"] == "tool"]
    assert results == [call["id"] for message in history for call in message.get("tool_calls", ())]
    assert len(set(results)) == 3


def test_a_result_of_the_old_form_belongs_to_the_nearest_call_of_its_name() -> None:
    call = {"role": "assistant", "function_call": {"name": "f"}}
    history = repair(_read({"role": "user", "content": "q"}, call, call, {"role": "function", "name": "f", "content": "r"}))
    assert [message["content"] for message in history] == ["q", "", "[no result was recorded]", "", "r"]


def test_blank_system_texts_are_left_out() -> None:
    assert read_history([{"role": "system", "content": each} for each in ("", " ", "s")]) == ([], ["s"])


def test_ids_that_are_missing_are_left_to_the_repair() -> None:
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    read = _read({"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": calls}, {"role": "tool"})
    assert (read[1]["tool_calls"][0]["id"], read[2]["tool_call_id"]) == ("", "")
    assert [message.get("tool_call_id") for message in repair(read)] == [None, None, "call_1"]


# -- the style of Anthropic -----------------------------------------------------------------------


def test_a_conversation_in_the_style_of_anthropic_is_read() -> None:
    messages, system = read_history([
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "y"},
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "ü"}},
            {"type": "tool_use", "id": "b", "name": "smell", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "found"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True, "content": [
                {"type": "text", "text": "no"}, {"type": "text", "text": "nose"},
            ]},
        ]},
        {"role": "assistant", "content": "there"},
    ])  # fmt: skip
    assert system == []
    assert messages == [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "I look",
            "tool_calls": [_call("a", "look", '{"at": "ü"}'), _call("b", "smell", "{}")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "tool", "tool_call_id": "b", "content": "no\n\nnose", "is_error": True},
        {"role": "assistant", "content": "there"},
    ]


def test_results_come_before_the_text_beside_which_they_stand() -> None:
    text, result = {"type": "text", "text": "and then?"}, {"type": "tool_result", "tool_use_id": "a"}
    wanted = [{"role": "tool", "tool_call_id": "a", "content": ""}, {"role": "user", "content": "and then?"}]
    assert _read({"role": "user", "content": [result, text]}) == wanted
    assert _read({"role": "user", "content": [text, result]}) == wanted


def test_a_user_message_without_any_block_keeps_its_place() -> None:
    assert _read({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


# -- one conversation, two styles -----------------------------------------------------------------

_text = st.text(st.sampled_from("ab \né😀"), min_size=1, max_size=6).filter(lambda text: bool(text.strip()))
_json = st.dictionaries(st.text("kö", max_size=2), st.one_of(st.none(), st.integers(), _text, st.lists(_text)), max_size=2)


@st.composite
def _conversations(draw: st.DrawFn) -> list[Message]:
    """A right conversation in our own form."""
    said: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        said.append({"role": "user", "content": draw(_text)})
        inputs = draw(st.lists(_json, max_size=3))
        if inputs:
            calls = [_call(f"c{turn}.{n}", "f", json.dumps(each, ensure_ascii=False)) for n, each in enumerate(inputs)]
            said.append({"role": "assistant", "content": draw(st.one_of(st.just(""), _text)), "tool_calls": calls})
            said += [{"role": "tool", "tool_call_id": call["id"], "content": draw(_text)} for call in calls]
        if not inputs or draw(st.booleans()):
            said.append({"role": "assistant", "content": draw(_text)})
    return said


def _parts(text: str) -> list[Message]:
    return [{"type": "text", "text": text}] if text else []


def _as_openai(said: list[Message], in_parts: bool) -> list[Message]:
    return [m | {"content": (_parts(m["content"]) if in_parts else m["content"]) or None} for m in said]


def _as_anthropic(said: list[Message], in_parts: bool) -> list[Message]:
    """The results of a round, and a user message that follows them, are blocks of one message."""
    shown: list[Message] = []
    for message in said:
        blocks = _parts(message["content"])
        if message["role"] == "tool":
            content = blocks if in_parts else message["content"]
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = json.loads(function["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
        role = "assistant" if message["role"] == "assistant" else "user"
        if shown and role == "user" == shown[-1]["role"]:
            shown[-1]["content"] += blocks
        else:
            shown.append({"role": role, "content": blocks})
    return shown


@given(_conversations(), st.booleans(), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_a_conversation_is_read_alike_in_either_style_and_in_a_mixture(
    said: list[Message], in_parts: bool, border: int
) -> None:
    system = {"role": "system", "content": "s"}
    assert read_history([system, *_as_openai(said, in_parts)]) == (said, ["s"])
    assert read_history([*_as_anthropic(said, in_parts), system]) == (said, ["s"])
    mixed = [*_as_openai(said[:border], in_parts), *_as_anthropic(said[border:], not in_parts)]
    assert _read(*mixed) == said
    assert _read(*said) == said


_junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 5, "x", "\x00", "\ud800", [], {}, [{}], ["x"], {"type": "image"}]
)
_word = st.sampled_from(["a", "b", ""])


def _mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda chance: right if chance else _junk)


_blocks = st.lists(
    _mostly(st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, _mostly(_word)),
        st.builds(lambda each: {"type": "tool_result", "tool_use_id": each}, _mostly(_word)),
        st.builds(lambda each, given: {"type": "tool_use", "id": each, "name": "f", "input": given}, _word, _mostly(_json)),
    )),
    max_size=2,
)  # fmt: skip
_functions = st.builds(lambda text: {"name": "f", "arguments": text}, _mostly(_word))
_calls = st.builds(lambda each, function: {"id": each, "function": function}, _word, _functions)
_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function", "system"]), "name": st.just("f")},
    optional={
        "content": _mostly(st.one_of(_word, _blocks)),
        "tool_call_id": _mostly(_word),
        "tool_calls": _mostly(st.lists(_calls, max_size=2)),
        "function_call": _mostly(_functions),
    },
)  # fmt: skip


@given(st.lists(_mostly(_messages), max_size=4))
@settings(max_examples=400, deadline=None)
def test_whatever_is_handed_in_is_refused_by_its_place_or_can_be_repaired(data: list[Any]) -> None:
    try:
        messages, system = read_history(data)
    except InvalidRequest as error:
        assert error.extra["errors"][0]["field"].startswith("messages")
        return
    json.dumps([messages, system], ensure_ascii=False).encode()
    assert find_fault([*repair(messages), {"role": "user", "content": "next"}]) is None


# -- what is refused ------------------------------------------------------------------------------

_FINE = {"role": "user", "content": "fine"}


def _user(*blocks: Any) -> Message:
    return {"role": "user", "content": list(blocks)}


def _assistant(*blocks: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": list(blocks), **more}


def _use(**more: Any) -> Message:
    return {"type": "tool_use", "id": "a", "name": "f", "input": {}, **more}


_TEXT = {"type": "text", "text": "fine"}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
_WRONG: list[tuple[Any, str]] = [
    ("hello", "messages.1"),
    (None, "messages.1"),
    ({}, "messages.1.role"),
    ({"role": "bot", "content": "x"}, "messages.1.role"),
    ({"role": ["user"], "content": "x"}, "messages.1.role"),
    ({"role": "user"}, "messages.1.content"),
    ({"role": "user", "content": 5}, "messages.1.content"),
    ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages.1.content"),
    ({"role": "system", "content": None}, "messages.1.content"),
    ({"role": "assistant", "content": True}, "messages.1.content"),
    ({"role": "tool", "tool_call_id": "a", "content": {}}, "messages.1.content"),
    (_user(_TEXT, "bare"), "messages.1.content.1"),
    (_user({"type": "text"}), "messages.1.content.0.text"),
    (_user(_TEXT, _IMAGE), "messages.1.content.1"),
    (_user({"type": "input_audio", "input_audio": {}}), "messages.1.content.0"),
    (_user({"type": "file", "file": {}}), "messages.1.content.0"),
    (_user({"type": "image", "source": {}}), "messages.1.content.0"),
    (_user({"type": "document", "source": {}}), "messages.1.content.0"),
    (_user(_use()), "messages.1.content.0"),
    (_user({"type": "thinking", "thinking": "x"}), "messages.1.content.0"),
    (_user({"type": "tool_result", "tool_use_id": 5}), "messages.1.content.0.tool_use_id"),
    (_user({"type": "tool_result", "tool_use_id": "a", "content": [_TEXT, _IMAGE]}), "messages.1.content.0.content.1"),
    (_assistant({"type": "tool_result", "tool_use_id": "a"}), "messages.1.content.0"),
    (_assistant({"type": "server_tool_use"}), "messages.1.content.0"),
    (_assistant({"text": "no type"}), "messages.1.content.0"),
    (_assistant(_use(input="{}")), "messages.1.content.0.input"),
    (_assistant(_use(input={"a": float("inf")})), "messages.1.content.0.input"),
    (_assistant(_use(name=None)), "messages.1.content.0.name"),
    (_assistant(_use(name=" ")), "messages.1.content.0.name"),
    (_assistant(_use(id=5)), "messages.1.content.0.id"),
    (_assistant(_use(id="a" * (MAX_CALL_ID + 1))), "messages.1.content.0.id"),
    (_assistant(audio={"id": "x"}), "messages.1.audio"),
    (_assistant(refusal=5), "messages.1.refusal"),
    (_assistant(tool_calls={}), "messages.1.tool_calls"),
    (_assistant(tool_calls=[_call("a", "f", "{}"), 5]), "messages.1.tool_calls.1"),
    (_assistant(tool_calls=[{"id": "a", "type": "custom"}]), "messages.1.tool_calls.0.type"),
    (_assistant(tool_calls=[{"id": "a"}]), "messages.1.tool_calls.0.function"),
    (_assistant(tool_calls=[{"id": {}, "function": {"name": "f"}}]), "messages.1.tool_calls.0.id"),
    (_assistant(tool_calls=[{"function": {"name": ""}}]), "messages.1.tool_calls.0.function.name"),
    (
        _assistant(tool_calls=[{"function": {"name": "f", "arguments": []}}]),
        "messages.1.tool_calls.0.function.arguments",
    ),
    (_assistant(function_call="f"), "messages.1.function_call"),
    ({"role": "function", "content": "x"}, "messages.1.name"),
]


def _place_refused(data: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_history(data)
    (error,) = caught.value.extra["errors"]
    assert caught.value.detail == f"{error['field']}: {error['message']}"
    return str(error["field"])


@pytest.mark.parametrize(("wrong", "place"), _WRONG)
def test_a_wrong_shape_is_refused_with_its_place(wrong: Any, place: str) -> None:
    assert _place_refused([_FINE, wrong, _FINE]) == place


@pytest.mark.parametrize("unfit", ["a\x00b", "a\ud83db"])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("content", lambda text: {"role": "user", "content": text}),
        ("content", lambda text: {"role": "system", "content": text}),
        ("content", lambda text: {"role": "assistant", "content": text}),
        ("content", lambda text: {"role": "tool", "tool_call_id": "a", "content": text}),
        ("tool_call_id", lambda text: {"role": "tool", "tool_call_id": text, "content": ""}),
        ("content.0.text", lambda text: _user({"type": "text", "text": text})),
        ("content.0.id", lambda text: _assistant(_use(id=text))),
        ("tool_calls.0.function.name", lambda text: _assistant(tool_calls=[_call("a", text, "{}")])),
        ("tool_calls.0.function.arguments", lambda text: _assistant(tool_calls=[_call("a", "f", text)])),
    ],
)
def test_text_that_the_store_cannot_keep_is_refused(unfit: str, place: str, message: Any) -> None:
    assert _place_refused([message(unfit)]) == f"messages.0.{place}"


def test_a_nul_within_arguments_stays_an_escape_which_the_store_can_keep() -> None:
    (read,) = _read(_assistant(_use(input={"a": "\x00"})))
    assert read["tool_calls"][0]["function"]["arguments"] == '{"a": "\\u0000"}'


def test_half_a_character_within_arguments_is_refused() -> None:
    assert _place_refused([_assistant(_use(input={"a": "\ud83d"}))]) == "messages.0.content.0.input"


def test_what_is_no_list_or_too_long_is_refused() -> None:
    assert _place_refused({"role": "user", "content": "x"}) == "messages"
    assert _place_refused([_FINE] * (MAX_MESSAGES + 1)) == "messages"
    assert len(_read(*[_FINE] * MAX_MESSAGES)) == MAX_MESSAGES == 10_000


def test_what_was_handed_in_is_not_told_again() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_history([{"role": "secret", "content": "x"}])
    assert "secret" not in caught.value.detail
