"""The request body of the Anthropic Messages API, from our inner form (the OpenAI chat form).

Source: the API reference for ``POST /v1/messages`` and what it answers 400 to. Roles alternate and a user begins;
the results of a round are one user message, before any text of the user's; no text is blank; what has tool blocks
must declare tools; the last message is never the assistant's, which would be a prefill.
"""

import json
from typing import Any, Final

from core.provider.provider import ModelRequest
from core.provider.wire_names import CallIds, ToolNames, called_names

#: The API demands a limit, and every current model allows this one.
MAX_TOKENS: Final = 8192

_SYSTEM: Final = ("system", "developer")
#: Stands where the API demands a user message and there is none; our own requests never need it.
_GO_ON: Final = "Go on."
#: A result must not be blank, at the latest where it is an error.
_NO_OUTPUT: Final = "(no output)"

Block = dict[str, Any]


def messages_body(request: ModelRequest, names: ToolNames) -> dict[str, Any]:
    """The JSON body, always asking for a stream; ``names`` are those of :func:`core.provider.wire_names.tool_names`."""
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": MAX_TOKENS,
        "messages": _wire_messages(request.messages, names),
        "stream": True,
    }
    system = [message["content"] for message in request.messages if message["role"] in _SYSTEM]
    if text := "\n\n".join(part for part in system if part and part.strip()):
        body["system"] = text
    if request.tools:
        body["tools"] = [_tool(tool["function"], names) for tool in request.tools]
        if request.must_call:
            body["tool_choice"] = {"type": "tool", "name": names.wire(request.must_call)}
    elif called := list(dict.fromkeys(called_names(request))):
        body["tools"] = [_tool({"name": name}, names) for name in called]
        body["tool_choice"] = {"type": "none"}
    return body


def _tool(function: dict[str, Any], names: ToolNames) -> dict[str, Any]:
    schema = {"type": "object", **(function.get("parameters") or {})}
    made = {"name": names.wire(function["name"]), "input_schema": schema}
    return made | ({"description": function["description"]} if function.get("description") else {})


def _wire_messages(messages: list[dict[str, Any]], names: ToolNames) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    ids = CallIds()
    for message in messages:
        match message["role"]:
            case "system" | "developer":
                continue
            case "assistant":
                _add(wire, "assistant", [*_text(message), *_tool_uses(message, ids, names)])
            case "tool":
                _add(wire, "user", [_tool_result(message, ids)])
            case _:
                _add(wire, "user", _text(message))
    if not wire or wire[0]["role"] != "user":
        wire.insert(0, {"role": "user", "content": [_text_block(_GO_ON)]})
    if wire[-1]["role"] != "user":
        _add(wire, "user", [_text_block(_GO_ON)])
    return wire


def _add(wire: list[dict[str, Any]], role: str, blocks: list[Block]) -> None:
    """Append a message; what follows one of the same role joins it, and what says nothing is left out."""
    if not blocks:
        return
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"].extend(blocks)
    else:
        wire.append({"role": role, "content": blocks})


def _text(message: dict[str, Any]) -> list[Block]:
    text = message.get("content") or ""
    return [_text_block(text)] if text.strip() else []


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _tool_uses(message: dict[str, Any], ids: CallIds, names: ToolNames) -> list[Block]:
    calls = message.get("tool_calls") or []
    if not calls:
        return []
    wire_ids = ids.begin_round([call["id"] for call in calls])
    return [
        {
            "type": "tool_use",
            "id": wire_id,
            "name": names.wire(call["function"]["name"]),
            "input": _input_of(call["function"]["arguments"]),
        }
        for wire_id, call in zip(wire_ids, calls, strict=True)
    ]


def _tool_result(message: dict[str, Any], ids: CallIds) -> Block:
    content = message.get("content") or ""
    block = {
        "type": "tool_result",
        "tool_use_id": ids.for_result(message["tool_call_id"]),
        "content": content if content.strip() else _NO_OUTPUT,
    }
    return block | ({"is_error": True} if message.get("is_error") else {})


def _input_of(arguments: str) -> dict[str, Any]:
    """The arguments as the object that the API demands; what is none is shown to the model as it was."""
    try:
        value = json.loads(arguments)
        # NaN and Infinity pass Python's reader and are no JSON.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"invalid_arguments": arguments}
