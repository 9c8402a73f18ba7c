"""The stand-in gateway in the form of the Anthropic Messages API: the same scripts, the same log, and its own order."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from de2generator.anthropic_request import parse_messages_request
from de2generator.anthropic_strict import find_fault
from de2generator.odd_scripts import SPLIT_TEXT
from tests.support.chat_client import asking_messages
from tests.support.model_server import ModelServer, script

ROUND: list[dict[str, Any]] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done", "is_error": True}]},
]
TOOLS = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModelServer]:
    with ModelServer(tokens_per_second=2000) as server:
        yield server


def shown(events: list[tuple[str, str]]) -> list[str]:
    """A stream in short: ``block 0 text``, ``0 hello``, …"""
    made = []
    for kind, data in events:
        value = json.loads(data)
        match kind:
            case "content_block_start":
                made.append(f"block {value['index']} {value['content_block']['type']}")
            case "content_block_delta":
                delta = value["delta"]
                said = delta.get("text", delta.get("thinking", delta.get("partial_json", delta["type"])))
                made.append(f"{value['index']} {said}")
            case "content_block_stop":
                made.append(f"end {value['index']}")
            case "message_delta":
                made.append(value["delta"]["stop_reason"])
            case _:
                made.append(kind)
    return made


def text_of(events: list[tuple[str, str]]) -> str:
    deltas = [json.loads(data)["delta"] for kind, data in events if kind == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


def test_a_stream_has_its_events_in_this_order(gateway: ModelServer) -> None:
    with asking_messages(gateway.url, script("trickle", tokens=2, reasoning=1, interval_ms=0)) as asked:
        events = asked.named_events()
    assert asked.response.headers["Content-Type"].startswith("text/event-stream")
    assert shown(events) == [
        "message_start",
        "ping",
        "block 0 thinking",
        "0 r1 ",
        "0 signature_delta",
        "end 0",
        "block 1 text",
        "1 t1 ",
        "1 t2 ",
        "end 1",
        "end_turn",
        "message_stop",
    ]
    usage = json.loads(events[0][1])["message"]["usage"]
    assert usage["input_tokens"] > 0
    assert json.loads(events[-2][1])["usage"] == {"output_tokens": 3}


def test_tool_calls_come_as_blocks_with_their_input_in_pieces(gateway: ModelServer) -> None:
    line = script("toolcall", name=["shell", "ask_user"], arguments=['{"command":"echo\\u0020hello"}', "{}"], text=1)
    with asking_messages(gateway.url, line) as asked:
        events = asked.named_events()
    assert shown(events)[2:] == [
        "block 0 text",
        "0 I will use a tool. ",
        "end 0",
        "block 1 tool_use",
        "1 ",
        '1 {"command":"echo\\u0020he',
        '1 llo"}',
        "end 1",
        "block 2 tool_use",
        "2 ",
        "2 {}",
        "end 2",
        "tool_use",
        "message_stop",
    ]


def test_toolcall_answers_with_text_once_it_sees_the_results(gateway: ModelServer) -> None:
    line = script("toolcall", name="f", tokens=1)
    with asking_messages(gateway.url, line, stream=False) as asked:
        first = asked.json()
    [use] = first["content"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "done"}]
    said = [{"role": "user", "content": line}, {"role": "assistant", "content": [use]}]
    with asking_messages(
        gateway.url, "", messages=[*said, {"role": "user", "content": results}], stream=False, tools=TOOLS
    ) as asked:
        assert asked.json()["content"] == [{"type": "text", "text": "t1 "}]


def test_a_tool_that_must_be_called_is_called(gateway: ModelServer) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 3}}}
    tools = [{"name": "count", "input_schema": schema}]
    for choice in ({"type": "tool", "name": "count"}, {"type": "any"}):
        with asking_messages(gateway.url, "hello", tools=tools, tool_choice=choice, stream=False) as asked:
            [use] = asked.json()["content"]
        assert (use["type"], use["name"], use["input"]) == ("tool_use", "count", {"n": 3})


def test_nonstream_answers_whole_where_a_stream_was_asked(gateway: ModelServer) -> None:
    with asking_messages(gateway.url, script("nonstream", delay_ms=1, tokens=2)) as asked:
        reply = asked.json()
    assert (reply["type"], reply["content"]) == ("message", [{"type": "text", "text": "t1 t2 "}])
    assert reply["usage"]["output_tokens"] == 2


def test_busy_refuses_so_many_times_and_then_answers(gateway: ModelServer) -> None:
    line = script("busy", times=1, status=529, retry_after_s=3, key="busy-messages", tokens=1)
    with asking_messages(gateway.url, line) as asked:
        assert (asked.status, asked.response.headers["Retry-After"]) == (529, "3")
        assert asked.json()["error"]["type"] == "overloaded_error"
    with asking_messages(gateway.url, line) as asked:
        assert text_of(asked.named_events()) == "t1 "


@pytest.mark.parametrize("how", ["close", "reset"])
def test_drop_breaks_the_body_off(gateway: ModelServer, how: str) -> None:
    key = f"messages-{how}"
    with asking_messages(gateway.url, script("drop", tokens=2, interval_ms=1, how=how, key=key)) as asked:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            asked.response.read()
    [call] = gateway.wait_closed(1, key=key)
    assert (call.tokens_sent, call.close_reason) == (2, "dropped")


def test_drop_may_end_the_body_properly_but_without_the_last_events(gateway: ModelServer) -> None:
    with asking_messages(gateway.url, script("drop", tokens=1, how="end")) as asked:
        assert shown(asked.named_events())[-1] == "0 t1 "


@pytest.mark.parametrize("offset", [-3, 0, 2, 6, 9, 500])
def test_split_loses_no_byte_wherever_it_cuts(gateway: ModelServer, offset: int) -> None:
    with asking_messages(gateway.url, script("split", offset=offset, pause_ms=1)) as asked:
        assert text_of(asked.named_events()) == SPLIT_TEXT


def test_surrogates_come_as_two_lone_escapes(gateway: ModelServer) -> None:
    with asking_messages(gateway.url, script("surrogates")) as asked:
        body = asked.response.read()
    assert b'"\\ud83d"' in body
    assert b'"\\ude42"' in body


def test_nonsense_scripts_are_as_broken_as_they_say(gateway: ModelServer) -> None:
    bodies = {}
    for name in ("html", "halfjson", "badutf8", "empty"):
        with asking_messages(gateway.url, script(name)) as asked:
            assert asked.status == 200
            bodies[name] = asked.response.read()
    assert bodies["html"].startswith(b"<!doctype html>")
    assert bodies["halfjson"].rstrip().endswith(b'"text":"ha')
    assert b"\xff\xfe" in bodies["badutf8"]
    assert bodies["empty"] == b""


@pytest.mark.parametrize("name", ["silent", "trickle", "endless", "late", "deaf", "prefill", "nonstream"])
def test_a_client_that_hangs_up_ends_the_call(gateway: ModelServer, name: str) -> None:
    key = f"gone-{name}"
    with asking_messages(gateway.url, script(name, tokens=1000, key=key)) as asked:
        gateway.wait_open(1, key=key)
        asked.hang_up()
        [call] = gateway.wait_closed(1, key=key)
    assert call.close_reason == "client_gone"


def test_the_log_shows_a_call_in_the_words_of_a_chat_completion(gateway: ModelServer) -> None:
    line = script("trickle", tokens=1, key="logged")
    messages = [*ROUND[:2], {"role": "user", "content": [*ROUND[2]["content"], {"type": "text", "text": line}]}]
    system = [{"type": "text", "text": "be kind"}]
    with asking_messages(gateway.url, "", messages=messages, system=system, tools=TOOLS) as asked:
        asked.named_events()
    [call] = gateway.wait_closed(1, key="logged")
    function = {"name": "f", "arguments": '{"x": 1}'}
    assert call.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done", "is_error": True},
        {"role": "user", "content": line},
    ]
    assert (call.tools, call.must_call, call.token, call.status) == (["f"], None, None, 200)
    assert (call.last_user_text, call.close_reason, call.tokens_sent) == (line, "finished", 1)


def test_the_header_with_the_version_is_required(gateway: ModelServer) -> None:
    status, body = gateway.request("POST", "/v1/messages", {"model": "m"})
    assert (status, body["type"]) == (400, "error")
    assert "anthropic-version" in body["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [{"messages": []}, {"messages": [1]}, {"max_tokens": None}, {"tools": [{"name": "f"}]}, {"messages": "hello"}],
)
def test_a_wrong_body_is_a_400_in_the_form_of_the_api(gateway: ModelServer, wrong: dict[str, Any]) -> None:
    with asking_messages(gateway.url, "hello", **wrong) as asked:
        assert asked.status == 400
        assert asked.json()["error"]["type"] == "invalid_request_error"


def test_a_wrong_script_line_is_a_400_in_the_form_of_the_api(gateway: ModelServer) -> None:
    with asking_messages(gateway.url, "/script nobody") as asked:
        assert asked.status == 400
        assert "nobody" in asked.json()["error"]["message"]


def test_content_of_every_shape_is_read() -> None:
    for content in ("hello", [{"type": "text", "text": "hello"}]):
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        assert parse_messages_request(json.dumps(body).encode()).asked == "hello"


# -- order ------------------------------------------------------------------------------------


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": list(messages), "tools": TOOLS, **more}


def use(*ids: str, **more: Any) -> dict[str, Any]:
    calls = [{"type": "tool_use", "id": call_id, "name": "f", "input": {}, **more} for call_id in ids]
    return {"role": "assistant", "content": calls}


def results(*ids: str, after: str = "", before: str = "") -> dict[str, Any]:
    found = [{"type": "tool_result", "tool_use_id": call_id, "content": "done"} for call_id in ids]
    first = [{"type": "text", "text": before}] if before else []
    last = [{"type": "text", "text": after}] if after else []
    return {"role": "user", "content": [*first, *found, *last]}


USER, MODEL = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    "good",
    [
        body(USER),
        body(USER, MODEL, USER),
        body(*ROUND),
        body(USER, use("a", "b"), results("b", "a", after="and now?")),
        body(USER, use("a"), results("a"), use("b"), results("b"), MODEL, USER, system="be kind"),
        body(USER, tool_choice={"type": "tool", "name": "f"}),
        {"model": "m", "max_tokens": 1, "messages": [USER], "stream": True},
    ],
)
def test_strict_accepts_what_the_api_accepts(good: dict[str, Any]) -> None:
    assert find_fault(good) is None


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (body(MODEL, USER), "first message is not the user's"),
        (body(USER, USER), "two user messages"),
        (body(USER, MODEL, MODEL, USER), "two assistant messages"),
        (body(USER, MODEL), "last message is not the user's"),
        (body({"role": "system", "content": "x"}, USER), "unknown role"),
        (body(USER, use("a"), USER), "without tool_result"),
        (body(USER, use("a")), "without tool_result"),
        (body(USER, use("a", "b"), results("a")), "without tool_result"),
        (body(USER, use("a"), results("a", "a")), "more than one"),
        (body(USER, use("a"), results("a", "b")), "without tool_use"),
        (body(results("a")), "without tool_use"),
        (body(USER, use("a"), results("a", before="wait")), "after other content"),
        (body(USER, use("a"), results("a"), MODEL, results("a")), "without tool_use"),
        (body(USER, use("a", "a"), results("a")), "unique"),
        (body(USER, use("a"), results("a"), use("a"), results("a")), "unique"),
        (body(USER, use("a.b"), results("a.b")), "letters"),
        (body(USER, use("a", name="f.g"), results("a")), "letters"),
        (body(USER, use("a", name="f" * 65), results("a")), "too many"),
        (body(USER, use("a", input="{}"), results("a")), "not an object"),
        (body({"role": "user", "content": " "}), "blank"),
        (body({"role": "user", "content": [{"type": "text", "text": ""}]}), "blank"),
        (body({"role": "user", "content": []}), "empty"),
        (body({"role": "user", "content": "\ud83d"}), "surrogate"),
        (body({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}), "of user"),
        (body(USER | {"turn_id": "t"}), "not permitted"),
        (body({"role": "user", "content": [{"type": "text", "text": "x", "cause": "y"}]}), "not permitted"),
        (body(USER, stream_options={}), "not permitted"),
        (body(USER, system=""), "blank"),
        (body(USER, max_tokens=0), "max_tokens"),
        (body(*ROUND, tools=[]), "must be declared"),
        (body(USER, tools=[*TOOLS, *TOOLS]), "unique"),
        (body(USER, tools=[{"name": "f.g", "input_schema": {"type": "object"}}]), "letters"),
        (body(USER, tools=[{"name": "f", "input_schema": {}}]), "not object"),
        (body(USER, tools=[TOOLS[0] | {"parameters": {}}]), "not permitted"),
        (body(USER, tool_choice={"type": "tool", "name": "g"}), "no tool 'g'"),
        (body(USER, tool_choice="auto"), "unknown type"),
        (body(USER, tools=[], tool_choice={"type": "none"}), "no tools"),
    ],
)
def test_strict_finds_every_disorder(bad: dict[str, Any], fault: str) -> None:
    assert fault in (find_fault(bad) or "")


def test_the_strict_script_refuses_disorder_and_answers_order(gateway: ModelServer) -> None:
    bad = [USER, {"role": "user", "content": script("strict")}]
    with asking_messages(gateway.url, "", messages=bad) as asked:
        assert asked.status == 400
        assert "two user messages" in asked.json()["error"]["message"]
    with asking_messages(gateway.url, script("strict")) as asked:
        assert text_of(asked.named_events()) == "All messages are in order."


def test_a_strict_gateway_checks_every_request() -> None:
    with ModelServer(strict=True) as strict:
        with asking_messages(strict.url, "", messages=[USER, MODEL]) as asked:
            assert asked.status == 400
        with asking_messages(strict.url, script("trickle", tokens=1)) as asked:
            assert asked.status == 200


def test_a_gateway_with_a_server_behind_it_says_that_it_passes_on_chat_completions_only(gateway: ModelServer) -> None:
    with ModelServer(upstream=f"{gateway.url}/v1") as front:
        for stream in (True, False):
            with asking_messages(front.url, "hello", stream=stream) as asked:
                assert asked.status == 501
                assert "chat completions" in asked.json()["error"]["message"]
