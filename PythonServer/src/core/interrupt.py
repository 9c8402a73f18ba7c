"""A handle to stop turns from any thread, for code that embeds the executor without HTTP: a thin view on their scopes.

Whoever runs a turn binds it to the controller (:func:`bound`). A request then stops every turn that is bound, at once
and whatever it is doing, and one that comes while none is bound stops the next one, once. Turns that share an agent
have a controller each; a stop of one never reaches another.

A controller of one's own is anything with ``is_set()``. It is asked between the steps of a turn; one that has an
``event`` too, a ``threading.Event``, also stops what runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from core.cancellation import Cause, CauseWord

#: Stops one turn, for that cause. Bounded.
StopTurn = Callable[[Cause], object]


class Controller(Protocol):
    """What a controller has at least."""

    def is_set(self) -> bool:
        """Whether a stop was requested."""


class InterruptController:
    """The first request stands until it is cleared; it is cleared by itself when the turns that it stopped are over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[object, StopTurn] = {}
        self._stopped: set[object] = set()
        self._reason: str | None = None
        self._windows = 0
        #: Set while a stop is requested. For reading and waiting.
        self.event: Final = threading.Event()

    def request(self, reason: str = "user") -> bool:
        """Stop the turns that run, or the next one. False, and nothing happens, if that was requested already.

        The reason is shown and recorded beside the cause ``user``, never parsed. Returns once everything was reached;
        it does not wait for the turns to end.
        """
        with self._lock:
            if self.event.is_set():
                return False
            self._reason = reason
            self.event.set()
            self._stopped = set(self._turns)
            stops = list(self._turns.values())
        for stop in stops:
            stop(Cause(CauseWord.USER, reason))
        return True

    def clear(self) -> None:
        """Take back a request that no turn has met yet. A turn that was stopped stays stopped."""
        with self._lock:
            self._clear()

    def is_set(self) -> bool:
        """Whether a stop is requested."""
        return self.event.is_set()

    @property
    def reason(self) -> str | None:
        """Why, in the words of whoever asked; None if nobody did."""
        return self._reason

    def check(self) -> None:
        """``InterruptedError`` if a stop is requested: for code of one's own between two steps."""
        if self.event.is_set():
            raise InterruptedError(f"stopped: {self._reason}")

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
    def bound(self, stop: StopTurn) -> Iterator[None]:
        """Inside, a request calls ``stop``; at once, if it came before."""
        turn = object()
        with self._lock:
            self._turns[turn] = stop
            reason = self._reason
            is_requested = self.event.is_set()
            if is_requested:
                self._stopped.add(turn)
        try:
            if is_requested:
                stop(Cause(CauseWord.USER, reason))
            yield
        finally:
            with self._lock:
                del self._turns[turn]
                was_stopped = turn in self._stopped
                self._stopped.discard(turn)
                if was_stopped and not self._stopped:
                    self._clear()

    def _clear(self) -> None:
        self._reason = None
        self.event.clear()


@contextlib.contextmanager
def bound(controller: Controller | None, stop: StopTurn) -> Iterator[Callable[[], None]]:
    """Inside, ``controller`` stops the turn by ``stop``. Yields what to call between two steps."""
    if controller is None:
        yield lambda: None
    elif isinstance(controller, InterruptController):
        with controller.bound(stop):
            yield lambda: None
    else:
        with _Foreign(controller, stop).watched() as look:
            yield look


class _Foreign:
    """A turn that is bound to a controller of somebody else's making."""

    def __init__(self, controller: Controller, stop: StopTurn) -> None:
        self._controller = controller
        self._stop = stop

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        event = getattr(self._controller, "event", None)
        watcher = None
        if isinstance(event, threading.Event):
            watcher = _watcher_of(event)
            watcher.add(event, self.fire)
        try:
            self.look()
            yield self.look
        finally:
            if watcher is not None:
                watcher.remove(self.fire)

    def look(self) -> None:
        if self._controller.is_set():
            self.fire()

    def fire(self) -> None:
        reason: Any = getattr(self._controller, "reason", None)
        self._stop(Cause(CauseWord.USER, reason if isinstance(reason, str) else None))


class _Watcher:
    """Waits for one foreign event, for all turns that are bound to it: one thread an event, not one a turn.

    Nothing but its ``set()`` can wake a ``threading.Event``, so the thread is left waiting when the last turn has
    gone, and serves the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fires: list[Callable[[], None]] = []
        self._is_waiting = False

    def add(self, event: threading.Event, fire: Callable[[], None]) -> None:
        with self._lock:
            self._fires.append(fire)
            if self._is_waiting:
                return
            self._is_waiting = True
        threading.Thread(target=self._wait, args=(event,), name="controller", daemon=True).start()

    def remove(self, fire: Callable[[], None]) -> None:
        with self._lock:
            self._fires.remove(fire)

    def _wait(self, event: threading.Event) -> None:
        event.wait()
        with self._lock:
            self._is_waiting = False
            fires = list(self._fires)
        for fire in fires:
            fire()


_watchers: WeakKeyDictionary[threading.Event, _Watcher] = WeakKeyDictionary()
_watchers_lock = threading.Lock()


def _watcher_of(event: threading.Event) -> _Watcher:
    with _watchers_lock:
        return _watchers.setdefault(event, _Watcher())
