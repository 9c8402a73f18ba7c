"""The stop of a turn: who ordered it, what it found, whether it is recorded, and what came of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from core.base.InputOutput import set_stopped
from core.cancellation import Cancelled, Cause, Verdict
from core.gates import pause_at
from core.plan.goal import Goal
from core.session.receipt import Stock
from core.session.records import StopOrder, StopRecord
from core.session.stop_moves import note_stop
from core.store.commit import Transaction
from core.switching import keep_interpreter

if TYPE_CHECKING:
    from core.session.turn import Turn

#: More open calls than this are a crowd: waking them is what costs, and comes after the stop's record.
CROWD: Final = 16

#: Seconds for which a stop's record goes before the rest, at most; a commit takes about 1 ms.
RECORD_FIRST_S: Final = 0.01


class TurnStop:
    """Of one turn, from its beginning on."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        # Appended before the scope is cancelled; the one whose cause the scope took is the turn's stop.
        self._orders: list[StopOrder] = []
        # The same for stops that depend on a claim. They join nothing: only the first stop of all counts among them.
        self._claimed: list[StopOrder] = []
        self._stock: Stock | None = None
        # What is decided with the record of the turn's stop.
        self._beside: Callable[[Transaction], Any] | None = None
        self._recorded: Future[StopRecord] | None = None
        self._reached = threading.Event()
        self._receipt_so_far: list[dict[str, Any]] = []
        if not turn.scope.is_stopped:
            # First abort of the scope, so it runs before any call is woken and could leave the books.
            with contextlib.suppress(Cancelled):  # stopped since: the stock is taken at the end
                turn.scope.add_abort(self._meet)

    # -- whoever stops ---------------------------------------------------------------------------

    def stop(
        self, order: StopOrder, claim: AbstractContextManager[bool] | None = None,
        beside: Callable[[Transaction], Any] | None = None,
    ) -> Verdict:  # fmt: skip
        """See :meth:`core.session.turn.Turn.stop`."""
        turn = self._turn
        orders = self._orders if claim is None else self._claimed
        orders.append(order)
        verdict = turn.scope.cancel(order.cause, partial(setattr, self, "_beside", beside), claim)
        if claim is not None and verdict is not Verdict.FIRST:
            orders.remove(order)
            return verdict
        if order.ends_run:
            turn.run_scope.cancel(order.cause)
        pause_at("turn.scope_closed")
        if verdict is Verdict.FIRST:
            self._reach()
        elif turn.scope.is_stopped and not self.wait_reached():
            self._set_receipt()  # it was stopped from inside, by code that has no receipt to make
        return verdict

    def _reach(self) -> None:
        turn = self._turn
        try:
            if turn.plan is not None:
                turn.plan.cancel_llm_requests(turn.cancel_timeout_s)
            pause_at("turn.requests_cancelled")
        finally:
            set_stopped(True, turn.scope)  # the documented flag comes after the requests, whatever became of them
            self._wait_record_first()
            self._set_receipt()

    def wait_reached(self) -> bool:
        """Until a stop of the turn has told everything that it found, and is in the writer's queue. Bounded."""
        return self._reached.wait(self._turn.cancel_timeout_s * 2)

    @property
    def recorded(self) -> Future[StopRecord] | None:
        """What comes of recording the stop. Who takes that back leaves it to the turn's end. None: it is not on the way."""
        return self._recorded

    @property
    def receipt_so_far(self) -> list[dict[str, Any]]:
        """What was known when everything had been reached: the same for all who ask."""
        return self._receipt_so_far

    def _set_receipt(self) -> None:
        stock = self._stock
        if stock is not None and not self._reached.is_set():
            self._receipt_so_far = stock.so_far()
        self._reached.set()

    # -- in the stop, before anything is woken -------------------------------------------------------

    def _meet(self) -> None:
        """Whoever stopped the scope: see what runs, and have the stop written down before anything is woken by it.

        The writing goes on beside the reaching; only the answer waits for it. It comes before the turn's end in the
        writer's queue, since nothing has been woken yet that could end the turn.
        """
        self._take_stock()
        order, turn = self.order_in_force(), self._turn
        if order is not None:
            self._recorded = turn.record(partial(_record, turn=turn, order=order, beside=self._beside))
        if len(turn.calls) > CROWD:
            # The writer, and whoever waits for it, would have to queue behind all the threads that are woken next.
            self._wait_record_first()
            keep_interpreter()

    def _wait_record_first(self) -> None:
        """Let the writer, and then whoever waits for its word, go before those that a stop sets in motion."""
        if self._recorded is not None:
            wait([self._recorded], RECORD_FIRST_S)

    def _take_stock(self) -> None:
        plan, calls = self._turn.plan, self._turn.calls
        if plan is None:
            self._stock = Stock(calls.snapshot(), ())
        else:
            with plan.lock:
                self._stock = Stock(calls.snapshot(), plan.walk_all())

    def abandon(self, goal: Goal) -> None:
        """The goal's thread did not end in time."""
        if self._stock is not None:
            self._stock.abandon(goal)

    # -- at the turn's end ---------------------------------------------------------------------------

    def order_in_force(self) -> StopOrder | None:
        """The stop as it is recorded, by whomever: the cause that the scope took; it ends the run if any order did."""
        cause = self._turn.scope.cause
        if cause is None:
            return None
        orders = [*self._orders, *(order for order in list(self._claimed) if order.cause is cause)]
        first = next((order for order in orders if order.cause is cause), StopOrder(cause))
        return replace(first, ends_run=any(order.ends_run for order in orders))

    def settle(self, cause: Cause) -> list[dict[str, Any]]:
        """The final receipt of the stop with that cause, once it has reached everything."""
        if any(order.cause is cause for order in [*self._orders, *self._claimed]):
            self.wait_reached()  # so that the asked calls have their outcome
        if self._stock is None:
            self._take_stock()
        assert self._stock is not None
        return self._stock.final()


def _record(
    tx: Transaction, turn: Turn, order: StopOrder, beside: Callable[[Transaction], Any] | None
) -> StopRecord:
    record = note_stop(tx, turn.start.run_id, turn.start.turn_id, order)
    return replace(record, beside=beside(tx)) if beside is not None and record.is_stopped else record
