"""Stops as they are asked for from outside: refused or made, recorded, answered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import RowMapping

from core.cancellation import Verdict
from core.errors import RunIsOver, StopNotRecorded, StoreError, TurnIsComingBack, TurnIsOver
from core.gates import pause_at
from core.session.part_stop import PartStop
from core.session.records import StopOrder
from core.session.run_state import TERMINAL, RunState
from core.session.stop_moves import check_stop, read_fates, request_stop
from core.session.turn import Turn
from core.session.turns import read_run
from core.store.commit import Transaction

T = TypeVar("T")

#: Seconds that a request waits for the store before it is told so.
STORE_TIMEOUT_S: Final = 15.0


#: Seconds that the stop of a part waits for a turn that is being taken up from an earlier server.
BACK_S: Final = 5.0


def result_of(decided: Future[T]) -> T:
    """What came of a decision, once it is durable. ``StoreError`` if that takes too long: then it never happens, or,
    if the future is not done, is still being written.
    """
    for _ in range(2):
        try:
            return decided.result(STORE_TIMEOUT_S)
        except FutureTimeoutError:
            if decided.cancel():
                break  # else it is being written at this moment, and what comes of it should not be lost
    raise StoreError("the store did not answer in time")


class Decide(Protocol):
    """Has the writer make a decision; see :meth:`core.engine.embedded.Engine.decide`."""

    def __call__(self, decision: Callable[[Transaction], T]) -> T:
        """Its result, once it is durable."""


class StopAnswer:
    """What a stop came to, as the routes tell it."""

    def __init__(
        self, run_id: str, turn_id: str | None, stopped: bool, state: str, receipt: list[dict[str, Any]],
        inbox: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``inbox``: what it did with the messages that waited; None if it had nothing to do with them."""
        self.run_id = run_id
        self.turn_id = turn_id
        self.stopped = stopped
        self.state = state
        self.receipt = receipt
        self.inbox = inbox

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "run_id": self.run_id, "turn_id": self.turn_id, "stopped": self.stopped,
            "parked": self.state == RunState.AWAITING_INPUT, "state": self.state, "receipt": self.receipt,
            "inbox": self.inbox,
        }  # fmt: skip


class Stopping:
    """Stops turns, runs, and parts of turns."""

    def __init__(self, live_turn: Callable[[str], Turn | None], decide: Decide) -> None:
        """``live_turn``: the turn of a run that runs here."""
        self._live_turn = live_turn
        self._decide = decide

    def stop(
        self, run: RowMapping, order: StopOrder, if_turn: str | None = None, wait_s: float = 0.0
    ) -> StopAnswer:
        """Stop the current turn of ``run`` (its row as read on arrival), and the run itself if the order says so.

        In this order: refuse what is refused, close the scope and reach everything, record, answer. ``wait_s``
        waits for the turn's end.
        """
        run, turn = self._find_current(run)
        if run["state"] in TERMINAL:
            raise RunIsOver()
        turn_id = turn.start.turn_id if turn is not None else run["turn_id"]
        if if_turn is not None and if_turn != turn_id:
            raise TurnIsOver()
        check_stop(run, order)
        if turn is not None:
            return self.stop_turn(turn, order, wait_s)
        try:
            return self._stop_by_row(run, turn_id, order, wait_s)
        except TurnIsOver:
            if if_turn is not None:
                raise
            return self._answer_too_late(run["id"], turn_id, order, wait_s)

    def _find_current(self, run: RowMapping) -> tuple[RowMapping, Turn | None]:
        """The run's row and, if it runs here, its current turn. A turn that has ended may live for a moment longer."""
        turn = self._live_turn(run["id"])
        if turn is None or turn.start.turn_id == run["turn_id"]:
            return run, turn
        # They were read at two moments. Read once more, the row is the newer of the two.
        try:
            run = self._read_row(run["id"])
        except StoreError:
            return run, turn
        return run, turn if turn.start.turn_id == run["turn_id"] else None

    def stop_turn(self, turn: Turn, order: StopOrder, wait_s: float = 0.0) -> StopAnswer:
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        pause_at("engine.before_stop")
        verdict = turn.stop(order)
        if turn.fence.is_closed:  # an instant ago, so nothing of it is written down there: the next server finds the stop
            record = self._decide(lambda tx: request_stop(tx, run_id, turn_id, order))
            return StopAnswer(run_id, turn_id, record.is_stopped, self._state(run_id), [], record.fates)
        if verdict is Verdict.OVER and (order.ends_run or not turn.scope.is_stopped):
            self.wait_end(turn)
            return self._answer_too_late(run_id, turn_id, order, wait_s)
        pause_at("engine.before_stop_is_recorded")
        fates = self._wait_recorded(turn, order)
        if order.continue_with is not None and verdict is not Verdict.FIRST:
            # Joined: what it goes on with is queued by itself, or refused if the turn has ended meanwhile.
            self._decide(lambda tx: request_stop(tx, run_id, turn_id, order))
        return self._answer(turn, fates, wait_s)

    def stop_if(self, turn: Turn, order: StopOrder, claim: AbstractContextManager[bool]) -> bool:
        """Stop the turn if the claim holds; False if it does not. A turn that ends or is stopped already is left alone:
        nothing is joined, and no other turn of the run is meant. Returns when the stop is durable.
        """
        pause_at("engine.before_stop")
        verdict = turn.stop(order, claim)
        if verdict is Verdict.FIRST:
            pause_at("engine.before_stop_is_recorded")
            self._wait_recorded(turn, order)
        return verdict is not Verdict.VOID

    def wait_end(self, turn: Turn) -> None:
        """Until the end of a turn that has finished is recorded. ``StoreError`` if that takes too long."""
        try:
            turn.ended.result(STORE_TIMEOUT_S)
        except FutureTimeoutError:
            raise StoreError("the turn has finished, and its end could not be recorded yet") from None

    def _answer_too_late(self, run_id: str, turn_id: str, order: StopOrder, wait_s: float) -> StopAnswer:
        """The turn had finished. A terminate means the run, so it goes on to what runs or waits there now."""
        run = self._read_row(run_id)
        if order.ends_run and run["state"] not in TERMINAL:
            try:
                return self.stop(run, order, None, wait_s)
            except RunIsOver:
                run = self._read_row(run_id)
        if order.continue_with is not None:  # nobody goes on with it
            raise RunIsOver() if run["state"] in TERMINAL else TurnIsOver()
        return StopAnswer(run_id, turn_id, False, run["state"], [])

    def _answer(self, turn: Turn, fates: dict[str, Any] | None, wait_s: float) -> StopAnswer:
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        if wait_s > 0:
            try:
                outcome = turn.ended.result(wait_s)
                if outcome.order is not None and outcome.order.fates is not None:
                    fates = outcome.order.fates  # a terminate may have joined
                return StopAnswer(run_id, turn_id, True, self._state(run_id), outcome.receipt or [], fates)
            except FutureTimeoutError:
                pass
        return StopAnswer(run_id, turn_id, True, RunState.STOPPING, turn.stopping.receipt_so_far, fates)

    def _stop_by_row(self, run: RowMapping, turn_id: str, order: StopOrder, wait_s: float) -> StopAnswer:
        """No turn runs here: parked, ended an instant ago, or accepted an instant ago and not yet launched."""
        record = self._decide(lambda tx: request_stop(tx, run["id"], turn_id, order))
        turn = self._live_turn(run["id"])
        if turn is not None and turn.start.turn_id == turn_id:
            return self.stop_turn(turn, order, wait_s)
        return StopAnswer(run["id"], turn_id, record.is_stopped, self._state(run["id"]), [], record.fates)

    def stop_part(
        self, run: RowMapping, stop: Callable[[Turn], PartStop], if_turn: str | None, wait_s: float
    ) -> dict[str, Any]:
        """Stop one goal or one tool call of the current turn, which goes on; ``wait_s`` waits for its end."""
        run, turn = self._find_current(run)
        if run["state"] in TERMINAL:
            raise RunIsOver()
        if turn is None or turn.scope.is_finished or (if_turn is not None and if_turn != turn.start.turn_id):
            raise TurnIsOver()
        if not turn.wait_back(BACK_S):
            raise TurnIsComingBack()
        part = stop(turn)
        answer = {"run_id": run["id"], "turn_id": turn.start.turn_id, "goal_id": part.goal.id, "call_id": part.call_id}
        if part.recorded is not None:
            try:
                part.recorded.result(STORE_TIMEOUT_S)
            except TurnIsOver:
                pass  # its end was recorded first, and with it what became of its parts
            except (StoreError, FutureTimeoutError):
                raise StopNotRecorded(**answer, stopped=part.is_stopped, receipt=part.receipt()) from None
        part.wait(wait_s)
        return answer | {"stopped": part.is_stopped, "ended": part.has_ended, "receipt": part.receipt()}

    def _wait_recorded(self, turn: Turn, order: StopOrder) -> dict[str, Any] | None:
        """Until the stop is durable; what it did with the messages that waited."""
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        try:
            return self._read_recorded(turn, order)
        except (StoreError, FutureTimeoutError, CancelledError):  # cancelled: by whoever had a message recorded with it
            raise StopNotRecorded(
                run_id=run_id, turn_id=turn_id, stopped=True, receipt=turn.stopping.receipt_so_far
            ) from None

    def _read_recorded(self, turn: Turn, order: StopOrder) -> dict[str, Any] | None:
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        try:
            recorded = turn.stopping.recorded
            record = recorded.result(STORE_TIMEOUT_S) if recorded is not None else None
            if order.ends_run:  # a terminate that joined a turn-stop widens the record
                record = self._decide(lambda tx: request_stop(tx, run_id, turn_id, order))
        except (TurnIsOver, RunIsOver):
            record = None  # the turn's end was recorded first, and with it this stop
        return record.fates if record is not None else self._read_fates(turn_id)

    def _read_fates(self, turn_id: str) -> dict[str, Any] | None:
        try:
            return self._decide(lambda tx: read_fates(tx, turn_id))
        except StoreError:
            return None  # the store is going down: that the stop is recorded stands

    def _read_row(self, run_id: str) -> RowMapping:
        return self._decide(lambda tx: read_run(tx, run_id))

    def _state(self, run_id: str) -> str:
        return str(self._read_row(run_id)["state"])
