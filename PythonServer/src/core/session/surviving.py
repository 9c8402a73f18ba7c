"""A turn that waits for nothing but answers outlives its server: whether it does so, told from memory and from the log.

It does if a plan runs, and every goal at work has tool calls open, each of which has asked a question. Then there is
nothing that ends with the server: the next one takes the same turn up where it is (:mod:`core.session.revival`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import Connection, RowMapping, select

from core.agent.rounds import Rounds
from core.errors import StoreError
from core.events import Event
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.session.queries import read_plan, walk_goals
from core.session.run_state import RunState
from core.session.said_log import read_said
from core.store.commit import Transaction
from core.store.tables import questions

if TYPE_CHECKING:
    from core.session.turn import Turn

T = TypeVar("T")


def waits_for_answers(plan: Plan, has_asked: Callable[[str], bool]) -> bool:
    """Whether the plan waits for nothing else. With ``plan.lock`` held."""
    at_work = [goal for goal in plan.walk_all() if _is_at_work(goal)]
    return bool(at_work) and all(_waits(goal.rounds, has_asked) and not _is_stopped(goal) for goal in at_work)


def _is_at_work(goal: Goal) -> bool:
    """Also one that was at work in an earlier server, and has not begun in this one yet."""
    return not goal.children and not goal.is_final and goal.started_at is not None


def _is_stopped(goal: Goal) -> bool:
    return goal.scope is not None and goal.scope.is_stopped


def _waits(rounds: Rounds, has_asked: Callable[[str], bool]) -> bool:
    calls = rounds.open_calls()
    return bool(calls) and all(has_asked(call.id) for call in calls)


def was_waiting_for_answers(connection: Connection, run: RowMapping, turn: RowMapping) -> bool:
    """Whether an open turn that a server has left waited for nothing but answers, of which some may be there by now."""
    if turn["stop"] or run["state"] not in (RunState.RUNNING, RunState.AWAITING_ANSWER):
        return False
    goals = read_plan(connection, turn)["goals"]
    said = {each.goal_id: each.rounds for each in read_said(connection, turn, goals).said}
    asked = asked_calls(connection, turn)
    at_work = [goal for goal in walk_goals(goals) if goal["status"] == GoalStatus.IN_PROGRESS]
    return bool(at_work) and all(_waits(said[goal["id"]], asked.__contains__) for goal in at_work)


def asked_calls(connection: Connection, turn: RowMapping) -> set[str]:
    """The calls of a turn that have asked a question which was not withdrawn."""
    query = select(questions.c.call_id).where(
        questions.c.run_id == turn["run_id"], questions.c.turn_id == turn["id"], questions.c.state != "cancelled"
    )
    return set(connection.execute(query).scalars())


class Log(Protocol):
    """Where events go; see :class:`core.store.writer.Writer`."""

    def emit(self, event: Event) -> None:
        """Append an event."""

    def transact(self, decision: Callable[[Transaction], T]) -> Future[T]:
        """Have a decision made, in order with the events."""


class Fence:
    """The log of a turn, as long as the turn is this server's."""

    def __init__(self, log: Log) -> None:
        self._log = log
        #: The turn is left to the next server.
        self.is_closed = False

    def emit(self, event: Event) -> None:
        """As the log; dropped behind the fence."""
        if not self.is_closed:
            self._log.emit(event)

    def transact(self, decision: Callable[[Transaction], T]) -> Future[T]:
        """As the log; behind the fence it never happens: ``StoreError``."""
        if not self.is_closed:
            return self._log.transact(decision)
        future: Future[Any] = Future()
        future.set_exception(StoreError("the server is shutting down"))
        return future


@contextlib.contextmanager
def leaving(turn: Turn) -> Iterator[bool]:
    """Leave the turn to the next server, if it waits for nothing but answers: nothing that its threads still do is
    written. An answer that comes at this moment is in the log before, or taken up by the next server. False, and
    nothing happens, if it does not wait so. Inside, its goals can note nothing: stop its scope there.
    """
    with turn.showing:
        plan = turn.shown_plan
        if plan is None:
            # On the way back from an earlier server it has written nothing yet.
            yield turn.start.is_revived and not turn.has_plan and _close(turn)
            return
        with plan.lock:  # what goals note, they note under it
            yield waits_for_answers(plan, turn.questions.has_asked) and _close(turn)


def _close(turn: Turn) -> bool:
    turn.fence.is_closed = not turn.scope.is_stopped
    return turn.fence.is_closed
