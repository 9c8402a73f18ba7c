"""The threads that run calls: a bound on how many run, not on how many exist.

``concurrent.futures`` does not fit: its threads are not daemons (a hung one would hold up the exit), and a thread
that only waits, or that was abandoned after a stop, could not give its place to somebody else. Idle threads may for a
while be more than there are places: those that only waited held none.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from core.cancellation import Scope
from core.clock import alarm_clock

log = logging.getLogger(__name__)

#: Seconds after which a thread with nothing to do ends, or up to twice as many.
IDLE_S: Final = 10.0

#: Seconds after which a thread is asked for again when the system had none.
RETRY_S: Final = 0.5


class _Worker:
    __slots__ = ("has_place", "is_abandoned", "job", "wake")

    def __init__(self, job: Callable[[], None]) -> None:
        self.job: Callable[[], None] | None = job
        self.wake = threading.Semaphore(0)
        self.has_place = True
        self.is_abandoned = False


class CallPool:
    """Runs jobs on daemon threads, at most ``places`` at once."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._busy = 0
        self._backlog: deque[Callable[[], None]] = deque()
        # Threads that come back from a wait; served before new work, since they hold half-done work.
        self._returning: deque[tuple[_Worker, Future[None]]] = deque()
        self._idle: list[_Worker] = []
        self._mine = threading.local()
        self.abandoned = 0

    # -- for whoever has work ---------------------------------------------------------------

    def submit(self, jobs: Sequence[Callable[[], None]], first: bool = False) -> None:
        """Run each job once, in order, as places become free. Never blocks. ``first``: before what waits already."""
        with self._lock:
            if first:
                self._backlog.extendleft(reversed(jobs))
            else:
                self._backlog.extend(jobs)
            started = self._assign()
        self._start(started)

    def has_backlog(self) -> bool:
        """Whether somebody waits for a place."""
        return bool(self._backlog or self._returning)

    def current(self) -> object | None:
        """The handle of the calling pool thread; None on any other thread."""
        return getattr(self._mine, "worker", None)

    def abandon(self, worker: object) -> None:
        """A thread did not end in time: its place goes to somebody else, and it ends when it comes back."""
        assert isinstance(worker, _Worker)
        with self._lock:
            if worker.is_abandoned:
                return
            worker.is_abandoned = True
            self.abandoned += 1
            self._give_back(worker)
            started = self._assign()
        self._start(started)

    @contextlib.contextmanager
    def resting(self, scope: Scope) -> Iterator[None]:
        """Inside, the calling pool thread holds no place: it only waits. Afterwards it waits for one again.

        A stop of ``scope`` ends that second wait; the thread then unwinds without a place.
        """
        worker = getattr(self._mine, "worker", None)
        if worker is None:
            yield
            return
        with self._lock:
            self._give_back(worker)
            started = self._assign()
        self._start(started)
        try:
            yield
        except Exception:
            self._return(worker, scope)
            raise
        self._return(worker, scope)

    def _return(self, worker: _Worker, scope: Scope) -> None:
        back: Future[None] = Future()
        entry = (worker, back)
        with self._lock:
            self._returning.append(entry)
            started = self._assign()
        self._start(started)
        try:
            scope.wait_for(back)
        except BaseException:
            with self._lock, contextlib.suppress(ValueError):  # else it has the place, and gives it back at its end
                self._returning.remove(entry)
            raise

    @property
    def busy(self) -> int:
        """Places in use."""
        return self._busy

    # -- places; the caller holds the lock -----------------------------------------------------

    def _give_back(self, worker: _Worker) -> None:
        if worker.has_place:
            worker.has_place = False
            self._busy -= 1

    def _assign(self) -> list[_Worker]:
        """Hand free places out; returns workers that need a new thread."""
        started = []
        while self._busy < self._places and (self._returning or self._backlog):
            self._busy += 1
            if self._returning:
                worker, back = self._returning.popleft()
                worker.has_place = True
                back.set_result(None)
                continue
            job = self._backlog.popleft()
            if self._idle:
                worker = self._idle.pop()
                worker.job, worker.has_place = job, True
                worker.wake.release()
            else:
                started.append(_Worker(job))
        return started

    def _start(self, workers: list[_Worker]) -> None:
        for index, worker in enumerate(workers):
            try:
                threading.Thread(target=self._run, args=(worker,), name="call", daemon=True).start()
            except RuntimeError:
                log.error("no thread for a call: the system has none left; trying again")
                self._put_back(workers[index:])
                return

    def _put_back(self, workers: list[_Worker]) -> None:
        with self._lock:
            for worker in reversed(workers):
                assert worker.job is not None
                self._backlog.appendleft(worker.job)
                self._give_back(worker)
        # A thread that ends its job takes the next one anyway; this is for the case that none is at work.
        with contextlib.suppress(RuntimeError):  # no thread for the clock either
            alarm_clock.after(RETRY_S, partial(self.submit, ()))

    # -- a pool thread ----------------------------------------------------------------------------

    def _run(self, worker: _Worker) -> None:
        self._mine.worker = worker
        while worker.job is not None:
            try:
                worker.job()
            except BaseException:
                log.exception("a job let an exception out")
            worker.job = self._next(worker)

    def _next(self, worker: _Worker) -> Callable[[], None] | None:
        with self._lock:
            if worker.is_abandoned:
                self.abandoned -= 1
                self._give_back(worker)
                return None
            if worker.has_place and self._backlog and not self._returning:
                return self._backlog.popleft()
            self._give_back(worker)
            worker.job = None
            self._idle.append(worker)
            started = self._assign()
        self._start(started)
        # Spread out: a crowd that was stopped together would else also end together.
        worker.wake.acquire(timeout=IDLE_S * random.uniform(1, 2))  # noqa: S311
        with self._lock:
            if worker.job is None:  # nothing came in time
                self._idle.remove(worker)
            return worker.job
