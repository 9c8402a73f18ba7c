"""One attempt of one model request: sent, read, booked, and its tokens told."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Final

from core.agent.ports import Asked, TurnPort
from core.call import Outcome
from core.cancellation import Cancelled, GoalCancelledException
from core.errors import ProviderError, ProviderSilent
from core.events import EventType
from core.provider.model_call import ModelCall
from core.provider.provider import Finish, ModelRequest, Provider, Reasoning, Text, ToolCall, Usage

#: Characters a token, for an estimate where the server did not count.
CHARS_A_TOKEN: Final = 4


@dataclass(slots=True)
class Reply:
    """A complete answer."""

    parts: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage | None = None
    #: Whether somebody may have seen a part of it, be it only the model thinking aloud.
    is_seen: bool = False

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.parts)


class Attempt:
    """One attempt. ``call`` has a scope of its own and is not in any book yet."""

    def __init__(
        self, request: ModelRequest, reply: Reply, call: ModelCall, asked: Asked, port: TurnPort
    ) -> None:  # fmt: skip
        self._request = request
        self._reply = reply
        self._call = call
        self._asked = asked
        self._port = port

    def run(self, provider: Provider) -> None:
        """Fill the reply; ``ProviderError`` and ``Cancelled`` leave in it what came. The outcome is settled."""
        call, reply = self._call, self._reply
        try:
            call.scope.checkpoint()
            self._read(provider)
            call.settle(Outcome.ALREADY_DONE, "it had finished")
            self.record_usage()
        except Cancelled as stop:
            settle_stopped(call, stop)
            if call.is_sent:
                self.record_usage(is_partial=True)
            raise
        except ProviderError as error:
            call.settle(Outcome.FAILED, "it failed", error.detail)
            is_partial = not isinstance(error, ProviderSilent)
            if reply.parts or reply.usage is not None or not is_partial:
                self.record_usage(is_partial)
            raise

    def _read(self, provider: Provider) -> None:
        call, reply = self._call, self._reply
        with contextlib.closing(provider.stream(self._request, call)) as deltas:
            for delta in deltas:
                match delta:
                    case Text(text):
                        reply.is_seen = True
                        reply.parts.append(text)
                        self._asked.on_text(text, call.scope)
                    case ToolCall():
                        reply.is_seen = True
                        reply.tool_calls.append(delta)
                    case Usage():
                        reply.usage = delta
                    case Reasoning(text):
                        reply.is_seen = True
                        self._port.emit(EventType.REASONING, {"text": text}, self._asked.goal_id, call.id)
                    case Finish():
                        # The last, and nothing is handed out after a stop: one that comes from now on comes too late.
                        call.settle(Outcome.ALREADY_DONE, "it had finished")
        call.scope.checkpoint()  # a shortened body may look complete

    def record_usage(self, is_partial: bool = False) -> None:
        """Tokens as the server counted them, else an estimate that says so; what is unknown is null, never 0."""
        reply = self._reply
        counted = reply.usage or Usage(None, None)
        # A count of 0 in the middle of an answer is a count not made yet.
        data: dict[str, Any] = {
            "model": self._request.model, "partial": is_partial, "source": "observed",
            "input_tokens": counted.input_tokens or None,
            "output_tokens": (counted.output_tokens or None) if is_partial else counted.output_tokens,
        }  # fmt: skip
        if is_partial or reply.usage is None:
            if not self._call.is_sent:
                return  # nothing left this server, so nothing was spent
            for name, estimate in _estimate(self._request, reply).items():
                if data[name] is None and estimate is not None:
                    data |= {name: estimate, "source": "estimated"}
        self._port.emit(EventType.USAGE, data, self._asked.goal_id, self._call.id)


def settle_stopped(call: ModelCall, stop: Cancelled) -> None:
    """What a stop made of a model call that met it."""
    if isinstance(stop, GoalCancelledException):
        call.settle(Outcome.CANCELLED, "gateway answered 499")
    elif not call.is_asked:  # else whoever asks notes what came of it
        call.settle(Outcome.ABORTED, "socket shut")


def _estimate(request: ModelRequest, reply: Reply) -> dict[str, int | None]:
    """Tokens by the length of what was sent and said; None where nothing was."""
    sent = sum(len(str(message.get("content") or "")) for message in request.messages)
    return {
        "input_tokens": max(1, sent // CHARS_A_TOKEN),
        "output_tokens": -(-len(reply.text) // CHARS_A_TOKEN) or None,
    }
