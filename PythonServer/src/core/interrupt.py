"""A handle to stop turns from any thread, for code that embeds the executor without HTTP: a thin view on their scopes.

Whoever runs a turn binds it to the controller from its begin to its end. A request then stops every turn that is bound,
at once and whatever it is doing; one that comes while none is bound stops the next one, once. A turn that begins while
those before it still unwind is not stopped by their request. Turns that share an agent have a controller each; a stop
of one never reaches another.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final

from core.cancellation import Cause, CauseWord

log = logging.getLogger(__name__)

#: Stops one turn, for that cause. Bounded; harmless if repeated, and once the turn is over.
StopTurn = Callable[[Cause], object]


class BoundTurns:
    """The turns that are bound to one controller. Whoever uses it holds that controller's lock."""

    def __init__(self) -> None:
        self.running: dict[object, StopTurn] = {}
        #: Those that a request has met, until they are over.
        self.unwinding: dict[object, Cause] = {}

    def meet(self, cause: Cause) -> list[StopTurn]:
        """All that run have met this request; what the caller has to call, without the lock."""
        stops = list(self.running.values())
        self.unwinding |= dict.fromkeys(self.running, cause)
        self.running.clear()
        return stops

    def leave(self, turn: object) -> bool:
        """A turn is over. Whether it was the last of those that were stopped."""
        self.running.pop(turn, None)
        return self.unwinding.pop(turn, None) is not None and not self.unwinding


class InterruptController:
    """The first request stands until it is cleared; it is cleared by itself when the turns that it stopped are over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns = BoundTurns()
        self._reason: str | None = None
        self._windows = 0
        #: Set while a stop is requested, until the turns that it stopped are over. For reading and waiting.
        self.event: Final = threading.Event()

    def request(self, reason: str = "user") -> bool:
        """Stop the turns that run, or the next one. False, and nothing happens, if that was requested already.

        The reason is shown and recorded beside the cause ``user``, never parsed. Returns once everything was reached;
        it does not wait for the turns to end. May be called by the callbacks of a turn, and by its tools.
        """
        cause = Cause(CauseWord.USER, reason)
        with self._lock:
            stops = self._turns.meet(cause)
            if not self.event.is_set():
                self._reason = reason
                self.event.set()
            elif not stops:
                return False
        stop_all(stops, cause)
        return True

    def clear(self) -> None:
        """Take back a request that no turn has met yet. A turn that was stopped stays stopped."""
        with self._lock:
            self._clear()

    def is_set(self) -> bool:
        """Whether a stop is requested, or the turns that it stopped still unwind."""
        return self.event.is_set()

    @property
    def reason(self) -> str | None:
        """Why, in the words of whoever asked first; None if nobody did."""
        return self._reason

    def check(self) -> None:
        """``InterruptedError`` if a stop is requested: for code of one's own between two steps."""
        reason = self._reason
        if reason is not None:
            raise InterruptedError(f"stopped: {reason}")

    @contextlib.contextmanager
    def protect(self) -> Iterator[None]:
        """Inside, a new message should wait instead of taking the turn's place. A stop still stops. May be nested."""
        with self._lock:
            self._windows += 1
        try:
            yield
        finally:
            with self._lock:
                self._windows -= 1

    def is_protected(self) -> bool:
        """Whether a protection window is open."""
        return self._windows > 0

    @contextlib.contextmanager
    def bound(self, stop: StopTurn) -> Iterator[Callable[[], None]]:
        """Inside, a request calls ``stop``. Yields what to call first, and between two steps: it calls ``stop`` if a
        request has met the turn, and is not left before that has reached everything.
        """
        turn = object()
        with self._lock:
            self._turns.running[turn] = stop
            # One that has met others is theirs; it stays set only until they are over.
            if self.event.is_set() and not self._turns.unwinding:
                self._turns.meet(Cause(CauseWord.USER, self._reason))
        try:
            yield lambda: self._look(turn, stop)
        finally:
            with self._lock:
                if self._turns.leave(turn):
                    self._clear()

    def _look(self, turn: object, stop: StopTurn) -> None:
        cause = self._turns.unwinding.get(turn)
        if cause is not None:  # the event is set before the turn is reached: between the two, no step may begin
            stop(cause)

    def _clear(self) -> None:
        self._reason = None
        self.event.clear()


def stop_all(stops: list[StopTurn], cause: Cause) -> None:
    """Stop each on a thread of its own, so that one whose gateway hangs holds up no other. Waits for all."""
    threads = []
    for stop in stops[1:]:
        thread = threading.Thread(target=_stop_one, args=(stop, cause), name="stop", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has none left
            _stop_one(stop, cause)
        else:
            threads.append(thread)
    for stop in stops[:1]:
        _stop_one(stop, cause)
    for thread in threads:
        thread.join()


def _stop_one(stop: StopTurn, cause: Cause) -> None:
    try:
        stop(cause)
    except Exception:
        log.exception("a stop failed; the others go on")
