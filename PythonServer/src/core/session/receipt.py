"""The receipt: what a stop found, and what became of each item."""

import time
from collections.abc import Iterable
from typing import Any

from core.call import Call, CallKind, Outcome
from core.cancellation import Cause
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus

_GOAL_OUTCOME = {
    GoalStatus.CANCELLED: (Outcome.CANCELLED, "stopped"),
    GoalStatus.COMPLETED: (Outcome.ALREADY_DONE, "it had finished"),
    GoalStatus.FAILED: (Outcome.FAILED, "it failed"),
}

_LEFT = "did not end in time; its late result is dropped"


class Stock:
    """What runs, and what waits to run, at the moment of a stop. Taken once, before anything is woken."""

    def __init__(self, calls: list[Call], goals: Iterable[Goal], cause: Cause | None = None) -> None:
        """``cause``: of the stop, if it is not that of the whole plan."""
        #: ``time.monotonic()`` of the stop.
        self.taken_at = time.monotonic()
        #: The same in seconds since the epoch, which is how goals note their end.
        self.taken_at_epoch = time.time()
        self._calls = calls
        self._running: list[Goal] = []
        self._unstarted: list[Goal] = []
        #: Ids of goals whose thread was abandoned.
        self.abandoned: set[str] = set()
        for goal in goals:
            if goal.children or (goal.is_final and not _met_the_stop(goal, cause or goal.plan.scope.cause)):
                continue
            (self._unstarted if goal.started_at is None else self._running).append(goal)

    def so_far(self) -> list[dict[str, Any]]:
        """The items whose outcome is known already; the others follow in the final receipt."""
        known = [call.item(self.taken_at) for call in self._calls if call.outcome is not None]
        return [*known, *(_goal_item(goal, Outcome.NOT_STARTED, "never began", 0) for goal in self._unstarted)]

    def final(self) -> list[dict[str, Any]]:
        """Every item, at the end of what was stopped."""
        for call in self._calls:
            call.settle(Outcome.ABORTED, "ended by the stop")
        items = [call.item(self.taken_at) for call in self._calls]
        items += [self._final_goal(goal) for goal in self._running]
        return [*items, *(_goal_item(goal, Outcome.NOT_STARTED, "never began", 0) for goal in self._unstarted)]

    def close(self) -> list[dict[str, Any]]:
        """The same when the last goal or call that was stopped says that it is over. A thread that has ended has left
        its calls before: what is open even now was left behind.
        """
        for call in self._calls:
            if not call.ended.is_set() and call.settle(Outcome.ABANDONED, _LEFT) and call.goal_id is not None:
                self.abandoned.add(call.goal_id)
        return self.final()

    def abandon(self, goal: Goal) -> None:
        """The goal's thread did not end in time."""
        self.abandoned.add(goal.id)
        for call in self._calls:
            if call.goal_id == goal.id and not call.ended.is_set():
                call.settle(Outcome.ABANDONED, _LEFT)

    def _final_goal(self, goal: Goal) -> dict[str, Any]:
        ended_at = goal.ended_at or time.time()
        took_ms = max(0, round((ended_at - self.taken_at_epoch) * 1000))
        if goal.id in self.abandoned:
            return _goal_item(goal, Outcome.ABANDONED, _LEFT, took_ms)
        outcome, how = _GOAL_OUTCOME.get(goal.status, (Outcome.CANCELLED, "stopped"))
        item = _goal_item(goal, outcome, how, took_ms)
        return item | ({"detail": goal.error} if goal.error else {})


def _met_the_stop(goal: Goal, cause: Cause | None) -> bool:
    """Whether the stop ended it, before the stock could be taken."""
    return goal.status is GoalStatus.CANCELLED and goal.cause is not None and goal.cause is cause


def _goal_item(goal: Goal, outcome: Outcome, how: str, took_ms: int) -> dict[str, Any]:
    return {
        "kind": CallKind.GOAL, "id": goal.id, "goal_id": goal.id, "outcome": outcome, "how": how, "took_ms": took_ms
    }  # fmt: skip
