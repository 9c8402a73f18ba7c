"""The executor without HTTP and without a store: turns of an agent as calls of a function.

The same turn, plan, tool loop and receipt as in the server; only its events go to a function instead of a database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from core.agent.agent import Agent
from core.base.InputOutput import close_flag, open_flag
from core.cancellation import Cancelled, Cause, Level, Scope
from core.engine.call_pool import CallPool
from core.errors import NotFound, ServerError
from core.events import Event
from core.ids import new_id
from core.interrupt import Controller, bound
from core.plan.goal import Goal
from core.plan.plan_spec import PlanSpec, check_plan
from core.session.delegation import Delegation
from core.session.goal_work import work_on
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.turn import Turn
from core.store.commit import Transaction

T = TypeVar("T")

#: Gets each event of a turn, on the thread that it happens on. It must be quick.
OnEvent = Callable[[Event], None]


class Executor:
    """Runs turns of agents, several at once if you like: a thread each. Holds nothing of any of them."""

    def __init__(self, *agents: Agent, call_threads: int = 32, cancel_timeout_s: float = 0.5) -> None:
        """The first agent answers; the others can be named by goals."""
        self._agents = {agent.name: agent for agent in agents}
        self._default = agents[0]
        self._pool = CallPool(call_threads)
        self._cancel_timeout_s = cancel_timeout_s
        self._root = Scope.root("embedded")

    def run(
        self,
        message: str,
        *,
        history: Sequence[dict[str, Any]] = (),
        plan: PlanSpec | None = None,
        controller: Controller | None = None,
        on_event: OnEvent = lambda _: None,
    ) -> TurnOutcome:
        """One turn; blocks until it is over, which after a stop is bounded.

        Never raises a stop: ``outcome.state`` is ``completed``, ``cancelled`` or ``failed``, ``messages`` is what to
        put behind the user's message for the next turn's ``history`` (also after a stop, and always valid), and
        ``receipt`` says what a stop found and what became of it. ``InvalidPlan`` if the plan cannot run.
        """
        spec = plan or PlanSpec.single(message)
        check_plan(spec, agents={name: agent.profile.tools for name, agent in self._agents.items()})
        run_scope = self._root.open(Level.RUN, new_id("r"))
        start = TurnStart(run_scope.name, new_id("s"), new_id("t"), message, True, {})
        turn = _EmbeddedTurn(start, run_scope, _Sink(on_event), self._pool, self._cancel_timeout_s)

        def stop(cause: Cause) -> None:
            turn.stop(StopOrder(cause))

        open_flag(turn.scope)
        error: str | None = None
        try:
            with bound(controller, stop) as look, turn.scope.entered():
                turn.look = look
                self._run_plan(turn, spec, list(history))
        except Cancelled:
            pass  # the turn's scope was opened here
        except ServerError as failure:
            error = failure.detail
        finally:
            close_flag(turn.scope)
        return turn.finish(error)

    def _run_plan(self, turn: Turn, spec: PlanSpec, history: list[dict[str, Any]]) -> None:
        plan = turn.make_plan(lambda goal: work_on(turn, goal, history))
        turn.delegation = Delegation(turn, lambda goal: work_on(turn, goal, []), self._agent)
        turn.fill_plan(spec, self._agent)
        plan.run()

    def _agent(self, name: str | None) -> Agent:
        if name is None:
            return self._default
        if name not in self._agents:
            raise NotFound(f"there is no agent {name!r}")
        return self._agents[name]


class _EmbeddedTurn(Turn):
    """A turn that also asks a controller between its steps."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def step(self, scope: Scope) -> None:
        self.look()
        scope.checkpoint()

    def note_call(self, owner: Goal, call_id: str, name: str, arguments: str) -> None:
        self.look()
        super().note_call(owner, call_id, name, arguments)


class _Sink:
    """Where events go in place of a store; numbered, and nothing after the last one."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._seq = 0

    def emit(self, event: Event) -> None:
        with self._lock:
            self._seq += 1
            event.seq = self._seq
            self._on_event(event)

    def transact(self, decision: Callable[[Transaction], T]) -> Future[T]:
        """There is nothing to decide about: the turn is all there is."""
        future: Future[Any] = Future()
        future.set_result(None)
        return future
