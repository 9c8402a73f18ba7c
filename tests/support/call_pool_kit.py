"""What the tests of the threads that run calls share: jobs that stand or rest until they are told, and a meter."""

import threading

from core.cancellation import Cause, CauseWord, Level, Scope
from core.engine.call_pool import CallPool
from tests.support.core_kit import wait_set
from tests.support.servers import wait_until

USER = Cause(CauseWord.USER)


class Meter:
    """How many jobs are at work, and the most there ever were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0
        self.most = 0

    def enter(self) -> None:
        """One more is at work."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
        """One less is."""
        with self.lock:
            self.now -= 1


class Held:
    """A job that stands at work until it is let go, or that rests on a scope first."""

    def __init__(self, pool: CallPool) -> None:
        self.pool = pool
        self.scope = Scope.root().open(Level.CALL, "c")
        self.running, self.let_go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.worker: object | None = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        self.worker = self.pool.current()
        self.running.set()
        wait_set(self.let_go)
        self.ended.set()


class Resting(Held):
    """A job that rests until it is woken, and then wants its place back."""

    def __init__(self, pool: CallPool) -> None:
        super().__init__(pool)
        self.resting, self.wake, self.back = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.worker = self.pool.current()
        try:
            with self.pool.resting(self.scope):
                self.resting.set()
                wait_set(self.wake)
            self.back.set()
            wait_set(self.let_go)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.ended.set()


def wait_idle(pool: CallPool) -> None:
    """Until every place is free; bounded."""
    wait_until(lambda: pool.busy == 0, "every place is free")
