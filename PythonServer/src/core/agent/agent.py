"""An agent: who answers a goal, with which instructions and model. One serves many turns at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from core.agent.ports import Asked, TurnPort
from core.agent.request_registry import RequestRegistry
from core.call import Call, CallKind, Outcome
from core.cancellation import Cancelled, GoalCancelledException, Level
from core.errors import ProviderError, ProviderSilent
from core.events import EventType
from core.gates import pause_at
from core.network.abortable import AbortableSocket
from core.provider.backoff import RetryPolicy, retry_after_of
from core.provider.model_call import ModelCall
from core.provider.provider import Finish, ModelRequest, Provider, Reasoning, Text, ToolCall, Usage
from core.tool.tool import Tool

#: Characters a token, for an estimate where the server did not count.
CHARS_A_TOKEN: Final = 4


@dataclass(slots=True)
class Reply:
    """A complete answer."""

    parts: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """How an agent is configured."""

    name: str
    instructions: str
    model: str
    #: By name, in the order in which they are offered.
    tools: Mapping[str, Tool] = field(default_factory=dict)


class Agent:
    """Asks the model, keeps the registry of requests in flight, and has them cancelled."""

    def __init__(
        self, profile: AgentProfile, provider: Provider, cancel_timeout_s: float, retries: RetryPolicy | None = None
    ) -> None:
        self.profile = profile
        self._provider = provider
        self._cancel_timeout_s = cancel_timeout_s
        self._retries = retries or RetryPolicy()
        self._registry = RequestRegistry()

    @property
    def name(self) -> str:
        """As the deployment calls it."""
        return self.profile.name

    # -- the documented surface -----------------------------------------------------------

    def cancel_llm_request(self, owner: object | None = None, timeout_s: float | None = None) -> None:
        """Ask the gateway to cancel the requests of one goal, or all of this agent's; returns when answered.

        Bounded by ``timeout_s`` in all. A request that the gateway does not cancel is cut.
        """
        deadline = time.monotonic() + (self._cancel_timeout_s if timeout_s is None else timeout_s)
        for call in self._registry.of(owner):
            call.cancel_request(deadline - time.monotonic())

    def has_requests_to_ask(self, owner: object) -> bool:
        """Whether a request of this goal is in flight that the gateway can be asked to cancel."""
        return self._provider.can_be_asked and bool(self._registry.of(owner))

    # -- asking the model ---------------------------------------------------------------------

    def ask(self, request: ModelRequest, asked: Asked, port: TurnPort) -> Reply:
        """The model's answer, text streamed to ``asked.on_text`` as it comes.

        One retry loop, ours: a failed attempt is made again only if nothing of its answer was seen yet. Raises
        ``ProviderError`` when that is hopeless, ``Cancelled`` on a stop.
        """
        attempt = 1
        while True:
            pause_at("agent.before_request")
            reply = Reply()
            try:
                return self._attempt(request, asked, port, reply)
            except ProviderError as error:
                seen = bool(reply.parts or reply.tool_calls)
                if seen or self._retries.is_exhausted(attempt) or not self._retries.is_retryable(error):
                    raise
                self._rest(error, attempt, asked, port)
            attempt += 1

    def _attempt(self, request: ModelRequest, asked: Asked, port: TurnPort, reply: Reply) -> Reply:
        asked.scope.checkpoint()
        scope = asked.scope.open(Level.CALL, "model_call")
        call = ModelCall(scope, asked.goal_id, AbortableSocket(), self._provider, self._cancel_timeout_s)
        self._registry.add(asked.owner, call)
        port.calls.add(call)
        try:
            scope.checkpoint()
            self._read(request, asked, call, reply, port)
            call.settle(Outcome.ALREADY_DONE, "it had finished")
        except Cancelled as stop:
            if isinstance(stop, GoalCancelledException):
                call.settle(Outcome.CANCELLED, "gateway answered 499")
            elif not call.is_asked:  # else whoever asks notes what came of it
                call.settle(Outcome.ABORTED, "socket shut")
            if call.is_sent:
                self._record_usage(request, asked, call, reply, port, is_partial=True)
            raise
        except ProviderError as error:
            call.settle(Outcome.FAILED, "it failed", error.detail)
            is_partial = not isinstance(error, ProviderSilent)
            if reply.parts or reply.usage is not None or not is_partial:
                self._record_usage(request, asked, call, reply, port, is_partial)
            raise
        finally:
            scope.finish()
            port.calls.remove(call)
            self._registry.remove(asked.owner, call)
        self._record_usage(request, asked, call, reply, port)
        return reply

    def _read(self, request: ModelRequest, asked: Asked, call: ModelCall, reply: Reply, port: TurnPort) -> None:
        with contextlib.closing(self._provider.stream(request, call)) as deltas:
            for delta in deltas:
                match delta:
                    case Text(text):
                        reply.parts.append(text)
                        asked.on_text(text)
                    case ToolCall():
                        reply.tool_calls.append(delta)
                    case Usage():
                        reply.usage = delta
                    case Reasoning(text):
                        port.emit(EventType.REASONING, {"text": text}, asked.goal_id, call.id)
                    case Finish():
                        pass
        call.scope.checkpoint()  # a shortened body may look complete

    def _rest(self, error: ProviderError, attempt: int, asked: Asked, port: TurnPort) -> None:
        seconds, is_capped = self._retries.delay_s(attempt, retry_after_of(error))
        scope = asked.scope.open(Level.CALL, "wait")
        wait = Call(CallKind.WAIT, scope, asked.goal_id)
        port.calls.add(wait)
        data = {
            "attempt": attempt, "max_attempts": self._retries.max_attempts, "wait_ms": round(seconds * 1000),
            "capped": is_capped, "reason": error.detail,
        }  # fmt: skip
        try:
            port.emit(EventType.RETRY, data, asked.goal_id, wait.id)
            with port.workers.resting(scope):
                scope.sleep(seconds)
            wait.settle(Outcome.ALREADY_DONE, "it was over")
        except Cancelled:
            wait.settle(Outcome.CANCELLED, "woken")
            raise
        finally:
            scope.finish()
            port.calls.remove(wait)

    def _record_usage(
        self, request: ModelRequest, asked: Asked, call: ModelCall, reply: Reply, port: TurnPort,
        is_partial: bool = False,
    ) -> None:  # fmt: skip
        """Tokens as the server counted them, else an estimate that says so; what is unknown is null, never 0."""
        counted = reply.usage or Usage(None, None)
        # A count of 0 in the middle of an answer is a count not made yet.
        data: dict[str, Any] = {
            "model": request.model, "partial": is_partial, "source": "observed",
            "input_tokens": counted.input_tokens or None,
            "output_tokens": (counted.output_tokens or None) if is_partial else counted.output_tokens,
        }  # fmt: skip
        if is_partial or reply.usage is None:
            if not call.is_sent:
                return  # nothing left this server, so nothing was spent
            for name, estimate in _estimate(request, reply).items():
                if data[name] is None and estimate is not None:
                    data |= {name: estimate, "source": "estimated"}
        port.emit(EventType.USAGE, data, asked.goal_id, call.id)


def _estimate(request: ModelRequest, reply: Reply) -> dict[str, int | None]:
    """Tokens by the length of what was sent and said; None where nothing was."""
    sent = sum(len(str(message.get("content") or "")) for message in request.messages)
    return {
        "input_tokens": max(1, sent // CHARS_A_TOKEN),
        "output_tokens": -(-len(reply.text) // CHARS_A_TOKEN) or None,
    }
