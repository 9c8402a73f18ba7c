"""What the tests of the watchdog share: a clock that the test moves, a lock that parks whoever strikes, what came of it."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import pytest

from core.cancellation import Cause, CauseWord
from core.clock import Alarm
from core.session import liveness
from core.session.liveness import Activity
from tests.support.api_client import PATIENCE_S
from tests.support.race_kit import Switch
from tests.support.servers import LocalServer

#: Of each turn, so also of the message with which the five checks end: that must never be silent for so long.
LIMIT_MS = 1500
IDLE = Cause(CauseWord.LIVENESS, f"no progress for {LIMIT_MS} ms")


class HandClock:
    """Stands for the time and for the alarm clock of :mod:`core.session.liveness`; moves only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        #: How many alarms were ever set.
        self.set_count = 0
        self._due: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        monkeypatch.setattr(liveness, "time", self)
        monkeypatch.setattr(liveness, "alarm_clock", self)

    def monotonic(self) -> float:
        """As that of ``time``."""
        return self.now

    def after(self, seconds: float, action: Callable[[], None]) -> Alarm:
        """As that of the alarm clock."""
        self.set_count += 1
        alarm = Alarm(action)
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), alarm))
        return alarm

    @property
    def alarms(self) -> list[float]:
        """In how many seconds each alarm is due, the next one first."""
        return [at - self.now for at, _, alarm in sorted(self._due, key=lambda each: each[:2]) if alarm.action]

    def move(self, seconds: float, late_s: float = 0.0) -> None:
        """Let time pass; each alarm runs at its time, or ``late_s`` seconds after the last moment."""
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            at, _, alarm = heapq.heappop(self._due)
            if alarm.action is None:
                continue
            self.now = max(self.now, at) if not late_s else until + late_s
            alarm.action()
        self.now = max(self.now, until)


class Strikes:
    """Stands for the stop of a turn: notes whether each claim held."""

    def __init__(self) -> None:
        self._claims: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()

    def __call__(self, claim: AbstractContextManager[bool]) -> bool:
        with claim as holds:
            self._claims.put((holds, threading.current_thread().name))
        return holds

    def next(self) -> bool:
        """Whether the next claim holds; waits for it."""
        holds, thread = self._claims.get(timeout=PATIENCE_S)
        assert thread == "liveness", "a stop blocks, so it needs a thread of its own"
        return holds

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has struck since."""
        return self._claims.empty() and not any(each.name == "liveness" for each in threading.enumerate())


class ParkingLock:
    """In place of an activity's lock: parks the first strike ``before`` it has the lock, ``inside`` or ``after`` it."""

    def __init__(self, activity: Activity, where: str) -> None:
        self._inner: Any = activity._lock
        self._where = where
        self._is_used = False
        self.parked = Switch()
        activity._lock = self  # type: ignore[assignment]

    def _park(self, where: str) -> None:
        if where == self._where and not self._is_used and threading.current_thread().name == "liveness":
            self._is_used = True
            self.parked.hold()

    def __enter__(self) -> Self:
        self._park("before")
        self._inner.acquire()
        self._park("inside")
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.release()
        self._park("after")


@contextmanager
def noting_strikes(local: LocalServer) -> Iterator[list[bool]]:
    """What became of each strike: False for a void one."""
    stopping, seen = local.main.engine.stopping, []
    stop_if = stopping.stop_if

    def noting(*asked: Any) -> bool:
        seen.append(stop_if(*asked))
        return seen[-1]

    stopping.stop_if = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        stopping.stop_if = stop_if  # type: ignore[method-assign]
