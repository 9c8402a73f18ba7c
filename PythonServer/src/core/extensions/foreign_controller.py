"""Controllers of the embedder's own making: anything with ``is_set()``.

It is asked between the steps of a turn; one that is or has a ``threading.Event`` (as ``event``) also stops what runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from core.cancellation import Cause, CauseWord
from core.errors import ServerError
from core.interrupt import BoundTurns, InterruptController, StopTurn, stop_all

log = logging.getLogger(__name__)

#: Seconds after which the thread that waits for an event of somebody else's sees whether it is still needed.
IDLE_S: Final = 10.0


class Controller(Protocol):
    """What a controller has at least."""

    def is_set(self) -> bool:
        """Whether a stop was requested. Must be quick."""


class ControllerFailed(ServerError):
    """A controller raised when it was asked: a turn that may not know of its stop does not go on."""

    title = "The controller could not be asked whether to stop"


@contextlib.contextmanager
def bound(controller: Controller | None, stop: StopTurn) -> Iterator[Callable[[], None]]:
    """Inside, ``controller`` stops the turn by ``stop``. Yields what to call first, and between two steps; it raises
    ``ControllerFailed`` if the controller does.
    """
    if controller is None:
        yield lambda: None
    elif isinstance(controller, InterruptController):
        with controller.bound(stop) as look:
            yield look
    else:
        with _foreign_of(controller) as foreign, foreign.bound(stop) as look:
            yield look


class _Foreign:
    """One such controller, for all turns that are bound to it now.

    Whatever runs or begins while it is set is stopped. When the last of those is over, its ``clear()`` is called, if it
    has one; a bare ``threading.Event`` is left as it is: others may wait for it.
    """

    def __init__(self, controller: Controller) -> None:
        self.users = 0
        self._controller = controller
        self._lock = threading.Lock()
        self._turns = BoundTurns()
        self._is_watched = False

    @contextlib.contextmanager
    def bound(self, stop: StopTurn) -> Iterator[Callable[[], None]]:
        turn = object()
        with self._lock:
            self._turns.running[turn] = stop
        try:
            self._watch()
            yield lambda: self._look(turn, stop)
        finally:
            with self._lock:
                is_last = self._turns.leave(turn)
            if is_last:
                self._clear()

    def _look(self, turn: object, stop: StopTurn) -> None:
        try:
            is_set = self._controller.is_set()
        except Exception as error:
            log.exception("a controller could not be asked whether to stop")
            raise ControllerFailed from error
        if is_set:
            self._fire()
        cause = self._turns.unwinding.get(turn)
        if cause is not None:
            stop(cause)

    def _fire(self) -> None:
        reason = self._attribute("reason")
        cause = Cause(CauseWord.USER, reason if isinstance(reason, str) else None)
        with self._lock:
            stops = self._turns.meet(cause)
        stop_all(stops, cause)

    def _clear(self) -> None:
        clear = None if isinstance(self._controller, threading.Event) else self._attribute("clear")
        if callable(clear):
            try:
                clear()
            except Exception:
                log.exception("a controller could not be cleared")

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self._controller, name, None)
        except Exception:
            log.exception("a controller has no usable %r", name)
            return None

    # -- its event, if it has one: one thread waits for it, for all turns ---------------------------

    def _watch(self) -> None:
        event = self._controller if isinstance(self._controller, threading.Event) else self._attribute("event")
        if not isinstance(event, threading.Event):
            return
        with self._lock:
            if self._is_watched:
                return
            threading.Thread(target=self._wait, args=(event,), name="controller", daemon=True).start()
            self._is_watched = True

    def _wait(self, event: threading.Event) -> None:
        """Nothing but its ``set()`` wakes an event: the thread outlives the last turn by ``IDLE_S`` at most."""
        while not event.wait(IDLE_S):
            with self._lock:
                if not self._turns.running:
                    self._is_watched = False
                    break
        else:
            with self._lock:
                self._is_watched = False
            self._fire()
        _forget_unused(self._controller)

    @property
    def is_used(self) -> bool:
        """Whether a turn, or the thread that waits for its event, needs it."""
        return self.users > 0 or self._is_watched


#: By ``id()`` of the controller, which lives as long as its entry: not every object can be a key.
_foreign: Final[dict[int, _Foreign]] = {}
_foreign_lock = threading.Lock()


@contextlib.contextmanager
def _foreign_of(controller: Controller) -> Iterator[_Foreign]:
    with _foreign_lock:
        foreign = _foreign.setdefault(id(controller), _Foreign(controller))
        foreign.users += 1
    try:
        yield foreign
    finally:
        with _foreign_lock:
            foreign.users -= 1
        _forget_unused(controller)


def _forget_unused(controller: Controller) -> None:
    with _foreign_lock:
        foreign = _foreign.get(id(controller))
        if foreign is not None and not foreign.is_used:
            del _foreign[id(controller)]
