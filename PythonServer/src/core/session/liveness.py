"""A turn in which nothing happens: how that is noticed, and how a stop for it is kept from hitting one that goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from core.clock import Alarm, alarm_clock
from core.gates import pause_at

#: Seconds by which an alarm may be late. One that is later tells that this process stood still: so did the turn.
LATE_S: Final = 1.0

#: Seconds until the next attempt, if there was no thread for a stop.
RETRY_S: Final = 1.0

#: Stops the turn if the claim holds, and only then. False: it did not hold, so watch on.
StopIfIdle = Callable[[AbstractContextManager[bool]], bool]


class Activity:
    """When a turn made its newest progress. Each piece of progress is a generation of its own."""

    __slots__ = ("_generation", "_idle_from", "_lock", "_pauses", "on_resumed")

    def __init__(self) -> None:
        # Innermost: taken under a plan's lock, and around the lock of the tree of scopes; nothing else is taken in it.
        self._lock = threading.Lock()
        self._generation = 0
        self._idle_from = time.monotonic()
        self._pauses = 0
        #: Called when the clock runs again after a pause.
        self.on_resumed: Callable[[], None] = lambda: None

    def touch(self, ahead_s: float = 0.0) -> None:
        """The turn made progress, and need not make more for ``ahead_s`` seconds: it has announced a wait."""
        with self._lock:
            self._generation += 1
            self._idle_from = max(self._idle_from, time.monotonic() + ahead_s)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the clock stands still, and afterwards it starts anew: put this around a wait for a human's answer,
        ``with turn.activity.paused(): …``. For several threads at once; it runs when the last one has left.
        """
        self._pause(1)
        try:
            yield
        finally:
            if not self._pause(-1):
                self.on_resumed()

    def _pause(self, step: int) -> int:
        with self._lock:
            self._generation += 1
            self._idle_from = max(self._idle_from, time.monotonic())
            self._pauses += step
            return self._pauses

    def look(self) -> tuple[float, int] | None:
        """Since when (``time.monotonic()``) nothing has happened, and the generation; None in a pause."""
        with self._lock:
            return None if self._pauses else (self._idle_from, self._generation)

    @contextlib.contextmanager
    def claim(self, generation: int, latest: float = float("inf")) -> Iterator[bool]:
        """Whether nothing has happened since that generation, and it is not later than ``latest``.

        It stays so inside: progress waits until this is left, so leave it before anything that takes a lock.
        """
        with self._lock:
            yield generation == self._generation and not self._pauses and time.monotonic() <= latest


class Watchdog:
    """Watches one turn: one alarm, set again for the rest of the time and not at each event; no thread of its own."""

    def __init__(self, activity: Activity, limit_s: float, stop_if_idle: StopIfIdle) -> None:
        """``stop_if_idle`` runs on a thread made for it."""
        self._activity = activity
        self._limit_s = limit_s
        self._stop_if_idle = stop_if_idle
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None
        self._due = 0.0
        self._is_off = False

    def start(self) -> None:
        """The turn begins: that is its first progress."""
        self._activity.on_resumed = self._start_anew
        self._activity.touch()
        self._start_anew()

    def call_off(self) -> None:
        """The turn is over. Harmless if repeated."""
        with self._lock:
            self._is_off = True
            if self._alarm is not None:
                self._alarm.call_off()

    def _start_anew(self) -> None:
        self._arm(self._limit_s)

    def _arm(self, seconds: float) -> None:
        with self._lock:
            if self._alarm is not None:
                self._alarm.call_off()
            if not self._is_off:
                self._due = time.monotonic() + seconds
                self._alarm = alarm_clock.after(seconds, self._look)

    def _look(self) -> None:
        """On the clock's thread, which must not be held up."""
        latest = self._due + LATE_S
        if time.monotonic() > latest:
            self._activity.touch()
        found = self._activity.look()
        if found is None:
            return  # the end of the pause sets the alarm
        idle_from, generation = found
        left = idle_from + self._limit_s - time.monotonic()
        if left > 0:
            self._arm(left)
            return
        try:
            # A stop asks the gateway, and so it blocks.
            threading.Thread(target=self._strike, args=(generation, latest), name="liveness", daemon=True).start()
        except RuntimeError:  # the system has none left
            self._arm(RETRY_S)

    def _strike(self, generation: int, latest: float) -> None:
        pause_at("liveness.before_claim")
        if not self._stop_if_idle(self._activity.claim(generation, latest)):
            self._look()
