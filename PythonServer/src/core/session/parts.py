"""Stops of a part of a running turn: one goal with what is inside it, or one tool call. The turn itself goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from core.call import Call
from core.cancellation import Cause, CauseWord, Scope, Verdict
from core.errors import NotFound
from core.gates import pause_at
from core.plan.goal import Goal
from core.session.asking import AwayCall
from core.session.part_stop import PartReceipt, PartStop
from core.session.receipt import Stock
from core.session.stop_moves import note_part_stop
from core.store.commit import Transaction
from core.tool.tool import ToolRun

if TYPE_CHECKING:
    from core.session.turn import Turn

#: Gets what is to happen between the stop and whatever it wakes; says what the stop found.
_Stop = Callable[[Callable[[], None]], Verdict]


class Parts:
    """The parts of one turn that were stopped by themselves."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        # By the id of the goal or call: what is being stopped, and what a stop has found.
        self._parts: dict[str, PartStop] = {}
        self._goal_ends: dict[str, threading.Event] = {}
        # From an earlier server.
        self._earlier: list[PartReceipt] = []

    def stop_goal(self, goal_id: str, cause: Cause) -> PartStop:
        """Stop a goal, also a delegated one: dependents follow, siblings go on. ``NotFound`` if there is none.

        Whoever repeats it joins, and sees the same receipt.
        """
        goal = next((each for each in self._goals() if each.id == goal_id), None)
        if goal is None:
            run_id = self._turn.start.run_id
            raise NotFound(f"the current turn has no such goal; GET /v1/runs/{run_id}/plan shows its goals")
        part = PartStop(goal, end=self._end_of(goal))
        return self._stop(part, cause, partial(goal.plan.stop_goal, goal, cause))

    def stop_call(self, call_id: str, cause: Cause) -> PartStop:
        """Stop a tool call: the model is told, and goes on. ``NotFound`` if there is none."""
        owner = next((each for each in self._goals() if each.rounds.has_call(call_id)), None)
        if owner is None:
            raise NotFound("the current turn has no such tool call")
        part = PartStop(owner, call_id)
        return self._stop(part, cause, partial(self._stop_call, part, cause))

    def _stop(self, new: PartStop, cause: Cause, stop: _Stop) -> PartStop:
        with self._lock:
            part = self._parts.setdefault(new.key, new)
        if part is not new:
            part.wait_reached(self._turn.cancel_timeout_s * 2)
            return part
        pause_at("parts.before_goal_is_stopped" if part.call_id is None else "parts.before_call_is_stopped")

        def first() -> None:  # before anything is woken that could leave the books, or record its end
            part.meet(self._stock_of(part, cause), cause)
            part.recorded = self._record(part, cause)

        try:
            if stop(first) is Verdict.JOINED:
                part.meet(self._stock_of(part, part.cause), None)
                part.recorded = self._record_of_wider(part)
            self._ask(part.scope)
        finally:
            if part.stock is None:  # nothing was stopped: whoever comes next looks for himself
                with self._lock:
                    del self._parts[part.key]
            part.set_reached()
        return part

    def _stop_call(self, part: PartStop, cause: Cause, first: Callable[[], None]) -> Verdict:
        assert part.call_id is not None
        part.run = self._turn.questions.stand_in(part.goal, part.call_id)
        if part.run is not None:
            pause_at("parts.before_stand_in_is_stopped")
            verdict = part.run.scope.cancel(cause, first)
            if verdict is not Verdict.OVER:
                return verdict
        part.run = self._running(part.call_id)  # it is back, or was never away
        return part.run.scope.cancel(cause, first) if part.run is not None else Verdict.OVER

    def _running(self, call_id: str) -> ToolRun | None:
        for call in self._turn.calls.snapshot():
            if call.id == call_id and isinstance(call, ToolRun) and not call.ended.is_set():
                return call
        return None

    def _record(self, part: PartStop, cause: Cause) -> Future[None]:
        run_id, turn_id = self._turn.start.run_id, self._turn.start.turn_id
        goal_id, call_id, inside = part.goal.id, part.call_id, {goal.id for goal in part.inside()}

        def note(tx: Transaction) -> None:
            note_part_stop(tx, run_id, turn_id, cause, goal_id, call_id, inside)
            _look_at_away(tx, part)

        return self._turn.record(note)

    def _record_of_wider(self, part: PartStop) -> Future[None]:
        """Something around it was stopped first, which is in the writer's queue: done when that is durable."""
        if self._turn.scope.is_stopped:
            self._turn.stopping.wait_reached()
        return self._turn.record(lambda tx: _look_at_away(tx, part))

    # -- receipts ------------------------------------------------------------------------------

    def take_over(self, earlier: Iterable[PartReceipt], goals: dict[str, Goal]) -> None:
        """What was stopped in an earlier server. A goal whose end is not in the log, since the server went just then,
        is ended now; before the plan runs.
        """
        for receipt in earlier:
            goal, call_id = goals.get(receipt["goal_id"]), receipt["call_id"]
            if goal is not None and call_id is None and not goal.is_final:
                self._stop_again(goal, Cause(CauseWord(receipt["cause"]), receipt["reason"]))
                continue
            self._earlier.append(receipt)
            if goal is not None:
                part = PartStop(goal, call_id, earlier=receipt)
                self._parts[part.key] = part

    def _stop_again(self, goal: Goal, cause: Cause) -> None:
        """The stop is recorded, and what it ends is not."""
        part = self._parts[goal.id] = PartStop(goal, end=self._end_of(goal))
        goal.plan.stop_goal(goal, cause, lambda: part.meet(self._stock_of(part, cause), cause))
        part.set_reached()

    def receipts(self) -> list[PartReceipt]:
        """The final receipt of each part that was stopped by itself, oldest first; for the turn's end."""
        own = [part.own_receipt() for part in list(self._parts.values())]
        return [*self._earlier, *(receipt for receipt in own if receipt is not None)]

    def closing(self, key: str) -> dict[str, Any]:
        """What the event that ends this goal or call tells besides: the final receipt, if it was stopped by itself.

        Its plan's lock is held.
        """
        part = self._parts.get(key)
        if part is None or part.stock is None or part.own_cause is None:
            return {}
        return {"receipt": part.stock.close()}

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

    # -- what there is -------------------------------------------------------------------------

    def _ask(self, scope: Scope | None) -> None:
        """What a gateway can be asked for is asked for, as at the stop of a turn."""
        if scope is not None and scope.is_stopped and self._turn.plan is not None:
            self._turn.plan.cancel_llm_requests(self._turn.cancel_timeout_s, within=scope)

    def _goals(self) -> Iterator[Goal]:
        plan = self._turn.shown_plan
        return plan.walk_all() if plan is not None else iter(())

    def _stock_of(self, part: PartStop, cause: Cause | None) -> Stock:
        return Stock(self._calls_of(part), part.inside(), cause)

    def _calls_of(self, part: PartStop) -> list[Call]:
        scope, run = part.scope, part.run
        calls = self._turn.calls.snapshot() if scope is not None else []
        within = [call for call in calls if scope is not None and call.scope.is_within(scope)]
        return within if run is None or run in within else [run, *within]


def _look_at_away(tx: Transaction, part: PartStop) -> None:
    if isinstance(part.run, AwayCall):
        part.run.look(tx)
