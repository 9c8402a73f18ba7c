"""What the Anthropic API is sent for a history of ours."""

import json
from typing import Any

import pytest

from core.provider.anthropic_body import MAX_TOKENS, messages_body
from core.provider.provider import ModelRequest
from core.provider.wire_names import tool_names
from de2generator.anthropic_strict import find_fault
from tests.support.anthropic_kit import assistant, result, tool, user


def body_of(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body as the server would read it; a strict server takes it."""
    request = ModelRequest(list(messages), "m", **more)
    before = json.dumps(request.messages)
    body: dict[str, Any] = json.loads(json.dumps(messages_body(request, tool_names(request))))
    assert json.dumps(request.messages) == before, "the history itself was changed"
    assert find_fault(body) is None
    return body


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str, name: str = "f", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def answer(call_id: str, words: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": words, **more}


def test_a_request_has_a_limit_asks_for_a_stream_and_holds_nothing_else() -> None:
    assert body_of(user("hi")) == {
        "model": "m",
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": [text("hi")]}],
        "stream": True,
    }


def test_the_system_message_goes_beside_the_messages() -> None:
    body = body_of({"role": "system", "content": "be kind"}, user("hi"))

    assert body["system"] == "be kind"
    assert [message["role"] for message in body["messages"]] == ["user"]


def test_a_blank_system_message_is_left_out() -> None:
    assert "system" not in body_of({"role": "system", "content": " \n"}, user("hi"))


def test_a_round_becomes_tool_uses_and_one_message_of_results_in_order() -> None:
    body = body_of(
        user("go"),
        assistant("let me", ("a", "f", '{"x": 1}'), ("b", "g", "{}")),
        result("b", "second"),
        result("a", "first", is_error=True),
    )

    assert body["messages"][1:] == [
        {"role": "assistant", "content": [text("let me"), use("a", x=1), use("b", "g")]},
        {"role": "user", "content": [answer("b", "second"), answer("a", "first", is_error=True)]},
    ]


def test_a_user_message_after_results_joins_them_and_comes_after_them() -> None:
    body = body_of(user("go"), assistant("", ("a", "f", "{}")), result("a", "done"), user("and now?"))

    assert body["messages"][-1] == {"role": "user", "content": [answer("a", "done"), text("and now?")]}


def test_the_model_may_go_on_after_results() -> None:
    body = body_of(user("go"), assistant("", ("a", "f", "{}")), result("a", "done"), assistant("well"), user("ok"))

    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_blank_text_is_never_sent(blank: str) -> None:
    body = body_of(user("go"), assistant(blank, ("a", "f", "{}")), result("a", blank), assistant(blank), user("on"))

    assert body["messages"][1]["content"] == [use("a")]
    assert body["messages"][2]["content"] == [answer("a", "(no output)"), text("on")]


def test_messages_of_one_role_in_a_row_are_sent_as_one() -> None:
    body = body_of(user("a"), user("b"), assistant("c"), assistant("d"), user("e"))

    assert [[block["text"] for block in message["content"]] for message in body["messages"]] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]


def test_an_answer_at_the_end_is_not_sent_as_a_prefill_and_one_at_the_beginning_not_alone() -> None:
    body = body_of(assistant("I began"), user("yes"), assistant("and ended "))

    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize("arguments", ["", "[1]", "{", '"x"', '{"x": NaN}', '{"x": 1e999}', "[" * 100_000, "9" * 5000])
def test_arguments_that_are_no_object_are_shown_as_they_were(arguments: str) -> None:
    body = body_of(user("go"), assistant("", ("a", "f", arguments)), result("a", "no"))

    assert body["messages"][1]["content"] == [use("a", invalid_arguments=arguments)]


def test_our_own_marks_are_not_sent() -> None:
    marked = assistant("so far") | {"turn_id": "t", "stopped": True, "cause": "user"}

    assert "turn_id" not in json.dumps(body_of(user("go"), marked, user("next") | {"turn_id": "t"}))


def test_tools_are_declared_with_their_schema_and_the_one_that_must_be_called_is_named() -> None:
    body = body_of(user("go"), tools=[tool("f", x={"type": "string"}), tool("g")], must_call="g")

    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    assert body["tools"][0] == {"name": "f", "description": "does f", "input_schema": schema}
    assert body["tool_choice"] == {"type": "tool", "name": "g"}
    assert "tool_choice" not in body_of(user("go"), tools=[tool("f")])


def test_a_tool_without_a_schema_or_a_description_takes_any_object() -> None:
    body = body_of(user("go"), tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])

    assert body["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]


def test_where_no_tools_are_offered_those_of_the_history_are_declared_and_may_not_be_called() -> None:
    calls = assistant("", ("a", "f", "{}"), ("b", "g", "{}"), ("c", "f", "{}"))
    body = body_of(user("go"), calls, *(result(call_id, "done") for call_id in "abc"))

    assert [declared["name"] for declared in body["tools"]] == ["f", "g"]
    assert body["tool_choice"] == {"type": "none"}


def test_ids_that_the_api_refuses_are_renamed_in_call_and_result_alike() -> None:
    calls = assistant("", ("call:1", "f", "{}"), ("call.1", "f", "{}"), ("", "f", "{}"))
    body = body_of(user("go"), calls, result("call.1", "dot"), result("call:1", "colon"), result("", "none"))

    assert [block["id"] for block in body["messages"][1]["content"]] == ["call_1", "call_1_2", "call"]
    assert body["messages"][2]["content"] == [
        answer("call_1_2", "dot"),
        answer("call_1", "colon"),
        answer("call", "none"),
    ]


def test_an_id_that_comes_again_in_a_later_round_is_told_apart_and_the_earlier_one_stays() -> None:
    first = [user("go"), assistant("", ("a", "f", "{}")), result("a", "one")]
    both = body_of(*first, assistant("", ("a", "f", "{}")), result("a", "two"))

    assert both["messages"][:3] == body_of(*first)["messages"]
    assert both["messages"][3]["content"] == [use("a_2")]
    assert both["messages"][4]["content"] == [answer("a_2", "two")]


def test_names_that_the_api_refuses_are_renamed_and_found_again() -> None:
    names = ["files.read", "files_read", "a" * 80, "a" * 81, "", "größe"]
    request = ModelRequest([user("go")], "m", [tool(name) for name in names], must_call="files.read")
    known = tool_names(request)

    body = messages_body(request, known)

    assert find_fault(body) is None
    wire = [declared["name"] for declared in body["tools"]]
    assert wire[:2] == ["files_read_2", "files_read"]
    assert [known.inner(name) for name in wire] == names
    assert body["tool_choice"]["name"] == "files_read_2"
    assert known.inner("made_up") == "made_up"


def test_a_name_in_the_history_is_the_one_that_is_declared() -> None:
    calls = assistant("", ("a", "files.read", "{}"))
    body = body_of(user("go"), calls, result("a", "x"), tools=[tool("files_read"), tool("files.read")])

    assert body["messages"][1]["content"][0]["name"] == body["tools"][1]["name"] == "files_read_2"
