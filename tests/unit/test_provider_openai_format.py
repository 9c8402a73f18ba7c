"""The OpenAI wire form: what goes out, and what a reply becomes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cancellation import Level, Scope
from core.errors import ProviderNonsense
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import Delta, Finish, ModelRequest, Reasoning, Text, ToolCall, Usage
from core.provider.surrogates import TextJoiner, whole_text

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def read(*chunks: Any) -> list[Delta]:
    """The deltas of a stream of chunks that ends with the end mark."""
    reader = ChatReader(Scope.root().open(Level.CALL, "c"))
    payloads = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
    deltas = [delta for payload in payloads for delta in reader.take(payload)]
    assert reader.has_ended
    return deltas + list(reader.end())


def chunk(delta: Any = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason}], **more}


def piece(index: int | None = None, call_id: str | None = None, name: str | None = None, args: Any = None) -> Any:
    made: dict[str, Any] = {"function": {"name": name, "arguments": args}, "id": call_id}
    return {"tool_calls": [made if index is None else {**made, "index": index}]}


def test_a_request_asks_for_a_stream_with_usage() -> None:
    messages = [{"role": "user", "content": "hi"}]

    assert request_body(ModelRequest(messages, "m")) == {
        "model": "m",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tools_and_the_one_that_must_be_called_go_along() -> None:
    body = request_body(ModelRequest([], "m", TOOLS, must_call="f"))

    assert body["tools"] == TOOLS
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert "tool_choice" not in request_body(ModelRequest([], "m", TOOLS))


def test_text_reasoning_usage_and_finish() -> None:
    assert read(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "m"}),
        chunk({"content": "hel"}),
        chunk({"content": "lo"}),
        chunk(reason="stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ) == [Reasoning("hm"), Reasoning("m"), Text("hel"), Text("lo"), Usage(3, 2), Finish("stop")]


def test_usage_that_does_not_change_is_told_once_and_what_is_missing_is_none() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": None}

    deltas = read(chunk({"content": "a"}, usage=usage), chunk({"content": "b"}, usage=usage), chunk(usage=None))

    assert deltas == [Text("a"), Usage(3, None), Text("b"), Finish("stop")]


def test_pieces_of_tool_calls_are_joined_by_index_and_come_before_the_finish() -> None:
    assert read(
        chunk({"content": "let me"}),
        chunk(piece(0, "a", "one", "")),
        chunk(piece(1, "b", "two", '{"x"')),
        chunk(piece(0, None, None, '{"y":')),
        chunk(piece(1, None, None, ":1}")),
        chunk(piece(0, None, None, "2}")),
        chunk(reason="tool_calls"),
    ) == [
        Text("let me"),
        ToolCall("a", "one", '{"y":2}'),
        ToolCall("b", "two", '{"x":1}'),
        Finish("tool_calls"),
    ]


def test_an_end_mark_without_a_finish_reason_is_an_end() -> None:
    assert read(chunk({"content": "x"})) == [Text("x"), Finish("stop")]
    assert read(chunk(piece(0, "a", "f", "{}"))) == [ToolCall("a", "f", "{}"), Finish("tool_calls")]


def calls(*pieces: Any) -> list[ToolCall]:
    return [delta for delta in read(*map(chunk, pieces)) if isinstance(delta, ToolCall)]


def test_tool_calls_without_an_index_are_told_apart_by_id() -> None:
    assert calls(piece(None, "a", "f", "{"), piece(None, None, None, "}"), piece(None, "b", "g", "{}")) == [
        ToolCall("a", "f", "{}"),
        ToolCall("b", "g", "{}"),
    ]


def test_parallel_calls_that_all_have_index_0_are_told_apart_by_id() -> None:
    assert calls(piece(0, "a", "f", "{}"), piece(0, "b", "g", "{}")) == [
        ToolCall("a", "f", "{}"),
        ToolCall("b", "g", "{}"),
    ]


def test_a_repeated_name_is_not_doubled_and_a_split_one_is_joined() -> None:
    assert calls(piece(0, "a", "f", "{"), piece(0, "a", "f", "}")) == [ToolCall("a", "f", "{}")]
    assert calls(piece(0, "a", "get_", ""), piece(0, None, "time", "{}")) == [ToolCall("a", "get_time", "{}")]


def test_a_tool_name_without_end_is_refused() -> None:
    with pytest.raises(ProviderNonsense, match="name"):
        calls(*(piece(0, "a", f"n{number}", "") for number in range(1000)))


def test_missing_and_repeated_ids_are_replaced_by_ids_of_their_own() -> None:
    whole = {
        "choices": [
            {
                "message": {
                    "tool_calls": [
                        {"function": {"name": "f", "arguments": {"x": 1}}},
                        {"id": "a", "function": {"name": "g", "arguments": None}},
                        {"id": "a", "function": {"name": "h", "arguments": "{}"}},
                    ]
                }
            }
        ]
    }
    reader = ChatReader(Scope.root().open(Level.CALL, "c"))

    deltas = [*reader.take(json.dumps(whole)), *reader.end()]

    found = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert [(call.name, call.arguments) for call in found] == [("f", '{"x": 1}'), ("g", "{}"), ("h", "{}")]
    assert found[1].id == "a"
    assert len({call.id for call in found}) == 3
    assert all(call.id for call in found)


def test_a_whole_reply_is_read_like_a_stream() -> None:
    reader = ChatReader(Scope.root().open(Level.CALL, "c"))
    whole = {
        "choices": [{"message": {"content": "hi", "reasoning": "hm"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }

    deltas = [*reader.take(json.dumps(whole)), *reader.end()]

    assert deltas == [Reasoning("hm"), Text("hi"), Usage(1, 1), Finish("length")]


def test_content_as_a_list_of_parts_and_a_refusal_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, "?", {"type": "text", "text": "b"}]

    assert read(chunk({"content": parts}), chunk({"refusal": "no"})) == [Text("ab"), Text("no"), Finish("stop")]


def test_a_second_choice_is_left_out() -> None:
    both = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}

    assert read(both) == [Text("a"), Finish("stop")]


def test_nothing_but_reasoning_is_no_answer() -> None:
    with pytest.raises(ProviderNonsense, match="answered nothing"):
        read(chunk({"reasoning": "hm"}), chunk(reason="stop"))


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20), st.integers(1, 5))
def test_whatever_is_streamed_the_text_is_whole(text: str, size: int) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = range(0, len(units), 2 * size)
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in cuts]
    joiner = TextJoiner()

    joined = "".join(map(joiner.take, pieces)) + joiner.end()

    joined.encode()
    assert joined == whole_text(text)
