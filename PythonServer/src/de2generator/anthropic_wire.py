"""The wire form of the Anthropic Messages API: stream events and whole messages."""

import json
from typing import Any

from de2generator.openai_wire import Message, encode

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
#: Every thinking block is signed; nothing here checks it.
_SIGNATURE = "c3RhbmQtaW4="


def error_body(status: int, message: str) -> dict[str, Any]:
    """The error object that stands alone as an answer, and in a stream as its last event."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 499 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


class AnthropicWire:
    """Writes the events of one reply; which block is open is known to whoever calls."""

    def __init__(self, reply_id: str, model: str) -> None:
        self._head = {"id": reply_id, "type": "message", "role": "assistant", "model": model}

    def start(self, usage: dict[str, int]) -> bytes:
        """The first events. The count of the output is a placeholder, as with the real API."""
        counted = {**_usage(usage), "output_tokens": 1}
        stopped = {"stop_reason": None, "stop_sequence": None}
        message: dict[str, Any] = {**self._head, "content": [], **stopped, "usage": counted}
        return _event("message_start", message=message) + _event("ping")

    def open_block(self, index: int, block: dict[str, Any]) -> bytes:
        """A content block begins."""
        return _event("content_block_start", index=index, content_block=block)

    def open_text(self, index: int) -> bytes:
        """A block of text begins."""
        return self.open_block(index, {"type": "text", "text": ""})

    def open_thinking(self, index: int) -> bytes:
        """A block of thinking begins."""
        return self.open_block(index, {"type": "thinking", "thinking": "", "signature": ""})

    def open_tool_use(self, index: int, call_id: str, name: str) -> bytes:
        """A tool call begins."""
        return self.open_block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def text(self, index: int, piece: str) -> bytes:
        """A piece of text."""
        return _delta(index, "text_delta", text=piece)

    def thinking(self, index: int, piece: str) -> bytes:
        """A piece of thinking."""
        return _delta(index, "thinking_delta", thinking=piece)

    def arguments(self, index: int, piece: str) -> bytes:
        """A piece of a tool call's input, as JSON text."""
        return _delta(index, "input_json_delta", partial_json=piece)

    def close_block(self, index: int, kind: str) -> bytes:
        """A block ends; thinking is signed first."""
        signature = _delta(index, "signature_delta", signature=_SIGNATURE) if kind == "thinking" else b""
        return signature + _event("content_block_stop", index=index)

    def finish(self, reason: str, usage: dict[str, int]) -> bytes:
        """The last events; ``reason`` in the words of the scripts."""
        delta = {"stop_reason": _STOP_REASONS.get(reason, reason), "stop_sequence": None}
        counted = {"output_tokens": usage["completion_tokens"]}
        return _event("message_delta", delta=delta, usage=counted) + _event("message_stop")

    def refusal(self, status: int, message: str) -> bytes:
        """The error as the whole answer."""
        return encode(error_body(status, message))

    def error(self, status: int, message: str) -> bytes:
        """The event that ends a stream early."""
        return _framed("error", error_body(status, message))

    def whole(self, message: Message, reason: str, usage: dict[str, int] | None) -> bytes:
        """A reply that is not streamed."""
        stopped = {"stop_reason": _STOP_REASONS.get(reason, reason), "stop_sequence": None}
        counted = _usage(usage or {"prompt_tokens": 0, "completion_tokens": 0})
        return encode({**self._head, "content": _blocks(message), **stopped, "usage": counted})


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thinking := "".join(message.reasoning):
        blocks.append({"type": "thinking", "thinking": thinking, "signature": _SIGNATURE})
    if text := "".join(message.text):
        blocks.append({"type": "text", "text": text})
    for call in message.tool_calls:
        function = call["function"]
        block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**block, "input": _input_of(function["arguments"])})
    return blocks


def _input_of(arguments: str) -> dict[str, Any]:
    """The input as an object; what is none is wrapped, because this form cannot say it otherwise."""
    try:
        value = json.loads(arguments)
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"value": value}


def _usage(usage: dict[str, int]) -> dict[str, int]:
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}


def _delta(index: int, kind: str, **members: Any) -> bytes:
    return _event("content_block_delta", index=index, delta={"type": kind, **members})


def _event(kind: str, **members: Any) -> bytes:
    return _framed(kind, {"type": kind, **members})


def _framed(kind: str, value: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode(value) + b"\n\n"
