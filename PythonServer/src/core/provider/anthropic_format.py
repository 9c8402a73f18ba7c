"""A reply of the Anthropic Messages API; the request is in :mod:`core.provider.anthropic_body`.

Source: the API reference for streamed messages. The events are ``message_start``, for each content block
``content_block_start``, ``…_delta``, ``…_stop``, then ``message_delta`` and ``message_stop``; ``ping`` and
``error`` may come anywhere, and clients must pass over events and blocks that they do not know.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from core.errors import ProviderNonsense, ProviderSilent
from core.provider.backoff import RETRYABLE_STATUSES
from core.provider.failures import ServerRejected
from core.provider.http_failures import error_text, safe_excerpt
from core.provider.provider import Delta, Finish, Reasoning, Text, Usage
from core.provider.tool_call_pieces import ToolCallPieces, as_dict, as_text
from core.surrogates import TextJoiner

#: Type of an error -> the status that it has where it comes as a status (API reference, "Errors").
ERROR_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
#: Stop reasons of a model that came to its end; the others cut it off, and then nothing is a failure.
_OF_ITSELF: Final = ("end_turn", "stop_sequence", None)
_INPUT_COUNTS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class MessageReader:
    """Reads one reply, payload by payload, as a stream of events or as one whole ``message``.

    ``inner_name`` turns the wire's tool names into ours. Raises ``ProviderNonsense`` for what is not of this form,
    ``ProviderSilent`` for what says nothing, ``ServerRejected`` for an error.
    """

    def __init__(self, inner_name: Callable[[str], str] = str, secrets: Sequence[str] = ()) -> None:
        self._inner_name = inner_name
        self._secrets = secrets
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._tool_calls = ToolCallPieces()
        #: Inputs that came whole with the start of their block, as some servers send them.
        self._whole_inputs: dict[int | None, dict[str, Any]] = {}
        #: Blocks that are no tool call of ours, though some of them have an input, too.
        self._passed_over: set[int | None] = set()
        self._counts: dict[str, int] = {}
        self._usage = Usage(None, None)
        self._reason: str | None = None
        self._has_said = False
        self._has_text = False
        #: The last event came: nothing that matters follows.
        self.has_ended = False

    @property
    def may_end(self) -> bool:
        """Whether the reply is complete, though its last event may follow."""
        return self.has_ended or self._reason is not None

    @property
    def pieces(self) -> int:
        """How many pieces of tool calls have come."""
        return self._tool_calls.count

    def take(self, payload: str) -> Iterator[Delta]:
        """The deltas in one payload."""
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ProviderNonsense("the model server sent something that is not JSON") from error
        event = as_dict(value, "an answer")
        if event.get("error"):
            raise self._failure(event["error"])
        if not isinstance(event.get("type"), str):
            raise ProviderNonsense("the model server sent an answer without a type")
        yield from self._event(event)

    def end(self) -> Iterator[Delta]:
        """The rest, and ``Finish``. To be called once, after the last payload."""
        if not self.may_end:
            raise ProviderNonsense("the model's answer ended without its end mark")
        yield from self._said(Reasoning, self._reasoning.end())
        yield from self._said(Text, self._text.end())
        for index, whole in self._whole_inputs.items():
            self._tool_calls.take([{"index": index, "function": {"arguments": whole}}])
        tool_calls = self._tool_calls.complete()
        if not self._has_text and not tool_calls:
            silence = ProviderSilent if self._reason in _OF_ITSELF else ProviderNonsense
            raise silence(f"the model answered nothing (stop reason: {self._reason or 'none'})")
        yield from (replace(call, name=self._inner_name(call.name)) for call in tool_calls)
        yield Finish(self._reason or ("tool_use" if tool_calls else "end_turn"))

    def _event(self, event: dict[str, Any]) -> Iterator[Delta]:
        match event["type"]:
            case "message_start":
                # The output count in here is a placeholder.
                usage = as_dict(event.get("message") or {}, "a message").get("usage")
                yield from self._counted(usage, with_output=False)
            case "content_block_start":
                yield from self._block(as_dict(event.get("content_block"), "a content block"), _index_of(event))
            case "content_block_delta":
                yield from self._delta(as_dict(event.get("delta"), "a delta"), _index_of(event))
            case "message_delta":
                self._stopped(as_dict(event.get("delta") or {}, "a delta"))
                yield from self._counted(event.get("usage"))
            case "message_stop":
                self.has_ended = True
            case "message":
                yield from self._whole(event)
            case "error":
                raise self._failure("unknown")

    def _block(self, block: dict[str, Any], index: int | None) -> Iterator[Delta]:
        self._passed_over.add(index)
        match block.get("type"):
            case "text":
                yield from self._said(Text, self._text.take(as_text(block.get("text"))))
            case "thinking":
                yield from self._said(Reasoning, self._reasoning.take(as_text(block.get("thinking"))))
            case "tool_use":
                self._passed_over.discard(index)
                function = {"name": block.get("name"), "arguments": ""}
                self._tool_calls.take([{"index": index, "id": block.get("id"), "function": function}])
                if block.get("input"):
                    self._whole_inputs[index] = as_dict(block["input"], "a tool input")

    def _delta(self, delta: dict[str, Any], index: int | None) -> Iterator[Delta]:
        match delta.get("type"):
            case "text_delta":
                yield from self._said(Text, self._text.take(as_text(delta.get("text"))))
            case "thinking_delta":
                yield from self._said(Reasoning, self._reasoning.take(as_text(delta.get("thinking"))))
            case "input_json_delta" if index not in self._passed_over:
                piece = as_text(delta.get("partial_json"))
                if piece:
                    self._whole_inputs.pop(index, None)
                    self._tool_calls.take([{"index": index, "function": {"arguments": piece}}])

    def _whole(self, message: dict[str, Any]) -> Iterator[Delta]:
        blocks = message.get("content")
        if not isinstance(blocks, list):
            raise ProviderNonsense("the model server sent content that is not a list")
        for index, block in enumerate(blocks):
            yield from self._block(as_dict(block, "a content block"), index)
        self._stopped(message)
        self.has_ended = True
        yield from self._counted(message.get("usage"))

    def _stopped(self, part: dict[str, Any]) -> None:
        reason = part.get("stop_reason")
        if reason is not None:
            self._reason = str(reason)

    def _said(self, kind: type[Text] | type[Reasoning], text: str) -> Iterator[Delta]:
        if text:
            self._has_said = True
            self._has_text = self._has_text or kind is Text
            yield kind(text)

    def _counted(self, usage: Any, *, with_output: bool = True) -> Iterator[Delta]:
        """The usage as far as it is known, if it changed. The counts of each event are totals."""
        if not isinstance(usage, dict):
            return
        names = (*_INPUT_COUNTS, "output_tokens") if with_output else _INPUT_COUNTS
        self._counts |= {name: usage[name] for name in names if _is_count(usage.get(name))}
        # Cached input is counted apart; the three together are what was sent.
        asked = sum(self._counts.get(name, 0) for name in _INPUT_COUNTS)
        counted = Usage(asked if "input_tokens" in self._counts else None, self._counts.get("output_tokens"))
        if counted != self._usage:
            self._usage = counted
            yield counted

    def _failure(self, error: Any) -> ServerRejected:
        kind = error.get("type") if isinstance(error, dict) else None
        status = ERROR_STATUSES.get(kind) if isinstance(kind, str) else None
        detail = safe_excerpt(error_text(error), self._secrets)
        return ServerRejected(
            f"the model server broke the answer off: {detail}",
            status or 502,
            is_retryable=not self._has_said and status in RETRYABLE_STATUSES,
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _index_of(event: dict[str, Any]) -> int | None:
    index = event.get("index")
    return index if isinstance(index, int) else None
