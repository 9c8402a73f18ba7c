"""The embedded engine: this process runs the turns, on its own threads, over its own store.

Every stop comes through :meth:`Engine.stop`, whoever wants it: a route, a deadline, a shutdown.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.clock import alarm_clock
from core.engine.call_pool import CallPool
from core.engine.stopping import Stopping, result_of
from core.errors import (
    ServerError,
    ShuttingDown,
    StoreError,
    TurnIsOver,
)
from core.gates import pause_at
from core.session.delivery import letters_for_turn
from core.session.from_log import end_turn_in_log
from core.session.liveness import Watchdog
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.surviving import leaving
from core.session.turn import Turn
from core.session.turn_end import end_turn
from core.session.turns import begin_turn
from core.store.commit import Transaction
from core.store.writer import Writer

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds between attempts to record the end of a turn while the store takes no writes.
RETRY_END_S: Final = 1.0

#: Seconds until a turn, or the stop of one, tries again to get a thread from a system that has none left.
RETRY_START_S: Final = 1.0


class Skillset(Protocol):
    """What a turn does; see :class:`core.extensions.skillsets.ChatBot.ChatBot2.ChatBot2`."""

    def run_turn(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """Make and run the turn's plan; ``on_started`` once the turn waits for others rather than prepares."""


class Engine:
    """Runs turns. How they are stopped from outside: :mod:`core.engine.stopping`."""

    def __init__(
        self, writer: Writer, skillset: Skillset, pool: CallPool, turn_workers: int, cancel_timeout_s: float,
        idle_limit_ms: int = 0,
    ) -> None:  # fmt: skip
        """``idle_limit_ms``: of turns whose run has none of its own; 0 is none."""
        self.scope = Scope.root()
        self.pool = pool
        self._writer = writer
        self._skillset = skillset
        self._cancel_timeout_s = cancel_timeout_s
        self._idle_limit_ms = idle_limit_ms
        self._lock = threading.Lock()
        self._live: dict[str, Turn] = {}
        # At a shutdown: what the next server takes up, until its threads have ended here.
        self._left: set[Turn] = set()
        self._starts: deque[Turn] = deque()
        self._free_starts = turn_workers
        self.is_closing = False
        self._all_parked = threading.Condition(self._lock)
        self.stopping = Stopping(self.live_turn, self.decide)

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
        return result_of(self._writer.transact(decision))

    # -- running -----------------------------------------------------------------------------

    def accept(self, decision: Callable[[Transaction], tuple[T, TurnStart | None]]) -> T:
        """Make a decision that may start a turn; returns its answer once that is durable."""
        decided = self._writer.transact(lambda tx: self._decide_if_open(tx, decision))
        try:
            answer, start = result_of(decided)
        except StoreError:
            decided.add_done_callback(self._launch_late)
            raise
        pause_at("engine.accepted")
        if start is not None:
            self.launch(start)
        return answer

    def _decide_if_open(self, tx: Transaction, decision: Callable[[Transaction], T]) -> T:
        # Asked here: what is decided behind the stop of a shutdown would wait for a turn that nobody starts.
        if self.is_closing:
            raise ShuttingDown()
        return decision(tx)

    def _launch_late(self, decided: Future[tuple[T, TurnStart | None]]) -> None:
        """It was being written when nobody waited for it any more. A turn that was accepted then has to run, too."""
        if not decided.cancelled() and decided.exception() is None:
            start = decided.result()[1]
            if start is not None:
                self.launch(start)

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
        while (turn := self._take_start()) is not None:
            name = f"turn-{turn.start.turn_id}"
            try:
                threading.Thread(target=self._run_turn, args=(turn,), name=name, daemon=True).start()
            except RuntimeError:
                log.error("no thread for a turn: the system has none left; trying again")
                with self._lock:
                    self._free_starts += 1
                    self._starts.appendleft(turn)
                with contextlib.suppress(RuntimeError):  # nor one for the clock; whoever comes next tries again
                    alarm_clock.after(RETRY_START_S, self._start_next)
                return

    def _take_start(self) -> Turn | None:
        with self._lock:
            if not self._starts or not self._free_starts:
                return None
            self._free_starts -= 1
            return self._starts.popleft()

    def _run_turn(self, turn: Turn) -> None:
        start = _StartPlace(self)
        error: BaseException | str | None = None
        limits = contextlib.ExitStack()
        try:
            limits.callback(self._set_deadline(turn))
            limits.callback(self._set_watchdog(turn))
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
            limits.close()
            start.free()
            self._end(turn, error)

    def free_start(self) -> None:
        """A turn is no longer being started; the next one may be."""
        with self._lock:
            self._free_starts += 1
        self._start_next()

    def _begin(self, turn: Turn) -> None:
        pause_at("engine.claimed")
        run_id = turn.start.run_id
        order, letters = self.decide(lambda tx: (begin_turn(tx, run_id), letters_for_turn(tx, run_id)))
        for letter in letters:
            turn.mail.add(letter)
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

        def strike() -> None:
            try:  # a thread, since a stop asks the gateway and alarms must not block
                threading.Thread(target=self._stop_at_deadline, args=(turn, order), name="deadline", daemon=True).start()
            except RuntimeError:  # the system has none left
                alarm_clock.after(RETRY_START_S, strike)

        return alarm_clock.after(deadline_ms / 1000, strike).call_off

    def _stop_at_deadline(self, turn: Turn, order: StopOrder) -> None:
        try:
            self.stopping.stop_if(turn, order, contextlib.nullcontext(True))  # never the run's next turn
        except ServerError as error:  # the stop holds
            log.warning("the stop of %s at its deadline: %s", turn.start.turn_id, error.code)

    def _set_watchdog(self, turn: Turn) -> Callable[[], None]:
        limit_ms = turn.start.options.get("idle_limit_ms")
        if limit_ms is None:
            limit_ms = self._idle_limit_ms
        if not limit_ms:
            return lambda: None
        cause = Cause(CauseWord.LIVENESS, f"no progress for {limit_ms} ms")
        order = StopOrder(cause, ends_run=not turn.start.interactive)
        watchdog = Watchdog(turn.activity, limit_ms / 1000, lambda claim: self._stop_idle(turn, order, claim))
        watchdog.start()
        return watchdog.call_off

    def _stop_idle(self, turn: Turn, order: StopOrder, claim: AbstractContextManager[bool]) -> bool:
        if turn.is_answered:
            return True  # what still runs, such as a title in the making, has a limit of its own
        try:
            return self.stopping.stop_if(turn, order, claim)
        except ServerError as error:  # the stop holds
            log.warning("the stop of %s without progress: %s", turn.start.turn_id, error.code)
            return True

    def _end(self, turn: Turn, error: BaseException | str | None) -> None:
        outcome = turn.finish(error)
        pause_at("engine.before_final_write")
        recorded, following = (outcome, None) if turn.fence.is_closed else self._record_end(turn, outcome)
        pause_at("engine.after_final_write")
        with self._lock:
            if self._live.get(turn.start.run_id) is turn:
                del self._live[turn.start.run_id]
            self._left.discard(turn)
            self._all_parked.notify_all()
        try:
            if following is not None and not self._is_for_the_next_server(following):
                self.launch(following)
        finally:
            turn.ended.set_result(recorded)

    def _is_for_the_next_server(self, start: TurnStart) -> bool:
        """A shutdown put it off: it stays queued, and the next start launches it."""
        return self.is_closing and start.options.get("on_server_lost") == "resume"

    def _record_end(self, turn: Turn, outcome: TurnOutcome) -> tuple[TurnOutcome, TurnStart | None]:
        start = turn.start
        # One that was to be taken up again, and never came so far: the log alone has what it had said and done.
        end = end_turn_in_log if start.is_revived and not turn.has_plan else end_turn
        pause = threading.Event()
        while True:
            try:
                return self._record(lambda tx: end(tx, start.run_id, start.turn_id, outcome))
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

    def _record(self, decision: Callable[[Transaction], T]) -> T:
        """As :meth:`decide`, but what is being written is waited for, however long: it must not be decided twice."""
        decided = self._writer.transact(decision)
        while True:
            try:
                return result_of(decided)
            except StoreError:
                if decided.done() or self.scope.is_stopped:
                    raise

    # -- going down ------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Stop every turn, as ``shutdown``, and start nothing more. Returns when each was told.

        A turn that waits for nothing but answers is left open, for the next server.
        """
        self.is_closing = True
        self._leave_waiting_turns()
        order = StopOrder(Cause(CauseWord.SHUTDOWN))
        stops = []
        for turn in self.live_turns():
            stop = threading.Thread(target=turn.stop, args=(order,), name="shutdown", daemon=True)
            try:
                stop.start()
            except RuntimeError:  # the system has none left: one after the other
                turn.stop(order)
            else:
                stops.append(stop)
        for stop in stops:
            stop.join(self._cancel_timeout_s * 2)
        self.scope.cancel(order.cause)  # and whatever slipped in meanwhile

    def _leave_waiting_turns(self) -> None:
        for turn in self.live_turns():
            # Both in one: nothing of it may go on here that the next server does again.
            turn.scope.cancel(Cause(CauseWord.SHUTDOWN, "left to the next server"), claim=self._leaving(turn))

    @contextlib.contextmanager
    def _leaving(self, turn: Turn) -> Iterator[bool]:
        with leaving(turn) as is_left:
            if is_left:
                with self._lock:  # from now on a stop of it finds its row, and not its threads
                    del self._live[turn.start.run_id]
                    self._left.add(turn)
            yield is_left

    def wait_parked(self, timeout_s: float) -> bool:
        """Until no turn runs here; False after ``timeout_s``."""
        with self._all_parked:
            return self._all_parked.wait_for(lambda: not self._live and not self._left, timeout_s)


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
