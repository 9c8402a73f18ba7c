"""The questions of a running turn: which call waits for which, and how it is woken.

The row is the truth (:mod:`core.session.questions`). Whatever may have changed it, be it an answer, a stop or the time,
only wakes the waiting call, which then looks at the row by a decision of its own. That decision lies behind all that
woke it, so an answer that was acknowledged is never lost to a stop that came an instant later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Final

from sqlalchemy import RowMapping

from core.call import Call, CallKind, Outcome
from core.cancellation import Cancelled, Level, Scope
from core.clock import alarm_clock
from core.errors import StoreError, TurnIsOver
from core.gates import pause_at
from core.plan.goal import Goal
from core.session.questions import PENDING, Asking, look_at_question, question_of_call
from core.store.commit import Transaction
from core.surrogates import whole_text
from core.tool.tool import Answered, ToolFailed, ToolRun

if TYPE_CHECKING:
    from core.session.turn import Turn

#: Seconds that a stopped call waits for the store to tell whether it was answered before: less than after which a tool
#: that does not end is left behind.
STOP_S: Final = 1.2

#: Seconds until the next look, while the store does not answer.
RETRY_S: Final = 1.0


class AwayCall(Call):
    """Stands for a call that has asked in an earlier server, until that is back: what a stop meets meanwhile."""

    def __init__(self, scope: Scope, goal_id: str, call_id: str, run_id: str) -> None:
        super().__init__(CallKind.QUESTION, scope, goal_id, call_id)
        self._run_id = run_id
        self.ended.set()  # nothing runs here; its result is written once its goal goes on

    def look(self, tx: Transaction) -> None:
        """What the stop has made of its question."""
        _note_outcome(self, question_of_call(tx, self._run_id, self.id))


class Questions:
    """Of one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        self._woken: dict[str, threading.Event] = {}
        # Calls whose question is in the store, or about to be committed. None: it was asked in an earlier server, and
        # its call is not back yet.
        self._asked: dict[str, ToolRun | None] = {}
        # For such a call, if it is to be stopped before it is back.
        self._away: dict[str, AwayCall] = {}

    def take_over(self, call_ids: Iterable[str]) -> None:
        """These calls have asked in an earlier server."""
        self._asked.update(dict.fromkeys(call_ids))

    def has_asked(self, call_id: str) -> bool:
        """Whether the question of that call is in the store, and the call was not stopped."""
        calls = self._asked.get(call_id), self._away.get(call_id)
        return call_id in self._asked and not any(call is not None and call.scope.is_stopped for call in calls)

    def stand_in(self, owner: Goal, call_id: str) -> AwayCall | None:
        """For the stop of a call that has asked in an earlier server: what to stop as long as the call is not back.

        Its stop is then that of the call, which takes up first what had become of its question. None if the call is
        back, was never away, or will not come back.
        """
        with self._lock:
            if call_id not in self._asked or self._asked[call_id] is not None or owner.is_final:
                return None
            if call_id not in self._away:
                scope = (owner.scope or owner.scope_around).open(Level.CALL, call_id)
                self._away[call_id] = AwayCall(scope, owner.id, call_id, self._turn.start.run_id)
            return self._away[call_id]

    def _come_back(self, run: ToolRun) -> None:
        with self._lock:
            if self._asked.get(run.id, run) is not None:
                return
            self._asked[run.id] = run
            away = self._away.get(run.id)
        # The first end wins: either the stop came before, and is the call's, or it finds the call itself.
        cause = away.scope.finish() if away is not None else None
        if cause is not None:
            run.scope.cancel(cause)

    def wake(self, call_id: str) -> None:
        """Something becomes of the question of that call. Harmless if nobody waits."""
        with self._lock:
            woken = self._woken.get(call_id)
        if woken is not None:
            woken.set()

    def ask(self, run: ToolRun, question: str, options: list[str] | None, timeout_ms: int | None) -> Answered:
        """See :class:`core.tool.tool.AskPort`. A call that has asked in an earlier server goes on waiting."""
        start = self._turn.start
        shown = [_clean(each) for each in options] if options is not None else None
        asking = Asking(start.run_id, start.turn_id, run.goal_id, run.id, _clean(question), shown, timeout_ms)
        row: RowMapping | None = None
        # Cancelled is of the call's own scope: what had become of the question by then is its result.
        with contextlib.suppress(Cancelled), self._turn.activity.paused(), self._turn.workers.resting(run.scope):
            row = self._settled(run, asking)
        if row is None or row["state"] == "cancelled":
            run.scope.checkpoint()
            raise ToolFailed("the question was withdrawn")
        return Answered(row["state"], row["answer"], row["comment"])

    def _settled(self, run: ToolRun, asking: Asking) -> RowMapping | None:
        """The row once it is settled. None if a stop came before the question was asked, or nobody can tell."""
        woken = threading.Event()
        abort = run.add_abort(woken.set)
        with self._lock:
            self._woken[run.id] = woken
        try:
            self._come_back(run)
            row = self._wait(run, asking, woken)
        finally:
            run.scope.forget(abort)
            with self._lock:
                del self._woken[run.id]
        _note_outcome(run, row)
        return row

    def _wait(self, run: ToolRun, asking: Asking, woken: threading.Event) -> RowMapping | None:
        while True:
            woken.clear()  # first: what changes the row from now on is seen below, or wakes
            try:
                row = self._look(run, asking)
            except StoreError as error:
                if run.scope.is_stopped:
                    return None
                if run.id not in self._asked:
                    raise ToolFailed("the question could not be recorded") from error
                woken.wait(RETRY_S)
                continue
            if row is None or row["state"] != PENDING:
                return row
            with _waking(row["expires_at"], woken):
                woken.wait()

    def _look(self, run: ToolRun, asking: Asking) -> RowMapping | None:
        """The row as it is now; withdrawn by this, if the call is stopped and it was not settled before."""
        pause_at("asking.before_look")
        cause = run.scope.cause
        had_asked = run.id in self._asked

        def look(tx: Transaction) -> RowMapping | None:
            row = look_at_question(tx, asking, cause)
            if row is not None:
                self._asked[run.id] = run  # here: whoever sees the question finds that it was asked
            return row

        try:
            return self._looked(run, self._turn.record(look), is_stopped=cause is not None)
        except Cancelled:
            return self._look(run, asking)  # behind the decision that has just been made
        except StoreError:
            if not had_asked:  # it was decided, perhaps, and not committed
                self._asked.pop(run.id, None)
            raise
        except TurnIsOver:
            return None  # it is being stopped, and the question was not asked

    def _looked(self, run: ToolRun, looked: Future[RowMapping | None], is_stopped: bool) -> RowMapping | None:
        """What the decision found, once it is durable."""
        if not is_stopped:
            return run.scope.wait_for(looked)
        try:
            return looked.result(STOP_S)
        except FutureTimeoutError as error:
            raise StoreError from error


@contextlib.contextmanager
def _waking(expires_at: float | None, woken: threading.Event) -> Iterator[None]:
    """Inside, the event is set when that time has come."""
    if expires_at is None:
        yield
        return
    alarm = alarm_clock.after(max(0.0, expires_at - time.time()), woken.set)
    try:
        yield
    finally:
        alarm.call_off()


def _note_outcome(call: Call, row: RowMapping | None) -> None:
    """For the receipt of a stop. Settled before it: then the result stands as it is."""
    if row is None:
        call.settle(Outcome.NOT_STARTED, "never asked")
    elif row["state"] == "cancelled":
        call.settle(Outcome.CANCELLED, "the question was withdrawn")
    elif row["state"] == "expired":
        call.settle(Outcome.ALREADY_DONE, "it had expired")
    else:
        call.settle(Outcome.ALREADY_DONE, f"it was {row['state']}")


def _clean(text: str) -> str:
    """As every store takes it."""
    return whole_text(text).replace("\0", "\N{REPLACEMENT CHARACTER}")
