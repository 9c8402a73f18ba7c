"""Both wire forms, judged by the vendors' own types: what we send, and what the stand-in gateway answers."""

import copy
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.cancellation import Level, Scope
from core.provider.anthropic_body import messages_body
from core.provider.anthropic_format import MessageReader
from core.provider.openai_format import ChatReader, request_body
from core.provider.provider import ModelRequest, Reasoning, Text, ToolCall, Usage
from core.provider.wire_names import tool_names
from de2generator import anthropic_strict, strict
from de2generator.odd_scripts import SPLIT_TEXT
from tests.support.anthropic_kit import assistant, result, tool, user
from tests.support.chat_client import asking, asking_messages
from tests.support.model_server import ModelServer, script
from tests.support.vendor_types import (
    check_anthropic_answer,
    check_anthropic_body,
    check_anthropic_error,
    check_anthropic_event,
    check_openai_answer,
    check_openai_body,
    check_openai_chunk,
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModelServer]:
    with ModelServer(tokens_per_second=2000) as server:
        yield server


# -- what we send -------------------------------------------------------------------------------

_MARKS = st.fixed_dictionaries(
    {}, optional={"turn_id": st.just("t"), "stopped": st.just(True), "cause": st.just("user"), "failed": st.just(True)}
)
#: What a user may type: whole characters, and not only blanks.
_WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
_NAMES = st.text(st.sampled_from("ab_-.:/ é"), max_size=70)
_IDS = st.text(st.sampled_from("ab1_-.:|"), max_size=5)
_OBJECTS = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5), max_size=3)
_ARGUMENTS = st.builds(json.dumps, _OBJECTS) | st.text(max_size=8)


@st.composite
def rounds(draw: Any) -> list[dict[str, Any]]:
    """An assistant message with tool calls, and exactly one result for each, in any order."""
    ids = draw(st.lists(_IDS, min_size=1, max_size=3, unique=True))
    calls = [(call_id, draw(_NAMES), draw(_ARGUMENTS)) for call_id in ids]
    text = draw(st.just("") | _WORDS)
    errors = st.sampled_from([{}, {"is_error": True}])
    results = [result(call_id, draw(st.text(max_size=5)), **draw(errors)) for call_id in draw(st.permutations(ids))]
    return [assistant(text, *calls) | draw(_MARKS), *results]


@st.composite
def histories(draw: Any) -> list[dict[str, Any]]:
    """Turns of one user message, some tool rounds and an answer; the last ends with the user or with results."""
    said = [{"role": "system", "content": draw(_WORDS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        said += [user(draw(_WORDS)) | draw(_MARKS), *chain(*draw(st.lists(rounds(), max_size=2)))]
        said += [assistant(draw(_WORDS)) | draw(_MARKS)]
    return [*said, user(draw(_WORDS)), *chain(*draw(st.lists(rounds(), max_size=2)))]


@st.composite
def requests(draw: Any) -> ModelRequest:
    names = draw(st.lists(_NAMES, max_size=3, unique=True))
    tools = [tool(name, x={"type": "string"}) for name in names]
    must_call = draw(st.none() | st.sampled_from(names)) if names else None
    return ModelRequest(draw(histories()), "m", tools, must_call)


@given(requests())
@settings(max_examples=150, deadline=None)
def test_whatever_was_said_the_anthropic_body_is_one_that_the_vendor_and_a_strict_server_take(
    request: ModelRequest,
) -> None:
    body = json.loads(json.dumps(messages_body(request, tool_names(request))))

    check_anthropic_body(body)
    assert anthropic_strict.find_fault(body) is None


@given(requests())
@settings(max_examples=100, deadline=None)
def test_nothing_that_was_said_is_lost_on_the_way(request: ModelRequest) -> None:
    body = messages_body(request, tool_names(request))

    blocks = [block for message in body["messages"] for block in message["content"]]
    texts = [m["content"] for m in request.messages if m["role"] in ("user", "assistant") and m["content"].strip()]
    assert [block["text"] for block in blocks if block["type"] == "text"] == texts
    results = [message["content"] for message in request.messages if message["role"] == "tool"]
    sent = [block["content"] for block in blocks if block["type"] == "tool_result"]
    assert [one if one.strip() else "(no output)" for one in results] == sent
    calls = [call for message in request.messages for call in message.get("tool_calls", ())]
    assert len([block for block in blocks if block["type"] == "tool_use"]) == len(calls)


@given(requests())
@settings(max_examples=150, deadline=None)
def test_whatever_was_said_the_openai_body_is_one_that_the_vendor_and_a_strict_server_take(
    request: ModelRequest,
) -> None:
    body = json.loads(json.dumps(request_body(request, tool_names(request))))

    check_openai_body(body)
    assert strict.find_name_fault(body) is None


GOOD_ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "stream": True,
    "system": "s",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}
GOOD_OPENAI: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [user("a"), assistant("", ("a", "f", "{}")), result("a", "x")],
}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.update(turn_id="t"),
        lambda body: body["messages"][0].update(turn_id="t"),
        lambda body: body["messages"][0]["content"][0].update(turn_id="t"),
        lambda body: body["messages"][2]["content"][0].update(is_error="yes"),
        lambda body: body["messages"][1]["content"][0].update(input="{}"),
        lambda body: body["messages"][2].update(role="tool"),
        lambda body: body["tools"][0].pop("input_schema"),
        lambda body: body.pop("max_tokens"),
    ],
)
def test_the_judge_of_anthropic_bodies_finds_what_is_wrong(spoil: Callable[[dict[str, Any]], None]) -> None:
    check_anthropic_body(GOOD_ANTHROPIC)
    spoilt = copy.deepcopy(GOOD_ANTHROPIC)
    spoil(spoilt)

    with pytest.raises(ValidationError):
        check_anthropic_body(spoilt)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body["messages"][0].update(turn_id="t"),
        lambda body: body["messages"][2].update(is_error=True),
        lambda body: body["messages"][1]["tool_calls"][0].pop("id"),
        lambda body: body["messages"][1]["tool_calls"][0]["function"].update(arguments={}),
        lambda body: body.update(keep=True),
    ],
)
def test_the_judge_of_openai_bodies_finds_what_is_wrong(spoil: Callable[[dict[str, Any]], None]) -> None:
    check_openai_body(GOOD_OPENAI)
    spoilt = copy.deepcopy(GOOD_OPENAI)
    spoil(spoilt)

    with pytest.raises(ValidationError):
        check_openai_body(spoilt)


def test_our_own_marks_never_reach_an_openai_server() -> None:
    marked = [
        user("a") | {"turn_id": "t"},
        assistant("", ("a", "f", "{}")) | {"stopped": True, "cause": "user", "failed": True},
        result("a", "x", is_error=True),
        assistant("b") | {"tool_calls": []},
        user("c"),
    ]

    request = ModelRequest(marked, "m")

    assert request_body(request, tool_names(request))["messages"] == [
        user("a"),
        assistant("", ("a", "f", "{}")),
        result("a", "x"),
        assistant("b"),
        user("c"),
    ]


# -- what the stand-in answers ------------------------------------------------------------------

#: Scripts whose answers are of the form, each with its options.
WELL_FORMED: list[tuple[str, dict[str, Any]]] = [
    ("trickle", {"tokens": 3, "interval_ms": 0, "reasoning": 2}),
    ("trickle", {"tokens": 1, "finish": "length"}),
    (
        "toolcall",
        {"name": ["shell", "ask_user"], "arguments": ['{"command":"echo\\u0020a\\u0020long\\u0020line"}', "{}"]},
    ),
    ("toolcall", {"text": 1, "count": 2}),
    ("split", {"every": 1, "pause_ms": 0}),
    ("nothing", {}),
    ("strict", {}),
    ("believable", {}),
    ("deaf", {"tokens": 1}),
    ("late", {"tokens": 1}),
    ("prefill", {"delay_ms": 0, "tokens": 1}),
]


@pytest.mark.parametrize(("name", "options"), WELL_FORMED)
def test_a_streamed_message_is_made_of_events_that_the_vendor_knows(
    gateway: ModelServer, name: str, options: dict[str, Any]
) -> None:
    with asking_messages(gateway.url, script(name, **options)) as asked:
        events = asked.named_events()

    assert [kind for kind, _ in events[:2]] == ["message_start", "ping"]
    known = [check_anthropic_event(data) for kind, data in events if kind != "ping"]
    assert [event.type for event in known] == [kind for kind, _ in events if kind != "ping"]
    assert known[-1].type == "message_stop"


@pytest.mark.parametrize(("name", "options"), WELL_FORMED)
def test_a_whole_message_is_one_that_the_vendor_knows(gateway: ModelServer, name: str, options: dict[str, Any]) -> None:
    with asking_messages(gateway.url, script(name, **options), stream=False) as asked:
        check_anthropic_answer(asked.response.read().decode())


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 418, 429, 500, 502, 504, 529])
def test_an_error_is_one_that_the_vendor_knows(gateway: ModelServer, status: int) -> None:
    with asking_messages(gateway.url, script("error", status=status)) as asked:
        assert asked.status == status
        check_anthropic_error(asked.response.read().decode())


@pytest.mark.parametrize(("name", "options"), WELL_FORMED)
def test_a_streamed_completion_is_made_of_chunks_that_the_vendor_knows(
    gateway: ModelServer, name: str, options: dict[str, Any]
) -> None:
    with asking(gateway.url, script(name, **options), stream_options={"include_usage": True}) as asked:
        *chunks, done = asked.events()

    assert done == "[DONE]"
    for chunk in chunks:
        check_openai_chunk(json.dumps(chunk))


@pytest.mark.parametrize(("name", "options"), WELL_FORMED)
def test_a_whole_completion_is_one_that_the_vendor_knows(
    gateway: ModelServer, name: str, options: dict[str, Any]
) -> None:
    with asking(gateway.url, script(name, **options), stream=False) as asked:
        check_openai_answer(asked.response.read().decode())


def test_the_judges_of_answers_find_a_member_too_many() -> None:
    with pytest.raises(AssertionError, match="news"):
        check_anthropic_event('{"type": "message_stop", "news": 1}')
    with pytest.raises(ValidationError):
        check_anthropic_event('{"type": "content_block_stop", "index": "0"}')
    with pytest.raises(ValidationError):
        check_openai_chunk("{}")


# -- what both make of the same bytes -------------------------------------------------------------


def test_our_reader_and_the_vendors_client_read_the_same_message(gateway: ModelServer) -> None:
    line = script("toolcall", name="shell", arguments={"command": "echo hello to the world"}, text=1)
    client = anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0)
    with (
        client,
        client.messages.stream(model="m", max_tokens=1000, messages=[{"role": "user", "content": line}]) as stream,
    ):
        theirs = stream.get_final_message()

    with asking_messages(gateway.url, line) as asked:
        payloads = [data for _, data in asked.named_events()]
    reader = MessageReader()
    ours = [*(delta for payload in payloads for delta in reader.take(payload)), *reader.end()]

    text, use = theirs.content
    assert isinstance(text, anthropic.types.TextBlock)
    assert isinstance(use, anthropic.types.ToolUseBlock)
    assert "".join(delta.text for delta in ours if isinstance(delta, Text)) == text.text
    [call] = [delta for delta in ours if isinstance(delta, ToolCall)]
    assert (call.name, json.loads(call.arguments)) == (use.name, use.input)
    counts = [delta for delta in ours if isinstance(delta, Usage)]
    assert counts[-1] == Usage(theirs.usage.input_tokens, theirs.usage.output_tokens)
    assert theirs.stop_reason == "tool_use"


def test_our_reader_and_the_vendors_client_read_the_same_completion(gateway: ModelServer) -> None:
    line = script("split", every=1, pause_ms=0)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0)
    with (
        client,
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": line}], stream=True) as stream,
    ):
        theirs = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with asking(gateway.url, line) as asked:
        *chunks, done = asked.events()
    reader = ChatReader(Scope.root().open(Level.CALL, "c"))
    payloads = [*map(json.dumps, chunks), done]
    ours = [*(delta for payload in payloads for delta in reader.take(payload)), *reader.end()]

    assert "".join(delta.text for delta in ours if isinstance(delta, Text)) == theirs == SPLIT_TEXT


def test_thinking_of_the_stand_in_is_reasoning_in_both_forms(gateway: ModelServer) -> None:
    line = script("trickle", tokens=1, reasoning=1)
    with asking_messages(gateway.url, line) as asked:
        events = [data for _, data in asked.named_events()]
    with asking(gateway.url, line) as asked:
        chunks = [event if isinstance(event, str) else json.dumps(event) for event in asked.events()]

    for reader, payloads in ((MessageReader(), events), (ChatReader(Scope.root().open(Level.CALL, "c")), chunks)):
        said = [delta for payload in payloads for delta in reader.take(payload)]
        assert [delta for delta in said if isinstance(delta, Text | Reasoning)] == [Reasoning("r1 "), Text("t1 ")]


def test_a_client_of_the_vendors_gets_their_own_errors(gateway: ModelServer) -> None:
    with anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": script("busy")}])
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model="m", max_tokens=5, messages=[])


def test_the_openai_strict_check_takes_what_the_anthropic_one_takes() -> None:
    said = [user("a"), assistant("", ("a", "f", "{}")), result("a", "x")]

    assert strict.find_fault(said) is None
    request = ModelRequest(said, "m")
    assert anthropic_strict.find_fault(messages_body(request, tool_names(request))) is None
