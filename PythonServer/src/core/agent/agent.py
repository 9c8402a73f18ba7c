"""An agent: who answers a goal, with which instructions and model. One serves many turns at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from core.agent.attempt import Attempt, Reply
from core.agent.model_catalog import ModelCatalog
from core.agent.model_choice import ModelChoice, ModelWish
from core.agent.ports import Asked, TurnPort
from core.agent.request_registry import RequestRegistry
from core.agent.waiting import waiting
from core.cancellation import Cancelled, Cause, CauseWord, Level
from core.errors import ProviderError
from core.events import EventType
from core.gates import pause_at
from core.network.abortable import AbortableSocket
from core.provider.backoff import RetryPolicy, retry_after_of
from core.provider.model_call import ModelCall
from core.provider.provider import ModelRequest, Provider
from core.tool.tool import Tool

__all__ = ["Agent", "AgentProfile", "Reply"]


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """How an agent is configured. ``model`` is the name in its requests, or the pattern that stands for one."""

    name: str
    instructions: str
    model: str
    #: By name, in the order in which they are offered.
    tools: Mapping[str, Tool] = field(default_factory=dict)
    wish: ModelWish = field(default_factory=ModelWish)


class Agent:
    """Asks the model, keeps the registry of requests in flight, and has them cancelled."""

    def __init__(
        self, profile: AgentProfile, provider: Provider, cancel_timeout_s: float, retries: RetryPolicy | None = None,
        catalog: ModelCatalog | None = None,
    ) -> None:  # fmt: skip
        self.profile = profile
        self._provider = provider
        self._cancel_timeout_s = cancel_timeout_s
        self._retries = retries or RetryPolicy()
        self._choice = ModelChoice(profile.wish, catalog or ModelCatalog(provider))
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

    def ask(self, make_request: Callable[[], ModelRequest], asked: Asked, port: TurnPort) -> Reply:
        """The model's answer, text streamed to ``asked.on_text`` as it comes. Each attempt makes its request anew.

        One retry loop, ours: a failed attempt is made again, and then with the fallback model, only if nothing of its
        answer was seen yet. One that a message of the user has cut off is made again, whatever was seen. Raises
        ``ProviderError`` when that is hopeless, ``Cancelled`` on a stop, which no attempt follows.
        """
        attempt = 1
        while True:
            pause_at("agent.before_request")
            reply = Reply()
            try:
                if self._attempt(make_request, asked, port, reply):
                    return reply
                attempt = 1
            except ProviderError as error:
                pause_at("agent.after_failure")
                attempt = self._after(error, attempt, reply, asked, port)

    def _attempt(self, make_request: Callable[[], ModelRequest], asked: Asked, port: TurnPort, reply: Reply) -> bool:
        """Whether the reply is complete; False if a message of the user has cut it off."""
        asked.scope.checkpoint()
        model = self._choice.model(self.profile.model, asked, port)
        scope = asked.scope.open(Level.CALL, "model_call")
        call = ModelCall(scope, asked.goal_id, AbortableSocket(), self._provider, self._cancel_timeout_s)
        self._registry.add(asked.owner, call)
        port.calls.add(call)
        try:
            port.begin_request(asked.owner, call)
            request = replace(make_request(), model=model)
            Attempt(request, reply, call, asked, port).run(self._provider)
        except (Cancelled, ProviderError) as error:
            asked.scope.checkpoint(error)  # a stop wins over a message, and what it broke is no fault of the model
            if not _is_redirect(scope.cause):
                raise
        finally:
            # A message that comes from now on finds it finished; one that came just before has cut it off.
            is_cut = _is_redirect(scope.finish())
            port.end_request(asked.owner, is_cut)
            port.calls.remove(call)
            self._registry.remove(asked.owner, call)
        return not is_cut

    def _after(
        self, error: ProviderError, attempt: int, reply: Reply, asked: Asked, port: TurnPort
    ) -> int:
        """Wait until the next attempt may be made; its number. The error, if there is to be none."""
        if reply.is_seen:
            raise error
        if self._retries.is_retryable(error) and not self._retries.is_exhausted(attempt):
            seconds, is_capped = self._retries.delay_s(attempt, retry_after_of(error))
            self._rest(error, attempt, (seconds, is_capped), {}, asked, port)
            return attempt + 1
        fallback = self._choice.fall_back(error, self.profile.model, asked)
        if fallback is None:
            raise error
        # No wait: what the first model's server asked for is meant for that model.
        self._rest(error, attempt, (0.0, False), {"model": fallback, "fallback": True}, asked, port)
        return 1

    def _rest(
        self, error: ProviderError, attempt: int, delay: tuple[float, bool], more: dict[str, Any],
        asked: Asked, port: TurnPort,
    ) -> None:  # fmt: skip
        seconds, is_capped = delay
        data = {
            "attempt": attempt, "max_attempts": self._retries.max_attempts, "wait_ms": round(seconds * 1000),
            "capped": is_capped, "reason": error.detail, **more,
        }  # fmt: skip
        with waiting(asked, port) as wait:
            port.emit(EventType.RETRY, data, asked.goal_id, wait.id)
            with port.workers.resting(wait.scope):
                wait.scope.sleep(seconds)


def _is_redirect(cause: Cause | None) -> bool:
    return cause is not None and cause.word is CauseWord.REDIRECT
