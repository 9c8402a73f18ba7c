"""Stops of a part of a running turn: one goal with what is inside it, or one tool call. The turn itself goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from core.call import Call
from core.cancellation import Cause, Scope, Verdict
from core.clock import iso
from core.errors import NotFound
from core.gates import pause_at
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.session.receipt import Stock
from core.session.stop_moves import note_part_stop
from core.tool.tool import ToolRun

if TYPE_CHECKING:
    from core.session.turn import Turn


class PartStop:
    """A goal or a tool call that was told to stop, or had ended."""

    def __init__(self, goal: Goal, call_id: str | None, run: ToolRun | None, ended: threading.Event) -> None:
        """``goal``: the one that is to stop, or that made the call. ``run``: the call, if it has not ended."""
        self.goal = goal
        self.call_id = call_id
        self.run = run
        #: What the stop found; None if there was nothing to stop.
        self.stock: Stock | None = None
        #: Why, if it was stopped by itself and not by something wider.
        self.own_cause: Cause | None = None
        #: Done when the stop is durable; ``TurnIsOver`` if the turn's end was recorded first.
        self.recorded: Future[None] | None = None
        self._ended = ended
        self._reached = threading.Event()
        self._receipt_so_far: list[dict[str, Any]] = []

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
        if self.stock is None:
            return False
        # A goal around others may be stopped when the last of them has just finished.
        return self.call_id is not None or self.goal.status is not GoalStatus.COMPLETED

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._ended.is_set()

    def set_reached(self) -> None:
        """Everything that was found has been told."""
        self._receipt_so_far = self.stock.so_far() if self.stock is not None else []
        self._reached.set()

    def wait_reached(self, seconds: float) -> None:
        """For whoever joins: until then, so that all see the same."""
        self._reached.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Until it has ended, or that long."""
        self._ended.wait(seconds)

    def receipt(self) -> list[dict[str, Any]]:
        """What was found; what became of it as far as that was known when all was reached and, at its end, in full."""
        if self.stock is None:
            return []
        return self.stock.final() if self.has_ended else self._receipt_so_far


class Parts:
    """The parts of one turn that were stopped by themselves."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        self._parts: dict[str, PartStop] = {}
        self._goal_ends: dict[str, threading.Event] = {}

    def stop_goal(self, goal_id: str, cause: Cause) -> PartStop:
        """Stop a goal, also a delegated one: dependents follow, siblings go on. ``NotFound`` if there is none.

        Whoever repeats it joins, and sees the same receipt.
        """
        goal = next((each for each in self._goals() if each.id == goal_id), None)
        if goal is None:
            raise NotFound("the current turn has no such goal")
        with self._lock:
            joined = self._parts.get(goal_id)
            part = joined or self._parts.setdefault(goal_id, PartStop(goal, None, None, self._end_of(goal)))
        if joined is None:
            pause_at("parts.before_goal_is_stopped")
            self._stop(part, cause, lambda first: goal.plan.stop_goal(goal, cause, first))
        return self._reached(part)

    def stop_call(self, call_id: str, cause: Cause) -> PartStop:
        """Stop a tool call: the model is told, and goes on. ``NotFound`` if there is none."""
        owner = next((each for each in self._goals() if each.rounds.has_call(call_id)), None)
        if owner is None:
            raise NotFound("the current turn has no such tool call")
        with self._lock:
            joined = self._parts.get(call_id)
            part = joined or self._parts.setdefault(call_id, self._call_part(owner, call_id))
        if joined is None:
            pause_at("parts.before_call_is_stopped")
            run = part.run
            self._stop(part, cause, lambda first: run.scope.cancel(cause, first) if run is not None else Verdict.OVER)
        return self._reached(part)

    def _stop(self, part: PartStop, cause: Cause, stop: Callable[[Callable[[], None]], Verdict]) -> None:
        def first() -> None:  # before anything is woken that could leave the books, or record its end
            part.stock, part.own_cause = Stock(self._calls_in(part.scope), part.inside(), cause), cause
            part.recorded = self._record(part, cause)

        try:
            if stop(first) is Verdict.JOINED:
                part.stock = Stock(self._calls_in(part.scope), part.inside(), part.cause)
                part.recorded = self._record_of_wider()
            self._ask(part.scope)
        finally:
            part.set_reached()

    def _reached(self, part: PartStop) -> PartStop:
        part.wait_reached(self._turn.cancel_timeout_s * 2)
        return part

    def _record(self, part: PartStop, cause: Cause) -> Future[None]:
        run_id, turn_id = self._turn.start.run_id, self._turn.start.turn_id
        goal_id, call_id, inside = part.goal.id, part.call_id, {goal.id for goal in part.inside()}
        return self._turn.record(lambda tx: note_part_stop(tx, run_id, turn_id, cause, goal_id, call_id, inside))

    def _record_of_wider(self) -> Future[None]:
        """Something around it was stopped first, which is in the writer's queue: done when that is durable."""
        if self._turn.scope.is_stopped:
            self._turn.stopping.wait_reached()
        return self._turn.record(lambda tx: None)

    def receipts(self) -> list[dict[str, Any]]:
        """The final receipt of each part that was stopped by itself, oldest first; for the turn's end."""
        return [
            {
                "goal_id": part.goal.id, "call_id": part.call_id, "at": iso(part.stock.taken_at_epoch),
                "cause": part.own_cause.word, "reason": part.own_cause.reason, "receipt": part.stock.final(),
            }
            for part in list(self._parts.values())
            if part.stock is not None and part.own_cause is not None
        ]  # fmt: skip

    def note_end(self, goal_id: str) -> None:
        """A goal is final; its plan's lock is held."""
        ended = self._goal_ends.get(goal_id)
        if ended is not None:
            ended.set()

    def note_abandoned(self, goal: Goal) -> None:
        """A goal was ended without its thread."""
        for part in list(self._parts.values()):
            if part.stock is not None:
                part.stock.abandon(goal)

    def _end_of(self, goal: Goal) -> threading.Event:
        ended = self._goal_ends.setdefault(goal.id, threading.Event())
        with goal.plan.lock:
            if goal.is_final:
                ended.set()
        return ended

    def _call_part(self, owner: Goal, call_id: str) -> PartStop:
        for call in self._turn.calls.snapshot():
            if call.id == call_id and isinstance(call, ToolRun) and not call.ended.is_set():
                return PartStop(owner, call_id, call, call.ended)
        ended = threading.Event()
        ended.set()
        return PartStop(owner, call_id, None, ended)

    def _ask(self, scope: Scope | None) -> None:
        """What a gateway can be asked for is asked for, as at the stop of a turn."""
        if scope is not None and scope.is_stopped and self._turn.plan is not None:
            self._turn.plan.cancel_llm_requests(self._turn.cancel_timeout_s, within=scope)

    def _goals(self) -> Iterator[Goal]:
        plan = self._turn.shown_plan
        return plan.walk_all() if plan is not None else iter(())

    def _calls_in(self, scope: Scope | None) -> list[Call]:
        if scope is None:
            return []
        return [call for call in self._turn.calls.snapshot() if call.scope.is_within(scope)]


def _all_below(goal: Goal) -> Iterator[Goal]:
    """A goal, what is inside it, and what each of them has delegated."""
    yield goal
    for child in goal.children:
        yield from _all_below(child)
    for plan in goal.delegated:
        yield from plan.walk_all()
