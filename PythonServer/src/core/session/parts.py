"""Stops of a part of a running turn: one goal with what is inside it, or one tool call. The turn itself goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from core.call import Call
from core.cancellation import Cause, Scope
from core.errors import NotFound
from core.gates import pause_at
from core.plan.goal import Goal
from core.session.receipt import Stock
from core.session.turns import note_part_stop
from core.tool.tool import ToolRun

if TYPE_CHECKING:
    from core.session.turn import Turn


class PartStop:
    """A goal or a tool call that was told to stop, or had ended."""

    def __init__(self, goal_id: str | None, call_id: str | None, stock: Stock | None, ended: threading.Event) -> None:
        """``stock`` None: there was nothing to stop."""
        self.goal_id = goal_id
        self.call_id = call_id
        self._stock = stock
        self._ended = ended
        #: Done when the stop is durable; ``TurnIsOver`` if the turn's end was recorded first.
        self.recorded: Future[None] | None = None
        #: Whether it is stopped, by this stop or by an earlier one.
        self.is_stopped = stock is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Until it has ended, or that long."""
        self._ended.wait(seconds)

    def receipt(self) -> list[dict[str, Any]]:
        """What was found, and what became of it as far as that is known."""
        if self._stock is None:
            return []
        return self._stock.final() if self.has_ended else self._stock.so_far()


class Parts:
    """The parts of one turn that were stopped by themselves."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        self._stopped: dict[str, PartStop] = {}
        self._goal_ends: dict[str, threading.Event] = {}

    def stop_goal(self, goal_id: str, cause: Cause) -> PartStop:
        """Stop a goal, also a delegated one: dependents follow, siblings go on. ``NotFound`` if there is none.

        Whoever repeats it joins, and sees the same receipt.
        """
        plan = self._turn.shown_plan
        goal = next((each for each in plan.walk_all() if each.id == goal_id), None) if plan is not None else None
        if goal is None:
            raise NotFound("the current turn has no such goal")
        with self._lock:
            if goal_id in self._stopped:
                return self._stopped[goal_id]
            ended = self._goal_ends.setdefault(goal_id, threading.Event())
            with goal.plan.lock:
                if goal.is_final:
                    ended.set()
                    return PartStop(goal_id, None, None, ended)
                stock = Stock(self._calls_of(goal.scope), list(_all_below(goal)))
            part = self._note(goal_id, PartStop(goal_id, None, stock, ended), cause)
        pause_at("parts.before_goal_is_stopped")
        goal.plan.stop_goal(goal, cause)
        self._ask(goal.scope)
        return part

    def stop_call(self, call_id: str, cause: Cause) -> PartStop:
        """Stop a tool call: the model is told, and goes on. ``NotFound`` if there is none."""
        with self._lock:
            if call_id in self._stopped:
                return self._stopped[call_id]
            run = next((each for each in self._tool_runs() if each.id == call_id), None)
            if run is None:
                return self._ended_call(call_id)
            inside = [each for each in self._delegated_goals(call_id) if not each.is_final]
            stock = Stock([run, *(each for each in self._calls_of(run.scope) if each is not run)], inside)
            part = self._note(call_id, PartStop(run.goal_id, call_id, stock, run.ended), cause)
        pause_at("parts.before_call_is_stopped")
        run.scope.cancel(cause)
        self._ask(run.scope)
        return part

    def _note(self, part_id: str, part: PartStop, cause: Cause) -> PartStop:
        """Have it written down before anything is woken that could record its end."""
        run_id, turn_id = self._turn.start.run_id, self._turn.start.turn_id
        part.recorded = self._turn.record(
            lambda tx: note_part_stop(tx, run_id, turn_id, cause, part.goal_id, part.call_id)
        )
        self._stopped[part_id] = part
        return part

    def note_end(self, goal_id: str) -> None:
        """A goal is final."""
        ended = self._goal_ends.get(goal_id)
        if ended is not None:
            ended.set()

    def _ended_call(self, call_id: str) -> PartStop:
        plan = self._turn.shown_plan
        for goal in plan.walk_all() if plan is not None else ():
            if goal.rounds.has_call(call_id):
                ended = threading.Event()
                ended.set()
                return PartStop(goal.id, call_id, None, ended)
        raise NotFound("the current turn has no such tool call")

    def _ask(self, scope: Scope | None) -> None:
        """What a gateway can be asked for is asked for, as at the stop of a turn."""
        if scope is not None and self._turn.plan is not None:
            self._turn.plan.cancel_llm_requests(self._turn.cancel_timeout_s, within=scope)

    def _tool_runs(self) -> list[ToolRun]:
        return [call for call in self._turn.calls.snapshot() if isinstance(call, ToolRun) and not call.ended.is_set()]

    def _calls_of(self, scope: Scope | None) -> list[Call]:
        if scope is None:
            return []
        return [call for call in self._turn.calls.snapshot() if call.scope.is_within(scope)]

    def _delegated_goals(self, call_id: str) -> list[Goal]:
        plan = self._turn.shown_plan
        return [goal for goal in plan.walk_all() if goal.plan.call_id == call_id] if plan is not None else []


def _all_below(goal: Goal) -> Iterator[Goal]:
    """A goal, what is inside it, and what each of them has delegated."""
    yield goal
    for child in goal.children:
        yield from _all_below(child)
    for plan in goal.delegated:
        yield from plan.walk_all()
