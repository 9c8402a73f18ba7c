"""A request of the Anthropic Messages API as the gateway understands it: as the chat completion that it amounts to.

So one script serves both forms, and the log shows both in the same words.
"""

import json
from typing import Any

from de2generator.chat_request import ChatRequest, asked_of, find_script, read_messages, read_object, text_of
from de2generator.errors import BadRequestError


def parse_messages_request(raw: bytes) -> ChatRequest:
    """Read a body; ``body`` stays as it came. Raises ``BadRequestError`` saying what is wrong."""
    body = read_object(raw)
    if not isinstance(body.get("max_tokens"), int):
        raise BadRequestError("'max_tokens' must be a whole number")
    system = text_of({"content": body.get("system")})
    messages = [{"role": "system", "content": system}] if system else []
    for message in read_messages(body):
        messages += _chat_messages(message)
    tools = [_function(tool) for tool in body.get("tools") or []]
    must_call = _forced(body.get("tool_choice"), tools)
    asked, model = asked_of(messages), str(body.get("model", ""))
    return ChatRequest(
        body=body,
        messages=messages,
        model=model,
        stream=bool(body.get("stream")),
        include_usage=True,
        tools=tools,
        must_call=must_call,
        token=None,
        asked=asked,
        script=find_script(asked, model, is_forced=must_call is not None),
    )


def _chat_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message of the wire as chat messages: results first, then the text with the tool calls."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    made = [_tool_message(block) for block in blocks if block.get("type") == "tool_result"]
    calls = [_tool_call(block) for block in blocks if block.get("type") == "tool_use"]
    text = text_of({"content": [block for block in blocks if block.get("type") == "text"] if blocks else content})
    if text or calls or not made:
        said = {"role": message.get("role"), "content": text}
        made.append({**said, "tool_calls": calls} if calls else said)
    return made


def _tool_message(block: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text_of(block)}
    return message | ({"is_error": True} if block.get("is_error") else {})


def _tool_call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input"), ensure_ascii=False)
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": arguments},
    }


def _function(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise BadRequestError("each of 'tools' must have an 'input_schema' that is an object")
    return {**tool, "parameters": tool["input_schema"]}


def _forced(choice: Any, tools: list[dict[str, Any]]) -> str | None:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        return str(choice.get("name"))
    return str(tools[0].get("name")) if kind == "any" and tools else None
