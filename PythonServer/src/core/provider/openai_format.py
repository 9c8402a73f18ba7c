"""The OpenAI chat-completions wire form: the one place that knows it.

Source: the OpenAI API reference for ``POST /v1/chat/completions`` and what compatible servers make of it
(vLLM, llama.cpp, Ollama, litellm): ``reasoning_content`` or ``reasoning``, tool calls without an index or
an id, no ``[DONE]``, a whole reply where a stream was asked for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from core.cancellation import Scope
from core.errors import ProviderNonsense, ProviderSilent
from core.provider.backoff import RETRYABLE_STATUSES
from core.provider.failures import ServerRejected, cancelled_by_gateway
from core.provider.http_failures import error_text, safe_excerpt
from core.provider.provider import Delta, Finish, ModelRequest, Reasoning, Text, Usage
from core.provider.tool_call_pieces import ToolCallPieces, as_dict, as_text
from core.provider.wire_names import CallIds, ToolNames
from core.surrogates import TextJoiner

END_MARK = "[DONE]"
_CANCELLED = 499
#: Finish reasons of a model that came to its end; the others cut it off, and then nothing is a failure.
_OF_ITSELF = ("stop", None)
#: What a message may carry; strict servers refuse a body with any other member.
_MEMBERS = ("role", "content", "name", "tool_calls", "tool_call_id")


def request_body(request: ModelRequest, names: ToolNames) -> dict[str, Any]:
    """The JSON body, always asking for a stream and for the usage at its end.

    ``names`` are those of :func:`core.provider.wire_names.tool_names`.
    """
    body: dict[str, Any] = {
        "model": request.model,
        "messages": _wire_messages(request.messages, names),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
        if request.must_call:
            body["tool_choice"] = {"type": "function", "function": {"name": names.wire(request.must_call)}}
    return body


def _tool(tool: dict[str, Any], names: ToolNames) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "name": names.wire(tool["function"]["name"])}}


def _wire_messages(messages: list[dict[str, Any]], names: ToolNames) -> list[dict[str, Any]]:
    """The messages without what only we know of them (``turn_id``, ``stopped``, ``is_error``, …), or is empty."""
    wire: list[dict[str, Any]] = []
    ids = CallIds()
    for message in messages:
        made = {name: message[name] for name in _MEMBERS if message.get(name) not in (None, [])}
        if "tool_calls" in made:
            made["tool_calls"] = _calls(made["tool_calls"], ids, names)
        if "tool_call_id" in made:
            made["tool_call_id"] = ids.for_result(made["tool_call_id"])
        wire.append(made)
    return wire


def _calls(calls: list[dict[str, Any]], ids: CallIds, names: ToolNames) -> list[dict[str, Any]]:
    wire_ids = ids.begin_round([call["id"] for call in calls])
    return [_call(wire_id, call["function"], names) for wire_id, call in zip(wire_ids, calls, strict=True)]


def _call(wire_id: str, function: dict[str, Any], names: ToolNames) -> dict[str, Any]:
    made = {"name": names.wire(function["name"]), "arguments": function["arguments"]}
    return {"id": wire_id, "type": "function", "function": made}


class ChatReader:
    """Reads one reply, payload by payload, as a stream of chunks or as one whole ``chat.completion``.

    ``inner_name`` turns the wire's tool names into ours. Raises ``ProviderNonsense`` for what is not of this form,
    ``ProviderSilent`` for what says nothing, ``ServerRejected`` for an error object, ``GoalCancelledException`` for an
    error object with code 499.
    """

    def __init__(self, scope: Scope, secrets: Sequence[str] = (), inner_name: Callable[[str], str] = str) -> None:
        self._scope = scope
        self._secrets = secrets
        self._inner_name = inner_name
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._tool_calls = ToolCallPieces()
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._has_said = False
        self._has_text = False
        #: The end mark came: nothing that matters follows.
        self.has_ended = False

    @property
    def may_end(self) -> bool:
        """Whether the reply is complete, though usage or an end mark may follow."""
        return self.has_ended or self._reason is not None

    @property
    def pieces(self) -> int:
        """How many pieces of tool calls have come."""
        return self._tool_calls.count

    def take(self, payload: str) -> Iterator[Delta]:
        """The deltas in one payload."""
        if payload.strip() == END_MARK:
            self.has_ended = True
            return
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ProviderNonsense("the model server sent something that is not JSON") from error
        yield from self._chunk(as_dict(chunk, "an answer"))

    def end(self) -> Iterator[Delta]:
        """The rest, and ``Finish``. To be called once, after the last payload."""
        if not self.may_end:
            raise ProviderNonsense("the model's answer ended without its end mark")
        yield from self._said(Reasoning, self._reasoning.end())
        yield from self._said(Text, self._text.end())
        tool_calls = self._tool_calls.complete()
        if not self._has_text and not tool_calls:
            silence = ProviderSilent if self._reason in _OF_ITSELF else ProviderNonsense
            raise silence(f"the model answered nothing (finish reason: {self._reason or 'none'})")
        yield from (replace(call, name=self._inner_name(call.name)) for call in tool_calls)
        yield Finish(self._reason or ("tool_calls" if tool_calls else "stop"))

    def _chunk(self, chunk: dict[str, Any]) -> Iterator[Delta]:
        if chunk.get("error"):
            raise self._failure(chunk["error"])
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            raise ProviderNonsense("the model server sent choices that are not a list")
        if not choices and not chunk.get("usage") and "choices" not in chunk:
            raise ProviderNonsense("the model server sent an answer without choices")
        for choice in choices[:1]:
            yield from self._choice(as_dict(choice, "a choice"))
        yield from self._counted(chunk.get("usage"))

    def _choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        whole = choice.get("message")
        delta = as_dict(whole or choice.get("delta") or {}, "a delta")
        thought = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        yield from self._said(Reasoning, self._reasoning.take(thought))
        said = as_text(delta.get("content")) + as_text(delta.get("refusal"))
        yield from self._said(Text, self._text.take(said))
        self._tool_calls.take(delta.get("tool_calls"), is_whole=whole is not None)
        reason = choice.get("finish_reason")
        if reason is not None:
            self._reason = str(reason)
        elif whole is not None:
            self.has_ended = True

    def _said(self, kind: type[Text] | type[Reasoning], text: str) -> Iterator[Delta]:
        if text:
            self._has_said = True
            self._has_text = self._has_text or kind is Text
            yield kind(text)

    def _counted(self, usage: Any) -> Iterator[Delta]:
        if not isinstance(usage, dict):
            return
        counted = Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
        if counted != self._usage and counted != Usage(None, None):
            self._usage = counted
            yield counted

    def _failure(self, error: Any) -> BaseException:
        code = error_status(error)
        if code == _CANCELLED:
            return cancelled_by_gateway(self._scope)
        detail = safe_excerpt(error_text(error), self._secrets)
        return ServerRejected(
            f"the model server broke the answer off: {detail}",
            code or 502,
            is_retryable=not self._has_said and code in RETRYABLE_STATUSES,
        )


def error_status(error: Any) -> int | None:
    """The HTTP-like code in an ``error`` object, if it has one."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code[:4])
    return code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
