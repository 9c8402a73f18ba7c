"""What the tests of the Anthropic form share: the events of a stream, and histories of our inner form."""

import json
from typing import Any

from tests.support.raw_server import Peer


def event(kind: str, **members: Any) -> bytes:
    """One event of a streamed message."""
    data = json.dumps({"type": kind, **members}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def start(**usage: Any) -> bytes:
    """``message_start``; without counts the input was 7 tokens."""
    counted = usage or {"input_tokens": 7, "output_tokens": 1}
    return event("message_start", message={"id": "m", "type": "message", "role": "assistant", "usage": counted})


def delta(kind: str, index: int = 0, **members: Any) -> bytes:
    """A piece of a block."""
    return event("content_block_delta", index=index, delta={"type": kind, **members})


def opened(kind: str, index: int = 0, **members: Any) -> bytes:
    """A block begins."""
    return event("content_block_start", index=index, content_block={"type": kind, **members})


def said(text: str, index: int = 0) -> bytes:
    """A text block begins, with one piece of text."""
    return opened("text", index, text="") + delta("text_delta", index, text=text)


def called(call_id: str, name: str, *pieces: str, index: int = 0) -> bytes:
    """A tool call whose input comes in these pieces."""
    parts = [delta("input_json_delta", index, partial_json=piece) for piece in pieces]
    ended = event("content_block_stop", index=index)
    return opened("tool_use", index, id=call_id, name=name, input={}) + b"".join(parts) + ended


def stopped(reason: str | None = "end_turn", **usage: Any) -> bytes:
    """``message_delta``; without counts the output was 3 tokens."""
    counted = usage or {"output_tokens": 3}
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=counted)


END = event("message_stop")
STOP = event("content_block_stop", index=0) + stopped() + END
WHOLE = json.dumps(
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "whole"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }
).encode()


def good_reply(peer: Peer) -> None:
    """A script: answers every request of the connection with the word ``ok``."""
    while peer.read_request() is not None:
        peer.begin_stream()
        peer.chunk(start() + said("ok") + STOP)
        peer.chunk(b"")


# -- histories ------------------------------------------------------------------------------


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """An assistant message; calls are ``(id, name, arguments)``."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": made} if made else {})


def result(call_id: str, text: str, **more: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool that is offered."""
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": schema}}
