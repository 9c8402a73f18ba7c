"""A turn without a store: it runs on a thread of its own, and its events come out on the thread that asked for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from core.base.InputOutput import close_flag, open_flag
from core.cancellation import Cancelled, Cause, CauseWord, Scope
from core.errors import ServerError
from core.events import Event, EventType
from core.extensions.foreign_controller import Controller, bound
from core.plan.goal import Goal
from core.provider.model_call import ModelCall
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.turn import Pool, Turn
from core.store.commit import Transaction
from core.tool.tool import Answered, ToolFailed, ToolRun

T = TypeVar("T")

#: Seconds after which the main thread looks for signals that its wait has missed.
SIGNAL_S: Final = 0.5

#: Gets each event of a turn, in order.
OnEvent = Callable[[Event], None]


class EmbeddedTurn(Turn):
    """A turn that also asks a controller between its steps."""

    def __init__(self, start: TurnStart, run_scope: Scope, workers: Pool, cancel_timeout_s: float) -> None:
        self._outlet = _Outlet()
        super().__init__(start, run_scope, self._outlet, workers, cancel_timeout_s)
        self._look: Callable[[], None] = lambda: None
        self._outcome: Future[TurnOutcome] = Future()

    # -- on the thread of whoever wants it run ---------------------------------------------------

    def run(self, work: Callable[[], None], controller: Controller | None, on_event: OnEvent) -> TurnOutcome:
        """Have ``work`` done; blocks until the turn is over and ``on_event`` has got every event.

        ``on_event`` is called on this thread and may take its time. If it raises, or Ctrl-C is pressed, the turn is
        stopped first, and then that is raised.
        """
        thread = threading.Thread(target=self._work, args=(work, controller), name=self.start.turn_id, daemon=True)
        try:
            self._begin(thread)  # inside: Ctrl-C may come before this returns, and the turn run
            for event in iter(self._outlet.take, None):
                on_event(event)
        except BaseException as error:
            self._stop(Cause(CauseWord.USER, f"the caller left with {type(error).__name__}"))
            raise
        finally:
            wait([self._outcome])  # bounded: it is over, or was stopped
            if thread.is_alive():
                thread.join()
        return self._outcome.result()

    def _begin(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:  # the system has none left
            self.finish(None)
            self._outcome.set_exception(error)
            raise

    # -- on the turn's thread ----------------------------------------------------------------------

    def _work(self, work: Callable[[], None], controller: Controller | None) -> None:
        error: BaseException | None = None
        open_flag(self.scope)
        try:
            outcome = self._run_bound(work, controller)
        except BaseException as failure:
            error = failure
            if not self.scope.is_finished:  # it was never bound
                self.finish("internal error")
        finally:
            close_flag(self.scope)
            self._outlet.close()
        if error is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(outcome)

    def _run_bound(self, work: Callable[[], None], controller: Controller | None) -> TurnOutcome:
        # Bound until it has finished: a request that comes while it runs is for this turn, if only to find it over,
        # and never for the next one.
        with bound(controller, self._stop) as self._look, self.scope.entered():
            error: str | None = "internal error"
            try:
                self._look()
                work()
                error = None
            except Cancelled:
                error = None  # the turn's scope was opened for this
            except ServerError as failure:
                error = failure.detail
            finally:
                outcome = self.finish(error)
            for event in outcome.closing:
                self._outlet.emit(event)
            return outcome

    def _stop(self, cause: Cause) -> None:
        self.stop(StopOrder(cause))

    # -- what agents and goals use -------------------------------------------------------------------

    def begin_request(self, owner: Goal, call: ModelCall) -> None:
        """See :class:`core.agent.ports.TurnPort`."""
        self._look()
        super().begin_request(owner, call)

    def note_call(self, owner: Goal, call_id: str, name: str, arguments: str) -> None:
        """See :meth:`Turn.note_call`."""
        self._look()
        super().note_call(owner, call_id, name, arguments)

    def emit(
        self, event_type: EventType, data: dict[str, Any], goal_id: str | None = None, call_id: str | None = None
    ) -> None:
        """See :meth:`Turn.emit`."""
        if event_type is EventType.RETRY:  # the wait for the next attempt begins: a step, too
            self._look()
        super().emit(event_type, data, goal_id, call_id)

    def ask(
        self, owner: Goal, run: ToolRun, question: str, options: list[str] | None, timeout_ms: int | None
    ) -> Answered:
        """See :meth:`Turn.ask`: there is no store for the question, and no route to answer it by."""
        raise ToolFailed("nobody is there to ask")

    def publish_plan(self) -> None:
        """See :meth:`Turn.publish_plan`."""
        self.emit(EventType.PLAN_UPDATED, self.plan_data())


class _Outlet:
    """Where events go in place of a store: to whoever takes them, numbered."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._seq = 0

    def emit(self, event: Event) -> None:
        """See :class:`core.session.surviving.Log`."""
        with self._lock:
            self._seq += 1
            event.seq, event.at = self._seq, time.time()
            self._events.put(event)

    def transact(self, decision: Callable[[Transaction], T]) -> Future[T]:
        """There is nothing to decide about: the turn is all there is."""
        future: Future[Any] = Future()
        future.set_result(None)
        return future

    def take(self) -> Event | None:
        """The next event, when it comes; None after the last one."""
        is_main = threading.current_thread() is threading.main_thread()
        while True:
            # A signal that comes just before the wait does not end it, and its handler runs on this thread alone.
            with contextlib.suppress(Empty):
                return self._events.get(timeout=SIGNAL_S if is_main else None)

    def close(self) -> None:
        """What still comes is too late, and taken by nobody."""
        self._events.put(None)
