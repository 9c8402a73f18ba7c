"""A plan: the tree of goals of one turn, and the two things that are done to it: run it, stop its requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, Final

from core.cancellation import Cancelled, Cause, Scope, Verdict
from core.clock import iso
from core.plan.goal import Goal, cancel_unstarted_below, settle
from core.plan.goal_status import GoalStatus
from core.plan.scheduler import Scheduler, Workers, abandon_later

#: Threads of one stop, at most: asking is short, bounded, and mostly waiting.
MAX_ASKERS: Final = 64

#: Pools whose threads wait for the next stop; the threads of one that is pushed out end. No two stops share a pool,
#: so that a gateway that hangs for one plan does not hold up the stop of another.
_idle_pools: Final[deque[ThreadPoolExecutor]] = deque(maxlen=4)


class Plan:
    """The goals of one turn. ``work`` runs a leaf; ``note`` hears of every status, in order, under ``lock``."""

    def __init__(
        self,
        scope: Scope,
        workers: Workers,
        work: Callable[[Goal], str | None],
        note: Callable[[Goal], None] | None = None,
        note_abandoned: Callable[[Goal], None] | None = None,
        delegated_by: tuple[Goal, str] | None = None,
    ) -> None:
        """``delegated_by``: the goal and the id of its tool call that this plan is the work of."""
        self.scope = scope
        self.workers = workers
        self.work = work
        above = delegated_by[0].plan if delegated_by is not None else None
        #: One lock for a plan and all that is delegated below it, so that they are shown as they are at one moment.
        self.lock: threading.Lock = above.lock if above is not None else threading.Lock()
        #: How deep it was delegated; 0 is the turn's own plan.
        self.depth: int = above.depth + 1 if above is not None else 0
        #: The tool call that it is the work of.
        self.call_id = delegated_by[1] if delegated_by is not None else None
        #: The root: contains every top-level goal, has no work of its own and is not shown.
        self.plan_goal = Goal(self, "plan", "plan")
        #: A remark for the user, such as why there is one goal only.
        self.remark: str | None = None
        self.scheduler: Scheduler | None = None
        self._note = note
        self._note_abandoned = note_abandoned

    # -- the documented surface -----------------------------------------------------------

    def run(self) -> GoalStatus:
        """Run the plan. Returns when every goal is final, whether they ended or were stopped."""
        try:
            self.plan_goal.run()
        except Cancelled as stop:
            # Only a stop of this plan, or of something wider, comes out here: each goal keeps its own.
            self.cancel_unstarted(stop.cause)
        return self.plan_goal.status

    def cancel_llm_requests(self, timeout_s: float | None = None, within: Scope | None = None) -> None:
        """Ask for the cancellation of the requests of all goals IN_PROGRESS, one task a goal, all at once.

        ``within``: only of goals whose scope is that one or below it. Returns when each was answered, or after
        ``timeout_s``; without that, each agent keeps to its own limit.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        goals = [
            goal
            for goal in self.plan_goal.get_active_goals()
            if goal.agent is not None and goal.agent.has_requests_to_ask(goal) and _is_within(goal, within)
        ]
        if not goals:
            return
        pool = _take_pool()
        unfinished = wait([pool.submit(_ask, goal, deadline) for goal in goals], timeout_s).not_done
        if unfinished:
            pool.shutdown(wait=False)  # it ends once they have
        else:
            _idle_pools.append(pool)

    # -- goals -------------------------------------------------------------------------------

    def walk(self) -> Iterator[Goal]:
        """Every goal that is shown, parents before children, in plan order."""
        waiting = list(reversed(self.plan_goal.children))
        while waiting:
            goal = waiting.pop()
            yield goal
            waiting.extend(reversed(goal.children))

    def walk_all(self) -> Iterator[Goal]:
        """As :meth:`walk`, with the goals that each has delegated right behind it."""
        for goal in self.walk():
            yield goal
            for plan in goal.delegated:
                yield from plan.walk_all()

    def stop_goal(self, goal: Goal, cause: Cause, first: Callable[[], None] = lambda: None) -> Verdict:
        """Stop one goal, with all that is inside it or delegated by it. Dependents follow; siblings go on.

        What runs ends by its scope, in bounded time. ``first`` and the answer are as in :meth:`Scope.cancel`.
        """
        wider: Cause | None = None
        with self.lock:
            if goal.is_final:
                return Verdict.OVER
            scope = goal.scope
            if scope is None:  # under the lock, or it could start in between
                wider = goal.scope_around.cause
                if wider is None:
                    first()
                cancel_unstarted_below(goal, wider or cause)
        verdict = Verdict.FIRST if wider is None else Verdict.JOINED
        if scope is not None:
            verdict = scope.cancel(cause, first)
            if verdict is Verdict.FIRST:  # nothing inside may start any more
                with self.lock:
                    cancel_unstarted_below(goal, cause)
                abandon_later(goal, cause)
        self.start_ready([])
        return verdict

    def abandon(self, top: Goal, cause: Cause) -> None:
        """What still runs at or below ``top`` is over without its threads, whose late words are dropped."""
        with self.lock:
            # What was delegated as well: its own scheduler does the same at about this time, but the turn may be over
            # first. Reversed, so that goals end before those that wait for them.
            left = top.get_active_goals()[::-1]
            for goal in left:
                for plan in goal.delegated:
                    cancel_unstarted_below(plan.plan_goal, cause)
                if goal.worker is not None:
                    self.workers.abandon(goal.worker)
                settle(goal, GoalStatus.CANCELLED, cause)
        for goal in left:
            self.note_abandoned(goal)
        self.start_ready([])

    @cached_property
    def has_several_leaves(self) -> bool:
        """Whether more than one goal does work. For a plan that is filled."""
        return len(self.leaves()) > 1

    def leaves(self) -> list[Goal]:
        """The goals that do work, in plan order."""
        return [goal for goal in self.walk() if not goal.children]

    def start_ready(self, ready: list[Goal]) -> None:
        """Goals that a status change released."""
        scheduler = self.scheduler  # gone as soon as the last goal is final
        if scheduler is not None:
            scheduler.start(ready)
            scheduler.announce_end()

    def cancel_unstarted(self, cause: Cause) -> None:
        """Nothing that is NOT_STARTED will start."""
        with self.lock:
            cancel_unstarted_below(self.plan_goal, cause)

    def note(self, goal: Goal) -> None:
        """A status changed; called with ``lock`` held."""
        if self._note is not None and goal is not self.plan_goal:
            self._note(goal)

    def note_abandoned(self, goal: Goal) -> None:
        """A goal's thread did not end in time, and the goal was ended without it."""
        if self._note_abandoned is not None:
            self._note_abandoned(goal)

    def tree(self) -> list[dict[str, Any]]:
        """The goals in the form of ``GET /v1/runs/{id}/plan``, without their results."""
        shown: dict[str, dict[str, Any]] = {}
        top: list[dict[str, Any]] = []
        for goal in self.walk():
            node = describe(goal)
            for plan in goal.delegated:
                node["delegated"] += plan.tree()
            shown[goal.id] = node
            above = shown[goal.parent.id]["goals"] if goal.parent and goal.parent.parent else top
            above.append(node)
        return top


def describe(goal: Goal) -> dict[str, Any]:
    """One goal as the API shows it."""
    return {
        "id": goal.id,
        "title": goal.title,
        "prompt": goal.prompt,
        "tool": goal.tool,
        "agent": goal.agent.name if goal.agent is not None else None,
        "depends_on": [other.id for other in goal.depends_on],
        "goals": [],
        "call_id": goal.plan.call_id,
        "delegated": [],
        "status": goal.status,
        "cause": goal.cause.word if goal.cause else None,
        "error": goal.error,
        "started_at": iso(goal.started_at) if goal.started_at else None,
        "ended_at": iso(goal.ended_at) if goal.ended_at else None,
    }


def _is_within(goal: Goal, scope: Scope | None) -> bool:
    return scope is None or (goal.scope is not None and goal.scope.is_within(scope))


def _take_pool() -> ThreadPoolExecutor:
    try:
        return _idle_pools.pop()
    except IndexError:
        return ThreadPoolExecutor(MAX_ASKERS, thread_name_prefix="cancel")


def _ask(goal: Goal, deadline: float | None) -> None:
    goal.cancel_llm_request(None if deadline is None else deadline - time.monotonic())
