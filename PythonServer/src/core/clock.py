"""Time: how it is written, and one thread that runs things later."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

log = logging.getLogger(__name__)

MANY: Final = 1000


def iso(at: float) -> str:
    """Seconds since the epoch as UTC ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Alarm:
    """A thing that runs once at a time, unless it is called off first."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def call_off(self) -> None:
        """Do nothing when the time comes. Harmless afterwards, and if repeated."""
        self.action = None


class AlarmClock:
    """One daemon thread that runs short actions at their time; it sleeps until the next one is due.

    Actions must not block: they shut a socket, set an event, cancel a scope.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Alarm]] = []
        #: So many alarms are a reason to forget those that were called off.
        self._many = MANY
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, action: Callable[[], None]) -> Alarm:
        """Run ``action`` on the clock's thread in ``seconds`` seconds."""
        alarm = Alarm(action)
        with self._changed:
            entry = (time.monotonic() + seconds, next(self._order), alarm)
            heapq.heappush(self._due, entry)
            if len(self._due) > self._many:  # a deadline in a week, called off today, is not kept until then
                self._due = [each for each in self._due if each[2].action is not None]
                heapq.heapify(self._due)
                self._many = max(MANY, 2 * len(self._due))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="alarm-clock", daemon=True)
                thread.start()  # may fail for want of threads; the next alarm then tries again
                self._thread = thread
            elif self._due[0] is entry:
                self._changed.notify()
        return alarm

    def _run(self) -> None:
        while True:
            alarm = self._next()
            action = alarm.action
            if action is None:
                continue
            try:
                action()
            except BaseException:  # also a stop that an action met: the clock is everybody's
                log.exception("an alarm failed")

    def _next(self) -> Alarm:
        with self._changed:
            while True:
                while self._due and self._due[0][2].action is None:
                    heapq.heappop(self._due)
                if not self._due:
                    self._changed.wait()
                    continue
                left = self._due[0][0] - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)


#: The clock of this process.
alarm_clock = AlarmClock()
