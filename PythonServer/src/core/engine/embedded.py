"""The embedded engine: this process runs the turns, on its own threads, over its own store.

Every stop comes through :meth:`Engine.stop`, whoever wants it: a route, a deadline, a shutdown.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import RowMapping

from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope, Verdict
from core.clock import alarm_clock
from core.engine.call_pool import CallPool
from core.errors import (
    RunIsOver,
    ServerError,
    ShuttingDown,
    StopNotRecorded,
    StoreError,
    TurnIsOver,
)
from core.gates import pause_at
from core.session.parts import PartStop
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import TERMINAL, RunState
from core.session.turn import Turn
from core.session.turns import begin_turn, check_stop, end_turn, read_run, request_stop
from core.store.commit import Transaction
from core.store.writer import Writer

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that a request waits for the store before it is told so.
STORE_TIMEOUT_S: Final = 15.0

#: Seconds between attempts to record the end of a turn while the store takes no writes.
RETRY_END_S: Final = 1.0


class Skillset(Protocol):
    """What a turn does; see :class:`core.extensions.skillsets.ChatBot.ChatBot2.ChatBot2`."""

    def run_turn(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """Make and run the turn's plan; ``on_started`` once the turn waits for others rather than prepares."""


class StopAnswer:
    """What a stop came to, as the routes tell it."""

    def __init__(self, run_id: str, turn_id: str | None, stopped: bool, state: str, receipt: list[dict[str, Any]]):
        self.run_id = run_id
        self.turn_id = turn_id
        self.stopped = stopped
        self.state = state
        self.receipt = receipt

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            "run_id": self.run_id, "turn_id": self.turn_id, "stopped": self.stopped,
            "parked": self.state == RunState.AWAITING_INPUT, "state": self.state, "receipt": self.receipt,
        }  # fmt: skip


class Engine:
    """Runs turns, and stops them."""

    def __init__(
        self, writer: Writer, skillset: Skillset, pool: CallPool, turn_workers: int, cancel_timeout_s: float
    ) -> None:
        self.scope = Scope.root()
        self.pool = pool
        self._writer = writer
        self._skillset = skillset
        self._cancel_timeout_s = cancel_timeout_s
        self._lock = threading.Lock()
        self._live: dict[str, Turn] = {}
        self._starts: deque[Turn] = deque()
        self._free_starts = turn_workers
        self.is_closing = False
        self._all_parked = threading.Condition(self._lock)

    # -- asking ----------------------------------------------------------------------------

    def live_turn(self, run_id: str) -> Turn | None:
        """The turn of that run which runs here, if one does."""
        with self._lock:
            return self._live.get(run_id)

    def live_turns(self) -> list[Turn]:
        """All of them, oldest first."""
        with self._lock:
            return list(self._live.values())

    def decide(self, decision: Callable[[Transaction], T]) -> T:
        """Have the writer make a decision, and wait until it is durable."""
        decided = self._writer.transact(decision)
        for _ in range(2):
            try:
                return decided.result(STORE_TIMEOUT_S)
            except FutureTimeoutError:
                if decided.cancel():
                    break  # else it is being written at this moment, and what comes of it should not be lost
        raise StoreError("the store did not answer in time")

    # -- running -----------------------------------------------------------------------------

    def accept(self, decision: Callable[[Transaction], tuple[dict[str, Any], TurnStart | None]]) -> dict[str, Any]:
        """Make a decision that may start a turn; returns its answer once that is durable."""
        if self.is_closing:
            raise ShuttingDown()
        answer, start = self.decide(decision)
        pause_at("engine.accepted")
        if start is not None:
            self.launch(start)
        return answer

    def launch(self, start: TurnStart) -> Turn:
        """Run an accepted turn as soon as a start is free."""
        run_scope = self.scope.open(Level.RUN, start.run_id)
        turn = Turn(start, run_scope, self._writer, self.pool, self._cancel_timeout_s)
        with self._lock:
            self._live[start.run_id] = turn
            self._starts.append(turn)
        self._start_next()
        return turn

    def _start_next(self) -> None:
        with self._lock:
            if not self._starts or not self._free_starts:
                return
            self._free_starts -= 1
            turn = self._starts.popleft()
        threading.Thread(target=self._run_turn, args=(turn,), name=f"turn-{turn.start.turn_id}", daemon=True).start()

    def _run_turn(self, turn: Turn) -> None:
        start = _StartPlace(self)
        error: BaseException | str | None = None
        call_off_deadline = self._set_deadline(turn)
        try:
            self._begin(turn)
            self._skillset.run_turn(turn, start.free)
        except Cancelled:
            pass  # the turn's scope was opened here; finish() tells by whom it was stopped
        except ServerError as failure:
            error = failure.detail
        except BaseException as failure:
            log.exception("a turn failed")
            error = f"internal error ({type(failure).__name__})"
        finally:
            call_off_deadline()
            start.free()
            self._end(turn, error)

    def free_start(self) -> None:
        """A turn is no longer being started; the next one may be."""
        with self._lock:
            self._free_starts += 1
        self._start_next()

    def _begin(self, turn: Turn) -> None:
        pause_at("engine.claimed")
        order = self.decide(lambda tx: begin_turn(tx, turn.start.run_id))
        if order is not None:
            turn.stop(order)  # it was stopped before it was known here
        pause_at("engine.began")
        turn.scope.checkpoint()

    def _set_deadline(self, turn: Turn) -> Callable[[], None]:
        deadline_ms = turn.start.options.get("deadline_ms")
        if deadline_ms is None:
            return lambda: None
        cause = Cause(CauseWord.DEADLINE, f"the turn took longer than {deadline_ms} ms")
        order = StopOrder(cause, ends_run=not turn.start.interactive)
        # A thread, since a stop asks the gateway and alarms must not block.
        stop = threading.Thread(target=self._stop_at_deadline, args=(turn, order), name="deadline", daemon=True)
        return alarm_clock.after(deadline_ms / 1000, stop.start).call_off

    def _stop_at_deadline(self, turn: Turn, order: StopOrder) -> None:
        try:
            self._stop_live(turn, order)
        except ServerError as error:  # the stop holds
            log.warning("the stop of %s at its deadline: %s", turn.start.turn_id, error.detail)

    def _end(self, turn: Turn, error: BaseException | str | None) -> None:
        outcome = turn.finish(error)
        pause_at("engine.before_final_write")
        recorded, following = self._record_end(turn, outcome)
        pause_at("engine.after_final_write")
        with self._lock:
            if self._live.get(turn.start.run_id) is turn:
                del self._live[turn.start.run_id]
            self._all_parked.notify_all()
        if following is not None and not self._is_for_the_next_server(following):
            self.launch(following)
        turn.ended.set_result(recorded)

    def _is_for_the_next_server(self, start: TurnStart) -> bool:
        """A shutdown put it off: it stays queued, and the next start launches it."""
        return self.is_closing and start.options.get("on_server_lost") == "resume"

    def _record_end(self, turn: Turn, outcome: TurnOutcome) -> tuple[TurnOutcome, TurnStart | None]:
        start = turn.start
        pause = threading.Event()
        while True:
            try:
                return self.decide(lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome))
            except TurnIsOver:
                return outcome, None
            except StoreError:
                # What was said must not be lost: keep it and try again. After a shutdown, start-up settles the turn.
                if self.scope.is_stopped:
                    return outcome, None
                pause.wait(RETRY_END_S)
            except Exception:
                # A fault of ours must not leave a turn that lives for ever; start-up settles its row.
                log.exception("the end of %s could not be recorded", start.turn_id)
                return outcome, None

    # -- stopping --------------------------------------------------------------------------------

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
            return self._stop_live(turn, order, wait_s)
        try:
            return self._stop_by_row(run, turn_id, order, wait_s)
        except TurnIsOver:
            if if_turn is not None:
                raise
            return self._answer_too_late(run["id"], turn_id, order, wait_s)

    def _find_current(self, run: RowMapping) -> tuple[RowMapping, Turn | None]:
        """The run's row and, if it runs here, its current turn. A turn that has ended may live for a moment longer."""
        turn = self.live_turn(run["id"])
        if turn is None or turn.start.turn_id == run["turn_id"]:
            return run, turn
        # They were read at two moments. Read once more, the row is the newer of the two.
        try:
            run = self._read_row(run["id"])
        except StoreError:
            return run, turn
        return run, turn if turn.start.turn_id == run["turn_id"] else None

    def _stop_live(self, turn: Turn, order: StopOrder, wait_s: float = 0.0) -> StopAnswer:
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        pause_at("engine.before_stop")
        verdict = turn.stop(order)
        if verdict is Verdict.OVER and (order.ends_run or not turn.scope.is_stopped):
            self._wait_end(turn)
            return self._answer_too_late(run_id, turn_id, order, wait_s)
        pause_at("engine.before_stop_is_recorded")
        self._wait_recorded(turn, order)
        if order.continue_with is not None and verdict is not Verdict.FIRST:
            # Joined: what it goes on with is queued by itself, or refused if the turn has ended meanwhile.
            self.decide(lambda tx: request_stop(tx, run_id, turn_id, order))
        return self._answer(turn, wait_s)

    def _wait_end(self, turn: Turn) -> None:
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

    def _answer(self, turn: Turn, wait_s: float) -> StopAnswer:
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        if wait_s > 0:
            try:
                outcome = turn.ended.result(wait_s)
                return StopAnswer(run_id, turn_id, True, self._state(run_id), outcome.receipt or [])
            except FutureTimeoutError:
                pass
        return StopAnswer(run_id, turn_id, True, RunState.STOPPING, turn.receipt_so_far)

    def _stop_by_row(self, run: RowMapping, turn_id: str, order: StopOrder, wait_s: float) -> StopAnswer:
        """No turn runs here: parked, ended an instant ago, or accepted an instant ago and not yet launched."""
        is_recorded = self.decide(lambda tx: request_stop(tx, run["id"], turn_id, order))
        turn = self.live_turn(run["id"])
        if turn is not None and turn.start.turn_id == turn_id:
            return self._stop_live(turn, order, wait_s)
        return StopAnswer(run["id"], turn_id, is_recorded, self._state(run["id"]), [])

    def stop_part(
        self, run: RowMapping, stop: Callable[[Turn], PartStop], if_turn: str | None, wait_s: float
    ) -> dict[str, Any]:
        """Stop one goal or one tool call of the current turn, which goes on; ``wait_s`` waits for its end."""
        run, turn = self._find_current(run)
        if run["state"] in TERMINAL:
            raise RunIsOver()
        if turn is None or turn.scope.is_finished or (if_turn is not None and if_turn != turn.start.turn_id):
            raise TurnIsOver()
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

    def _wait_recorded(self, turn: Turn, order: StopOrder) -> None:
        """Until the stop is durable. A terminate that joined a turn-stop widens the record."""
        run_id, turn_id = turn.start.run_id, turn.start.turn_id
        try:
            turn.wait_recorded(STORE_TIMEOUT_S)
            if order.ends_run:
                self.decide(lambda tx: request_stop(tx, run_id, turn_id, order))
        except (TurnIsOver, RunIsOver):
            pass  # the turn's end was recorded first, and with it this stop
        except (StoreError, FutureTimeoutError):
            raise StopNotRecorded(
                run_id=run_id, turn_id=turn_id, stopped=True, receipt=turn.receipt_so_far
            ) from None

    def _read_row(self, run_id: str) -> RowMapping:
        return self.decide(lambda tx: read_run(tx, run_id))

    def _state(self, run_id: str) -> str:
        return str(self._read_row(run_id)["state"])

    # -- going down ------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Stop every turn, as ``shutdown``, and start nothing more. Returns when each was told."""
        self.is_closing = True
        order = StopOrder(Cause(CauseWord.SHUTDOWN))
        stops = [
            threading.Thread(target=turn.stop, args=(order,), name="shutdown", daemon=True)
            for turn in self.live_turns()
        ]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join(self._cancel_timeout_s * 2)
        self.scope.cancel(order.cause)  # and whatever slipped in meanwhile

    def wait_parked(self, timeout_s: float) -> bool:
        """Until no turn runs here; False after ``timeout_s``."""
        with self._all_parked:
            return self._all_parked.wait_for(lambda: not self._live, timeout_s)


class _StartPlace:
    """One of the places for turns that are being started; given back once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_free = False

    def free(self) -> None:
        """Give it back. Harmless if repeated."""
        if not self._is_free:
            self._is_free = True
            self._engine.free_start()
