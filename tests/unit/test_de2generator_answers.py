"""What the stand-in gateway says by itself, and what it accepts: plans, text, arguments, order of messages."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from de2generator.believable import arguments_for, say
from de2generator.plans import make_plan
from de2generator.strict import find_fault, find_name_fault
from tests.support.chat_client import asking, text_of
from tests.support.model_server import ModelServer, script

LONG = "Compare three ways of heating an old house and say which one pays off within ten years"
PLAN_TOOL = {
    "type": "function",
    "function": {
        "name": "make_plan",
        "parameters": {
            "type": "object",
            "properties": {"goals": {"type": "array", "items": {"$ref": "#/$defs/Goal"}}},
            "$defs": {"Goal": {"properties": {"id": {}, "title": {}, "prompt": {}, "depends_on": {}}}},
        },
    },
}
MUST_PLAN: dict[str, Any] = {
    "tools": [PLAN_TOOL],
    "tool_choice": {"type": "function", "function": {"name": "make_plan"}},
    "stream": False,
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModelServer]:
    with ModelServer(tokens_per_second=2000) as server:
        yield server


def planned(gateway: ModelServer, message: str) -> Any:
    """The arguments of the plan tool call that a message gets."""
    with asking(gateway.url, message, **MUST_PLAN) as asked:
        [call] = asked.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "make_plan"
    return json.loads(call["function"]["arguments"])


def test_a_request_that_must_call_the_plan_tool_gets_a_plan(gateway: ModelServer) -> None:
    goals = planned(gateway, LONG)["goals"]
    assert 3 <= len(goals) <= 5
    assert [set(goal) for goal in goals] == [{"id", "title", "prompt", "depends_on"}] * len(goals)
    assert sum(not goal["depends_on"] for goal in goals) >= 2
    assert goals[-1]["depends_on"] == [goal["id"] for goal in goals[:-1]]
    assert planned(gateway, LONG)["goals"] == goals


@pytest.mark.parametrize("message", ["Hi", "hello there", "Thanks!", "What is 2 + 2?"])
def test_a_short_message_becomes_a_single_goal(message: str) -> None:
    [goal] = make_plan(message)
    assert goal["prompt"] == message


def test_a_message_of_several_sentences_becomes_a_goal_each() -> None:
    *parts, last = make_plan("Read the report carefully. List its open questions. Write to the author.")
    assert [goal["prompt"] for goal in parts] == [
        "Read the report carefully.",
        "List its open questions.",
        "Write to the author.",
    ]
    assert len(last["depends_on"]) == 3


def test_a_script_line_is_left_to_the_goal_unless_it_is_meant_for_the_plan(gateway: ModelServer) -> None:
    line = script("error", key="x")
    [goal] = planned(gateway, line)["goals"]
    assert goal["prompt"] == line
    with asking(gateway.url, script("error", on="plan"), **MUST_PLAN) as asked:
        assert asked.status == 500


def test_the_plan_script_gives_the_plan_that_it_is_told(gateway: ModelServer) -> None:
    plan = {"goals": [{"id": "a", "prompt": script("trickle", tokens=2)}]}
    assert planned(gateway, script("plan", plan=plan)) == plan
    assert planned(gateway, script("plan", plan=plan["goals"])) == plan


def test_the_plan_script_can_be_odd(gateway: ModelServer) -> None:
    assert len(planned(gateway, script("plan", many=500, prompt="say this"))["goals"]) == 500
    first, second = planned(gateway, script("plan", cycle=1))["goals"]
    assert (first["depends_on"], second["depends_on"]) == (["b"], ["a"])
    assert planned(gateway, script("plan", unknown=1))["goals"][0]["depends_on"] == ["nobody"]
    assert planned(gateway, script("plan", many=3, chain=1))["goals"][2]["depends_on"] == ["g2"]
    with pytest.raises(json.JSONDecodeError):
        planned(gateway, script("plan", nonsense=1))


def test_another_forced_tool_gets_the_smallest_arguments_that_fit() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b", "c", "d", "e"],
        "properties": {
            "a": {"type": "string", "enum": ["x", "y"]},
            "b": {"type": "array", "minItems": 2, "items": {"type": "integer", "minimum": 3}},
            "c": {"anyOf": [{"$ref": "#/$defs/inner"}, {"type": "null"}]},
            "d": {"type": ["string", "null"], "minLength": 2},
            "e": {"const": 7},
            "unneeded": {"type": "string"},
        },
        "$defs": {"inner": {"type": "object", "required": ["f"], "properties": {"f": {"type": "boolean"}}}},
    }
    assert arguments_for(schema) == {"a": "x", "b": [3, 3], "c": {"f": False}, "d": "aa", "e": 7}


def test_the_answer_speaks_of_the_prompt_and_is_always_the_same(gateway: ModelServer) -> None:
    with asking(gateway.url, LONG) as asked:
        text = text_of(asked.events()[:-1])
    assert text == "".join(say(LONG))
    assert "heating" in text
    assert text != "".join(say(LONG + "!"))


@pytest.mark.parametrize("prompt", ["Hi", "", LONG, "日本語でお願いします", "\ud83d"])
def test_an_answer_lasts_six_to_twelve_seconds_at_twenty_tokens_a_second(prompt: str) -> None:
    assert 6 * 20 <= len(list(say(prompt))) <= 13 * 20


def call(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    """An assistant message with tool calls."""
    function = {"name": "shell", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}


def said(role: str, text: str = "some text") -> dict[str, Any]:
    return {"role": role, "content": text}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


@pytest.mark.parametrize(
    "messages",
    [
        [said("user")],
        [said("system"), said("system"), said("user"), said("assistant"), said("user")],
        [said("user"), call("a"), result("a")],
        [said("user"), call("a", "b"), result("b"), result("a"), call("c"), result("c"), said("user")],
        [said("user"), call("a"), result("a"), said("assistant"), said("user")],
    ],
)
def test_strict_accepts_messages_in_order(messages: list[dict[str, Any]]) -> None:
    assert find_fault(messages) is None


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([said("system")], "no user message"),
        ([said("assistant"), said("user")], "not the user's"),
        ([said("user"), said("user")], "two user messages"),
        ([said("user"), said("assistant"), said("assistant"), said("user")], "two assistant messages"),
        ([said("user"), said("assistant")], "last message"),
        ([said("user"), said("system"), said("user")], "system message after"),
        ([said("user"), call("a"), said("user")], "without a result"),
        ([said("user"), call("a")], "without a result"),
        ([said("user"), call("a", "b"), result("a"), said("user")], "without a result"),
        ([said("user"), call("a"), said("user"), result("a")], "without a result"),
        ([said("user"), result("a")], "without its tool call"),
        ([said("user"), call("a"), result("a"), result("a")], "more than one"),
        ([said("user"), call("a"), result("a"), result("b")], "without a call"),
        ([said("user"), call("a", "a"), result("a")], "not unique"),
        ([said("user"), call("a", arguments='{"x'), result("a")], "not a JSON object"),
        ([said("user", "")], "empty"),
        ([said("user", "\ud83d")], "surrogate"),
        ([said("robot")], "unknown role"),
    ],
)
def test_strict_finds_every_disorder(messages: list[dict[str, Any]], fault: str) -> None:
    assert fault in (find_fault(messages) or "")


def named(name: str = "f", call_id: str = "a", **more: Any) -> dict[str, Any]:
    """A body with one call."""
    function = {"name": name, "arguments": "{}"}
    asked = {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
    return {"messages": [said("user"), asked, result(call_id)], **more}


def offers(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def forces(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    "body",
    [
        named(),
        named("a-B_9" + "x" * 59, "x" * 40),
        named(tools=offers("f", "g"), tool_choice=forces("g")),
        named(tools=offers("f"), tool_choice="required"),
        {"messages": [said("user"), call("a", "b"), result("b"), result("a"), call("c"), result("c")]},
    ],
)
def test_strict_accepts_names_and_ids_that_servers_take(body: dict[str, Any]) -> None:
    assert find_name_fault(body) is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (named("functions.shell"), "messages[1]: the tool name"),
        (named("a b"), "does not match"),
        (named(" "), "does not match"),
        (named(""), "does not match"),
        (named("a\n"), "does not match"),
        (named("é"), "does not match"),
        (named("x" * 65), "does not match"),
        (named(call_id="x" * 41), "too long"),
        (named(call_id=""), "empty"),
        ({"messages": [said("user"), call("a"), result("a"), call("a"), result("a")]}, "used before"),
        ({"messages": [said("user"), call("a"), result("b")]}, "no call 'b'"),
        (named(tools=offers("f", "files.read")), "tools[1]: the tool name"),
        (named(tools=offers("f", "f")), "not unique"),
        (named(tools=offers("f"), tool_choice=forces("g")), "no tool 'g'"),
    ],
)
def test_strict_finds_names_and_ids_that_servers_refuse(body: dict[str, Any], fault: str) -> None:
    assert fault in (find_name_fault(body) or "")


def test_a_strict_gateway_refuses_a_name_in_the_history() -> None:
    with ModelServer(strict=True) as strict, asking(strict.url, "", **named("functions.shell")) as asked:
        assert asked.status == 400
        assert "functions.shell" in asked.json()["error"]["message"]


def test_the_strict_script_refuses_disorder_and_answers_order(gateway: ModelServer) -> None:
    bad = [said("user"), said("user", script("strict"))]
    with asking(gateway.url, "", messages=bad) as asked:
        assert asked.status == 400
        assert "two user messages" in asked.json()["error"]["message"]
    with asking(gateway.url, script("strict")) as asked:
        assert text_of(asked.events()[:-1]) == "All messages are in order."


def test_a_strict_gateway_checks_every_request() -> None:
    with ModelServer(strict=True) as strict:
        with asking(strict.url, "", messages=[said("user"), said("assistant")]) as asked:
            assert asked.status == 400
        with asking(strict.url, script("trickle", tokens=1)) as asked:
            assert asked.status == 200
        [refused, _] = strict.wait_closed(2)
    assert refused.status == 400
