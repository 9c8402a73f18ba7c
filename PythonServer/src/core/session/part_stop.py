"""The stop of a part of a running turn: what it found, whether it is recorded, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from core.call import Call
from core.cancellation import Cause, Scope
from core.clock import iso
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.session.receipt import Stock

#: A receipt as the turn's end has it: ``{goal_id, call_id, at, cause, reason, receipt}``.
PartReceipt = dict[str, Any]


class PartStop:
    """A goal or a tool call that was told to stop, or had ended."""

    def __init__(
        self, goal: Goal, call_id: str | None = None, end: threading.Event | None = None,
        earlier: PartReceipt | None = None,
    ) -> None:  # fmt: skip
        """``goal``: the one that is to stop, or that made the call. ``end``: set at the end of a goal.

        ``earlier``: it was stopped, and ended, in an earlier server.
        """
        self.goal = goal
        self.call_id = call_id
        #: The call that the stop has met; None for a goal, and if the call had ended.
        self.run: Call | None = None
        #: What the stop found; None if there was nothing to stop.
        self.stock: Stock | None = None
        #: Why, if it was stopped by itself and not by something wider.
        self.own_cause: Cause | None = None
        #: Done when the stop is durable; ``TurnIsOver`` if the turn's end was recorded first.
        self.recorded: Future[None] | None = None
        self._end = end
        self._earlier = earlier
        self._reached = threading.Event()
        self._receipt_so_far: list[dict[str, Any]] = []

    @property
    def key(self) -> str:
        """The id of what is stopped."""
        return self.call_id or self.goal.id

    @property
    def scope(self) -> Scope | None:
        """What is closed by the stop; None for a goal that has not begun."""
        if self.call_id is None:
            return self.goal.scope
        return self.run.scope if self.run is not None else None

    @property
    def cause(self) -> Cause | None:
        """Why it ends, if something wider was stopped first."""
        return (self.scope or self.goal.scope_around).cause

    def inside(self) -> Iterator[Goal]:
        """The goals that end with it."""
        if self.call_id is None:
            yield from _all_below(self.goal)
        for plan in self.goal.delegated:
            if plan.call_id == self.call_id:
                yield from plan.walk_all()

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, by this stop or by an earlier one; False if it came to its end by itself."""
        if self.stock is None and self._earlier is None:
            return False
        # A goal around others may be stopped when the last of them has just finished.
        return self.call_id is not None or self.goal.status is not GoalStatus.COMPLETED

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        end = self._end_of_it
        return end is None or end.is_set()

    @property
    def _end_of_it(self) -> threading.Event | None:
        return self._end if self.run is None else self.run.ended

    def meet(self, stock: Stock, own_cause: Cause | None) -> None:
        """The stop is made, by itself or by something wider: this is what it found."""
        self.stock, self.own_cause = stock, own_cause

    def set_reached(self) -> None:
        """Everything that was found has been told."""
        self._receipt_so_far = self.stock.so_far() if self.stock is not None else []
        self._reached.set()

    def wait_reached(self, seconds: float) -> None:
        """For whoever joins: until then, so that all see the same."""
        if self._earlier is None:
            self._reached.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Until it has ended, or that long."""
        end = self._end_of_it
        if end is not None:
            end.wait(seconds)

    def receipt(self) -> list[dict[str, Any]]:
        """What was found; what became of it as far as that was known when all was reached and, at its end, in full."""
        if self._earlier is not None:
            return list(self._earlier["receipt"])
        if self.stock is None:
            return []
        return self.stock.final() if self.has_ended else self._receipt_so_far

    def own_receipt(self) -> PartReceipt | None:
        """The final one; None if it was not stopped by itself in this server."""
        if self.stock is None or self.own_cause is None:
            return None
        return {
            "goal_id": self.goal.id, "call_id": self.call_id, "at": iso(self.stock.taken_at_epoch),
            "cause": self.own_cause.word, "reason": self.own_cause.reason, "receipt": self.stock.final(),
        }  # fmt: skip


def _all_below(goal: Goal) -> Iterator[Goal]:
    """A goal, what is inside it, and what each of them has delegated."""
    yield goal
    for child in goal.children:
        yield from _all_below(child)
    for plan in goal.delegated:
        yield from plan.walk_all()
