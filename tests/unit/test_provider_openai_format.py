"""The OpenAI wire form: what goes out, and what a reply becomes."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.cancellation import Level, Scope
from core.errors import ProviderNonsense, ProviderSilent
from core.provider.make_provider import make_provider
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import Delta, Finish, ModelRequest, Reasoning, Text, ToolCall, Usage
from core.provider.wire_names import tool_names
from core.surrogates import TextJoiner, whole_text
from de2generator.strict import find_fault, find_name_fault
from tests.support.anthropic_kit import assistant, result, tool, user
from tests.support.provider_kit import reply
from tests.support.raw_server import Peer, RawServer

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def body_of(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body as the server would read it; a strict server takes its names."""
    request = ModelRequest(list(messages), "m", **more)
    before = json.dumps([request.messages, request.tools])
    body: dict[str, Any] = json.loads(json.dumps(request_body(request, tool_names(request))))
    assert json.dumps([request.messages, request.tools]) == before, "the history itself was changed"
    assert find_name_fault(body) is None
    return body


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

    assert body_of(*messages) == {
        "model": "m",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tools_and_the_one_that_must_be_called_go_along() -> None:
    body = body_of(tools=TOOLS, must_call="f")

    assert body["tools"] == TOOLS
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert "tool_choice" not in body_of(tools=TOOLS)


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
    with pytest.raises(ProviderSilent, match="answered nothing"):
        read(chunk({"reasoning": "hm"}), chunk(reason="stop"))


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
def test_a_model_that_was_cut_off_before_a_word_did_not_choose_to_be_silent(reason: str) -> None:
    with pytest.raises(ProviderNonsense, match=reason) as caught:
        read(chunk(reason=reason))
    assert not isinstance(caught.value, ProviderSilent)


def test_a_nul_becomes_a_replacement_character_wherever_the_model_puts_it() -> None:
    assert read(
        chunk({"reasoning": "h\0m"}), chunk({"content": "a\0"}), chunk({"content": "\0b"}),
        chunk(piece(0, "c\0", "f\0", '{"x": "\0"}')),
        chunk(reason="stop"),
    ) == [
        Reasoning("h\ufffdm"), Text("a\ufffd"), Text("\ufffdb"),
        ToolCall("c\ufffd", "f\ufffd", '{"x": "\ufffd"}'),
        Finish("stop"),
    ]  # fmt: skip


# -- names and ids ------------------------------------------------------------------------------

ODD_NAMES = ["repo.search file", "functions.shell", " ", "", "größe", "a" * 65, "a" * 64 + "b", "a\ufffd"]


def test_names_that_servers_refuse_are_renamed_in_offer_choice_and_history_and_found_again() -> None:
    names = [*ODD_NAMES, "functions_shell"]
    request = ModelRequest([user("go")], "m", [tool(name) for name in names], must_call="functions.shell")
    known = tool_names(request)

    body = request_body(request, known)

    assert find_name_fault(body) is None
    wire = [offered["function"]["name"] for offered in body["tools"]]
    assert wire[-1] == "functions_shell"
    assert body["tool_choice"]["function"]["name"] == wire[1] == "functions_shell_2"
    assert [known.inner(name) for name in wire] == names
    assert body["tools"][1]["function"] == tool("functions.shell")["function"] | {"name": wire[1]}


def test_a_call_by_the_wires_name_comes_back_under_the_tools_own() -> None:
    known = tool_names(ModelRequest([], "m", [tool("files.read")]))
    reader = ChatReader(Scope.root().open(Level.CALL, "c"), inner_name=known.inner)
    payloads = [json.dumps(chunk({**piece(number, str(number), name, "{}")})) for number, name in enumerate(
        ["files_read", "files.read", "made.up"]
    )]  # fmt: skip

    deltas = [*(each for payload in [*payloads, "[DONE]"] for each in reader.take(payload)), *reader.end()]

    assert [each.name for each in deltas if isinstance(each, ToolCall)] == ["files.read", "files.read", "made.up"]


@pytest.mark.parametrize("kind", ["openai", "de2generator"])
def test_each_kind_of_provider_offers_the_clean_name_and_hands_on_the_tools_own(kind: str) -> None:
    def call_what_is_offered(peer: Peer) -> None:
        asked = peer.read_request()
        assert asked is not None
        [offered] = json.loads(asked.body)["tools"]
        call = {"id": "a", "function": {"name": offered["function"]["name"], "arguments": "{}"}}
        peer.answer(json.dumps({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": None}]}).encode())

    with RawServer(call_what_is_offered) as server:
        provider = make_provider(kind, server.url + ("/v1" if kind == "openai" else ""))
        [called, _] = reply(provider, ModelRequest([user("go")], "m", [tool("files.read")]))
        [sent] = server.peer(0).requests
        provider.close()

    assert called == ToolCall("a", "files.read", "{}")
    assert json.loads(sent.body)["tools"][0]["function"]["name"] == "files_read"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_a_model_made_up_does_not_spoil_the_requests_after_it(name: str) -> None:
    said = [user("go"), assistant("", ("a", name, "{}")), result("a", "there is no such tool")]

    body = body_of(*said, tools=[tool("shell")])

    assert find_fault(body["messages"]) is None
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "a", "content": "there is no such tool"}
    assert [offered["function"]["name"] for offered in body["tools"]] == ["shell"]


def test_ids_that_servers_refuse_are_renamed_in_call_and_result_alike() -> None:
    long = "call-" + "x" * 40
    calls = assistant("", (long + "1", "f", "{}"), (long + "2", "f", "{}"), ("", "f", "{}"))
    body = body_of(user("go"), calls, result("", "c"), result(long + "2", "b"), result(long + "1", "a"))

    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert ids == [long[:40], long[:38] + "_2", "call"]
    assert [(each["tool_call_id"], each["content"]) for each in body["messages"][2:]] == [
        (ids[2], "c"), (ids[1], "b"), (ids[0], "a"),
    ]  # fmt: skip


_WORDS = st.text(st.sampled_from("ab._ é"), max_size=2) | st.sampled_from(["a" * 70, "a" * 71, "a" * 64])


@given(st.lists(_WORDS, max_size=3, unique=True), st.lists(st.tuples(_WORDS, _WORDS), max_size=6), st.integers(0, 6))
def test_what_was_sent_before_is_sent_the_same_when_the_history_grows(
    offered: list[str], calls: list[tuple[str, str]], shorter: int
) -> None:
    said = [
        each
        for name, call_id in calls
        for each in (assistant("", (call_id, name, "{}")), result(call_id, f"of {name}"))
    ]
    tools = [tool(name) for name in offered]

    whole = body_of(user("go"), *said, tools=tools)
    before = body_of(user("go"), *said[: 2 * shorter], tools=tools)

    assert whole["messages"][: len(before["messages"])] == before["messages"]
    assert whole.get("tools") == before.get("tools")
    sent = [message["tool_calls"][0]["function"]["name"] for message in whole["messages"][1::2]]
    pairs = set(zip((name for name, _ in calls), sent, strict=True))
    assert len(pairs) == len({name for name, _ in calls}) == len(set(sent))


def test_ten_thousand_equal_ids_are_told_apart_in_time() -> None:
    calls = assistant("", *(("x" * 50 + str(number), "f", "{}") for number in range(10_000)))
    begun = time.monotonic()

    body_of(user("go"), calls, *(result("x" * 50 + str(number), "r") for number in range(10_000)))

    assert time.monotonic() - begun < 10  # measured: 0.1 s; one try more for each would be 20 s


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20), st.integers(1, 5))
def test_whatever_is_streamed_the_text_is_whole(text: str, size: int) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = range(0, len(units), 2 * size)
    pieces = [units[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in cuts]
    joiner = TextJoiner()

    joined = "".join(map(joiner.take, pieces)) + joiner.end()

    joined.encode()
    assert joined == whole_text(text)
