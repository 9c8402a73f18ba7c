"""The OpenAI chat-completions wire form: stream chunks and whole replies."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}

DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8; escapes only what UTF-8 cannot carry (half of a surrogate pair)."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def error_body(status: int, message: str) -> dict[str, Any]:
    """The error object that stands alone as an answer, and in a stream as its last frame."""
    error: dict[str, Any] = {"code": status, "message": message}
    if status in _ERROR_TYPES:
        error["type"] = _ERROR_TYPES[status]
    return {"error": error}


@dataclass(slots=True)
class Message:
    """The assistant's message, as far as it has been said."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The ``message`` of a whole reply; its content is null where only tools are called."""
        text = "".join(self.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.tool_calls else None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


class Wire:
    """Writes the frames of one reply; the parts that stay the same are written once."""

    def __init__(self, reply_id: str, model: str, *, include_usage: bool = False) -> None:
        self._head = {"id": reply_id, "created": int(time.time()), "model": model}
        frame = encode({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._before = b"data: " + frame + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if include_usage else b""
        self._after = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._usage = usage

    def delta(self, delta: dict[str, Any]) -> bytes:
        """One chunk of the stream."""
        return self._before + encode(delta) + self._after

    def role(self) -> bytes:
        """The first chunk."""
        return self.delta({"role": "assistant", "content": ""})

    def finish(self, reason: str) -> bytes:
        """The chunk that gives the finish reason."""
        ending = b'{},"finish_reason":' + encode(reason)
        return self._before + ending + b"}]" + self._usage + b"}\n\n"

    def usage(self, usage: dict[str, int]) -> bytes:
        """The chunk without choices that ``stream_options.include_usage`` asks for."""
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        return b"data: " + encode(chunk) + b"\n\n"

    def refusal(self, status: int, message: str) -> bytes:
        """The error as the whole answer."""
        return encode(error_body(status, message))

    def error(self, status: int, message: str) -> bytes:
        """The frame that ends a stream early."""
        return b"data: " + encode(error_body(status, message)) + b"\n\n"

    def whole(self, message: Message, reason: str, usage: dict[str, int] | None) -> bytes:
        """A reply that is not streamed."""
        choice = {"index": 0, "message": message.as_json(), "finish_reason": reason}
        body = {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return encode(body)


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
