"""The scheduling loop: event-driven, linear in goals plus edges, and it waits for "done" *or* "stopped".

Dependency counters say when a goal may start. Whoever finishes a goal releases the ones that waited for it, on
the same thread; nobody coordinates. Inner goals hold no thread: a pool of one runs a plan fifty levels deep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from core.cancellation import Cancelled, Cause, Level
from core.clock import alarm_clock
from core.errors import ServerError
from core.gates import pause_at
from core.plan.goal import Goal, settle
from core.plan.goal_status import GoalStatus

if TYPE_CHECKING:
    from core.plan.plan import Plan

log = logging.getLogger(__name__)

#: Seconds after a stop at which what still runs is abandoned. A tool got TERM at 0 and KILL at 1.0.
ABANDON_AFTER_S: Final = 1.8


class Workers(Protocol):
    """Threads to run leaves on; see :class:`core.engine.call_pool.CallPool`."""

    def submit(self, jobs: Sequence[Callable[[], None]], first: bool = False) -> None:
        """Run each once, as places become free; ``first``: before what waits already."""

    def has_backlog(self) -> bool:
        """Whether somebody waits for a place."""

    def current(self) -> object | None:
        """The handle of the calling pool thread."""

    def abandon(self, worker: object) -> None:
        """Give back the place of a thread that does not end."""


class Scheduler:
    """Runs everything below one goal."""

    def __init__(self, plan: Plan, top: Goal) -> None:
        self._plan = plan
        self._top = top
        self._done: Future[GoalStatus] = Future()

    def run(self) -> GoalStatus:
        """Blocks until every goal below is final: bounded after a stop, whatever the work does."""
        self._plan.scheduler = self
        try:
            self.start([self._top])
            return self._plan.scope.wait_for(self._done)
        except Cancelled as stop:
            stopped_at = time.monotonic()
            self._plan.cancel_unstarted(stop.cause)
            self.announce_end()
            try:
                return self._done.result(ABANDON_AFTER_S - (time.monotonic() - stopped_at))
            except FutureTimeoutError:
                return self._abandon(stop.cause)
        finally:
            self._plan.scheduler = None

    # -- starting --------------------------------------------------------------------------

    def start(self, ready: list[Goal]) -> None:
        """Start goals that nothing blocks: open the inner ones, give the leaves to the pool."""
        leaves = self._open_inner(ready)
        if leaves:
            self._plan.workers.submit([_LeafJob(self, leaf) for leaf in leaves])

    def _open_inner(self, ready: list[Goal]) -> list[Goal]:
        """Open inner goals, down to the leaves that may start; returns those."""
        leaves: list[Goal] = []
        if not any(goal.children or goal is self._top for goal in ready):
            return ready
        with self._plan.lock:
            while ready:
                goal = ready.pop()
                if not goal.children and goal is not self._top:
                    leaves.append(goal)
                    continue
                ready.extend(self._open(goal))
        self.announce_end()
        leaves.reverse()
        return leaves

    def _open(self, goal: Goal) -> list[Goal]:
        if goal.status is not GoalStatus.NOT_STARTED:  # cancelled since it became ready
            return []
        cause = goal.open_scope().cause
        if cause is not None:
            return settle(goal, GoalStatus.CANCELLED, cause)[1]
        goal.move(GoalStatus.CHILDREN_IN_PROGRESS, None, None, None)
        verdict = goal.verdict()
        if verdict is not None:  # every child was cancelled before the goal could open
            return settle(goal, verdict, goal.verdict_cause(verdict))[1]
        ready = []
        for child in goal.children:
            child.blockers -= 1
            if not child.blockers and child.status is GoalStatus.NOT_STARTED:
                ready.append(child)
        return ready

    # -- a leaf, on a pool thread -------------------------------------------------------------

    def run_leaf(self, leaf: Goal) -> None:
        """Run a leaf, and then one of those it released, for as long as nobody waits for the place."""
        while True:
            ready = self._open_inner(self._run_one(leaf))
            if not ready:
                return
            if self._plan.workers.has_backlog():
                self.start(ready)
                return
            leaf = ready.pop()
            if ready:
                self.start(ready)

    def _run_one(self, goal: Goal) -> list[Goal]:
        plan = self._plan
        pause_at("scheduler.before_goal_starts")
        with plan.lock:
            if goal.status is not GoalStatus.NOT_STARTED:
                return []
            cause = goal.open_scope().cause
            if cause is None:
                goal.worker = plan.workers.current()
                goal.move(GoalStatus.IN_PROGRESS, None, None, None)
        if cause is not None:
            return self._settle(goal, GoalStatus.CANCELLED, cause)
        try:
            result = goal.run()
        except Cancelled as stop:
            # This is where the goal's scope was opened: a stop of the goal, of one of its calls, or of something
            # wider, and a 499 from the gateway, all end it here. Another's stop is no stop of this goal.
            if _concerns(stop, goal):
                return self._settle(goal, GoalStatus.CANCELLED, stop.cause)
            return self._fail(goal, stop)
        except BaseException as error:
            return self._fail(goal, error)
        return self._complete(goal, result)

    def _complete(self, goal: Goal, result: object) -> list[Goal]:
        scope = goal.scope
        cause = scope.finish() if scope is not None else None
        if cause is not None:  # the stop came first
            return self._settle(goal, GoalStatus.CANCELLED, cause)
        return self._settle(goal, GoalStatus.COMPLETED, result=None if result is None else str(result))

    def _fail(self, goal: Goal, error: BaseException) -> list[Goal]:
        scope = goal.scope
        if scope is not None and scope.cause is not None:
            # A clean-up that fails during a stop does not beat the stop; its error is kept as a detail.
            return self._settle(goal, GoalStatus.CANCELLED, scope.cause, error=public_message(error))
        if not isinstance(error, ServerError):
            log.error("a goal of %s failed with an unexpected %s", _run_id(goal), type(error).__name__, exc_info=error)
        else:
            log.warning("a goal of %s failed: %s", _run_id(goal), error.code)
        return self._settle(goal, GoalStatus.FAILED, error=public_message(error))

    def _settle(
        self, goal: Goal, status: GoalStatus, cause: Cause | None = None,
        result: str | None = None, error: str | None = None,
    ) -> list[Goal]:  # fmt: skip
        with self._plan.lock:
            ready = settle(goal, status, cause, result, error)[1]
            goal.worker = None
        self.announce_end()
        return ready

    # -- ending ----------------------------------------------------------------------------------

    def announce_end(self) -> None:
        """Wake :meth:`run` if everything is final."""
        if self._top.is_final and not self._done.done():
            with self._plan.lock:
                if not self._done.done():
                    self._done.set_result(self._top.status)

    def _abandon(self, cause: Cause) -> GoalStatus:
        self._plan.abandon(self._top, cause)
        self.announce_end()
        return self._done.result(0)


def abandon_later(goal: Goal, cause: Cause) -> None:
    """A goal that was stopped by itself has as long as a plan."""
    alarm_clock.after(ABANDON_AFTER_S, partial(goal.plan.abandon, goal, cause))


class _LeafJob:
    """What the pool runs: lighter than a closure, and readable in a stack dump."""

    __slots__ = ("_leaf", "_scheduler")

    def __init__(self, scheduler: Scheduler, leaf: Goal) -> None:
        self._scheduler = scheduler
        self._leaf = leaf

    def __call__(self) -> None:
        self._scheduler.run_leaf(self._leaf)


def _concerns(stop: Cancelled, goal: Goal) -> bool:
    """Told by identity: the stopped scope is the goal's, below it, or around it."""
    return goal.scope is not None and (stop.scope.is_within(goal.scope) or goal.scope.is_within(stop.scope))


def _run_id(goal: Goal) -> str:
    """For the log, which has no goal ids: users and models choose those."""
    run = goal.plan.scope.enclosing(Level.RUN)
    return run.name if run is not None else "no run"


def public_message(error: BaseException) -> str:
    """What a user may read of an error: our own messages are written for them, others name only their kind."""
    if isinstance(error, ServerError):
        return error.detail
    return f"internal error ({type(error).__name__})"
