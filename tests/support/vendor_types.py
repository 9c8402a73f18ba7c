"""The vendors' own types as a judge: whether a body, an event or an answer is of their wire form, without a rest."""

from typing import Any

from anthropic.types import (
    ErrorResponse,
    Message,
    RawMessageStreamEvent,
    TextBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import BaseModel, ConfigDict, TypeAdapter

_STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
# In a list, because pydantic takes a configuration for a TypedDict only from around it.
_ANTHROPIC_BODY: TypeAdapter[Any] = TypeAdapter(list[MessageCreateParamsStreaming], config=_STRICT)
_OPENAI_BODY: TypeAdapter[Any] = TypeAdapter(list[CompletionCreateParamsStreaming], config=_STRICT)
_ANTHROPIC_BLOCKS: dict[str, TypeAdapter[Any]] = {
    "text": TypeAdapter(list[TextBlockParam], config=_STRICT),
    "tool_use": TypeAdapter(list[ToolUseBlockParam], config=_STRICT),
    "tool_result": TypeAdapter(list[ToolResultBlockParam], config=_STRICT),
}
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def check_anthropic_body(body: dict[str, Any]) -> None:
    """``ValidationError`` unless it is a streamed request of the Messages API with no member too many."""
    _drain(_ANTHROPIC_BODY.validate_python([body]))
    # The vendor's union for content also takes models of answers, which allow any member: so block by block.
    for message in body["messages"]:
        for block in message["content"]:
            _drain(_ANTHROPIC_BLOCKS[block["type"]].validate_python([block]))


def check_openai_body(body: dict[str, Any]) -> None:
    """``ValidationError`` unless it is a streamed chat-completion request with no member too many."""
    _drain(_OPENAI_BODY.validate_python([body]))


def check_anthropic_event(data: str) -> Any:
    """The event; ``ValidationError`` or ``AssertionError`` unless the vendor knows all of it."""
    return _whole(_EVENT.validate_json(data, strict=True))


def check_anthropic_answer(data: str) -> Any:
    """The same for an answer in one piece."""
    return _whole(Message.model_validate_json(data, strict=True))


def check_anthropic_error(data: str) -> Any:
    """The same for an error, which is a whole answer or the last event."""
    return _whole(ErrorResponse.model_validate_json(data, strict=True))


def check_openai_chunk(data: str) -> Any:
    """The same for a chunk of a streamed chat completion. Thinking aloud is no part of the vendor's form."""
    return _whole(ChatCompletionChunk.model_validate_json(data, strict=True), {"reasoning_content"})


def check_openai_answer(data: str) -> Any:
    """The same for a chat completion in one piece."""
    return _whole(ChatCompletion.model_validate_json(data, strict=True), {"reasoning_content"})


def _whole(value: Any, allowed: frozenset[str] | set[str] = frozenset()) -> Any:
    """The value, if nothing in it is a member that its type does not name."""
    if isinstance(value, BaseModel):
        extra = set(value.model_extra or ()) - allowed
        assert not extra, f"{type(value).__name__} knows no {extra}"
        for name in type(value).model_fields:
            _whole(getattr(value, name), allowed)
    elif isinstance(value, list):
        for item in value:
            _whole(item, allowed)
    return value


def _drain(value: Any) -> None:
    """Read what pydantic validates only while it is read: the vendors' lists are declared as iterables."""
    if isinstance(value, dict):
        for item in value.values():
            _drain(item)
    elif hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        for item in value:
            _drain(item)
