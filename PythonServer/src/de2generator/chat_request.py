"""A chat-completion request as the gateway understands it."""

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from de2generator.errors import BadRequestError
from de2generator.script_line import ScriptLine, find_script_lines

#: Scripts that answer where a tool is forced; the others leave that to the planner, unless they say ``on=``.
_FOR_FORCED = {"plan": "plan", "strict": "any"}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The OpenAI body, looked through once."""

    body: dict[str, Any]
    messages: list[dict[str, Any]]
    model: str
    stream: bool
    include_usage: bool
    #: The offered functions: ``{"name", "parameters"?, …}``.
    tools: list[dict[str, Any]]
    #: Name of the function that ``tool_choice`` forces.
    must_call: str | None
    #: The cancellation token of ``metadata``.
    token: str | None
    #: Text of the last user message.
    asked: str
    script: ScriptLine | None

    @property
    def tool_names(self) -> list[str]:
        """Names of the offered functions."""
        return [str(tool.get("name")) for tool in self.tools]

    def forced_tool(self) -> dict[str, Any]:
        """The function that must be called; without parameters if it was not offered."""
        return next((t for t in self.tools if t.get("name") == self.must_call), {"name": self.must_call})


def parse_chat_request(raw: bytes) -> ChatRequest:
    """Read a body. Raises ``BadRequestError`` saying what is wrong."""
    body = read_object(raw)
    messages = read_messages(body)
    model = str(body.get("model", ""))
    tools = [_function(tool) for tool in body.get("tools") or []]
    must_call = _forced(body.get("tool_choice"), tools)
    asked = asked_of(messages)
    return ChatRequest(
        body=body,
        messages=messages,
        model=model,
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        tools=tools,
        must_call=must_call,
        token=_token(body.get("metadata")),
        asked=asked,
        script=find_script(asked, model, is_forced=must_call is not None),
    )


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whether it is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def asked_of(messages: list[dict[str, Any]]) -> str:
    """Text of the last user message."""
    return next((text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")


def read_object(raw: bytes) -> dict[str, Any]:
    """A body that is a JSON object, else ``BadRequestError``."""
    try:
        body = json.loads(raw)
    except ValueError:
        raise BadRequestError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    return body


def read_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages as they came; ``BadRequestError`` if there are none, or one is no object."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequestError("'messages' must be a non-empty list of objects")
    return messages


def _function(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise BadRequestError("each of 'tools' must have a 'function' that is an object")
    return function


def _forced(choice: Any, tools: list[dict[str, Any]]) -> str | None:
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        return str(name) if name else None
    return str(tools[0].get("name")) if choice == "required" and tools else None


def _token(metadata: Any) -> str | None:
    token = metadata.get("cancellation_token") if isinstance(metadata, dict) else None
    if token is not None and not isinstance(token, str):
        raise BadRequestError("'metadata.cancellation_token' must be a string")
    return token


def find_script(asked: str, model: str, *, is_forced: bool) -> ScriptLine | None:
    """The first script line that is meant for this kind of request and this model (``model=``, a glob)."""
    wanted = {"any", "plan" if is_forced else "goal"}
    return next(
        (
            line
            for line in find_script_lines(asked, model)
            if line.text("on", _FOR_FORCED.get(line.name, "goal")) in wanted
            and fnmatchcase(model, line.text("model", "*"))
        ),
        None,
    )
