"""What the race tests share: work on another thread, plans without a server, and agents that a test can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from core.agent.agent import Agent
from core.base import InputOutput
from core.cancellation import Cause, CauseWord, Level, Scope
from core.engine.call_pool import CallPool
from core.errors import StoreError
from core.plan.goal import Goal
from core.plan.plan import Plan
from core.session.turn import Turn
from core.store.writer import Writer
from tests.support.api_client import PATIENCE_S, Run
from tests.support.servers import LocalServer, wait_until

T = TypeVar("T")
USER = Cause(CauseWord.USER)


class Later(Generic[T]):
    """Something that runs on a thread of its own, from now on."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="later", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether it has come back."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """What it returned, or its error; waits for it."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it does not come back"
        if self._error is not None:
            raise self._error
        return self._result[0]


class Switch:
    """Two threads take turns: the work arrives and waits, the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def hold(self) -> None:
        """For the work: say that it is here, and wait."""
        self._reached.set()
        assert self._open.wait(PATIENCE_S), "nobody let the work go on"

    def wait_reached(self) -> None:
        """For the test: until the work is here."""
        assert self._reached.wait(PATIENCE_S), "the work never came here"

    def open(self) -> None:
        """For the test: let it go on."""
        self._open.set()


def bare_plan(work: Callable[[Goal], Any] = lambda _: "done", places: int = 4) -> Plan:
    """A plan without a server, under a turn scope of its own."""
    scope = Scope.root().open(Level.RUN, "run").open(Level.TURN, "turn")
    return Plan(scope, CallPool(places), work)


def add_goal(plan: Plan, goal_id: str, *after: Goal, inside: Goal | None = None, agent: Any = None) -> Goal:
    """One more goal, which waits for those ``after`` which it comes."""
    goal = Goal(plan, goal_id, goal_id, goal_id, inside or plan.plan_goal, agent)
    for other in after:
        goal.depend_on(other)
    return goal


class AskedAgent:
    """Stands for an agent; notes which goals it was asked to cancel, and may do something at that."""

    def __init__(self, at_cancel: Callable[[], Any] = lambda: None) -> None:
        self._at_cancel = at_cancel
        self.asked: list[str] = []

    def cancel_llm_request(self, owner: object | None = None, timeout_s: float | None = None) -> None:
        """See :class:`core.plan.goal.GoalAgent`."""
        assert isinstance(owner, Goal)
        self.asked.append(owner.id)
        self._at_cancel()

    def has_requests_to_ask(self, owner: object) -> bool:
        """See :class:`core.plan.goal.GoalAgent`."""
        return True


def turn_of(server: LocalServer, run: Run) -> Turn:
    """The turn of a run that is at work."""
    turn = server.main.engine.live_turn(run.id)
    assert turn is not None
    return turn


def requests_of(agent: Agent) -> list[str]:
    """The tokens that the agent has registered now."""
    return [call.token for call in agent._registry.of()]


def break_store(monkeypatch: Any, writer: Writer, is_broken: Callable[[], bool] = lambda: True) -> None:
    """Decisions fail as on a full disk, while ``is_broken``."""
    transact = writer.transact

    def failing(decide: Callable[[Any], Any]) -> Any:
        def refuse(_: Any) -> Any:
            raise StoreError

        return transact(refuse if is_broken() else decide)

    monkeypatch.setattr(writer, "transact", failing)


def check_nothing_left(server: LocalServer) -> None:
    """No turn, scope, place, token, flag, or thread of a turn outlives the last turn's end."""
    engine = server.main.engine
    assert engine.wait_parked(PATIENCE_S), engine.scope.dump()
    wait_until(lambda: not (engine.pool.busy or engine.pool.abandoned), "all places given back")
    assert not engine.scope._children, engine.scope.dump()
    assert [requests_of(agent) for agent in server.main.agents.values()] == [[]] * len(server.main.agents)
    assert InputOutput._live == {}
    assert InputOutput.plan_is_stopped == [False]
    wait_until(lambda: not _threads_of_turns(), "the end of the turns' threads")


def _threads_of_turns() -> list[str]:
    names = ("turn-", "deadline", "liveness", "shutdown", "resolver")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]
