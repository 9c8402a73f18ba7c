"""The threads that run calls: a bound on how many run, whoever waits, hangs or fails."""

import random
import threading
from concurrent.futures import Future
from functools import partial

import pytest

from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope
from core.clock import alarm_clock
from core.engine import call_pool
from core.engine.call_pool import CallPool
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, wait_set
from tests.support.servers import wait_until

USER = Cause(CauseWord.USER)


class Meter:
    """How many jobs are at work, and the most there ever were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0
        self.most = 0

    def enter(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self) -> None:
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


def _idle(pool: CallPool) -> None:
    wait_until(lambda: pool.busy == 0, "every place is free")


def test_at_most_so_many_jobs_run_at_once_and_each_runs_once() -> None:
    pool, meter, ran = CallPool(3), Meter(), []
    done = threading.Event()

    def job(number: int) -> None:
        meter.enter()
        with meter.lock:
            ran.append(number)
        meter.leave()
        if len(ran) == 500:
            done.set()

    pool.submit([lambda n=n: job(n) for n in range(500)])  # type: ignore[misc]
    wait_set(done)
    assert sorted(ran) == list(range(500))
    assert meter.most <= 3
    _idle(pool)


def test_jobs_start_in_the_order_in_which_they_came() -> None:
    pool, ran = CallPool(1), []
    first, done = Held(pool), threading.Event()
    pool.submit([first])
    wait_set(first.running)
    for n in range(50):
        pool.submit([lambda n=n: ran.append(n)])  # type: ignore[misc]
    pool.submit([done.set])
    assert pool.has_backlog()
    first.let_go.set()
    wait_set(done)
    assert ran == list(range(50))


def test_a_job_that_lets_an_exception_out_costs_no_place(caplog: pytest.LogCaptureFixture) -> None:
    pool, done = CallPool(1), threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    pool.submit([fail, fail, done.set])
    wait_set(done)
    _idle(pool)
    assert caplog.text.count("a job let an exception out") == 2


def test_a_thread_knows_its_handle_on_the_pool_only() -> None:
    pool, handles = CallPool(1), Future[object]()
    pool.submit([lambda: handles.set_result(pool.current())])
    assert handles.result(PATIENCE_S) is not None
    assert pool.current() is None


# -- resting ---------------------------------------------------------------------------------------


def test_a_thread_that_rests_gives_its_place_to_somebody_else_and_waits_to_get_one_back() -> None:
    pool = CallPool(1)
    resting, other = Resting(pool), Held(pool)
    pool.submit([resting])
    wait_set(resting.resting)
    pool.submit([other])
    wait_set(other.running)
    resting.wake.set()
    wait_until(pool.has_backlog, "the resting thread waits for a place")
    assert not resting.back.is_set()
    assert pool.busy == 1
    other.let_go.set()
    wait_set(resting.back)
    assert pool.busy == 1
    resting.let_go.set()
    wait_set(resting.ended)
    _idle(pool)


def test_who_comes_back_from_a_rest_goes_before_new_work() -> None:
    pool, order = CallPool(1), []
    resting, other = Resting(pool), Held(pool)
    pool.submit([resting])
    wait_set(resting.resting)
    new = threading.Event()
    pool.submit([other, lambda: order.append(resting.back.is_set()), new.set])
    wait_set(other.running)
    resting.wake.set()
    wait_until(lambda: len(pool._returning) == 1, "it waits")
    resting.let_go.set()
    other.let_go.set()
    wait_set(new)
    assert order == [True]
    _idle(pool)


def test_a_stop_ends_the_wait_for_a_place_and_leaks_none() -> None:
    pool = CallPool(1)
    resting, other = Resting(pool), Held(pool)
    pool.submit([resting])
    wait_set(resting.resting)
    pool.submit([other])
    wait_set(other.running)
    resting.wake.set()
    wait_until(pool.has_backlog, "the resting thread waits for a place")
    resting.scope.cancel(USER)
    wait_set(resting.ended)
    assert isinstance(resting.error, Cancelled)
    assert not pool.has_backlog()
    assert pool.busy == 1
    other.let_go.set()
    _idle(pool)
    assert pool._places - pool.busy == 1


def _stop_or_let_go(resting: Resting, other: Held, number: int) -> None:
    if number:
        resting.scope.cancel(USER)
    else:
        other.let_go.set()


def test_a_stop_that_races_with_getting_the_place_back_leaks_none() -> None:
    pool = CallPool(1)
    for _ in range(200):
        resting, other = Resting(pool), Held(pool)
        pool.submit([resting])
        wait_set(resting.resting)
        pool.submit([other])
        wait_set(other.running)
        resting.let_go.set()
        resting.wake.set()
        in_threads(2, partial(_stop_or_let_go, resting, other))
        wait_set(resting.ended)
        _idle(pool)
        assert not pool._returning


def test_an_error_in_a_rest_does_not_let_the_thread_go_on_without_a_place() -> None:
    pool, meter = CallPool(1), Meter()
    scope = Scope.root()
    resting, caught, let_go = threading.Event(), threading.Event(), threading.Event()
    error_now = threading.Event()

    def job() -> None:
        try:
            with pool.resting(scope):
                resting.set()
                wait_set(error_now)
                raise LookupError("what it waited for failed")
        except LookupError:
            meter.enter()
            caught.set()
            meter.leave()

    other = Held(pool)
    pool.submit([job])
    wait_set(resting)
    pool.submit([other])
    wait_set(other.running)
    error_now.set()
    wait_until(pool.has_backlog, "it waits for a place before the error goes on")
    assert not caught.is_set()
    other.let_go.set()
    wait_set(caught)
    let_go.set()
    _idle(pool)


def test_a_stop_in_a_rest_goes_on_at_once_without_a_place() -> None:
    pool = CallPool(1)
    scope, resting, ended = Scope.root(), threading.Event(), threading.Event()

    def job() -> None:
        try:
            with pool.resting(scope), scope.on_cancel(lambda: None):
                resting.set()
                scope.sleep(3600)
        finally:
            ended.set()

    other = Held(pool)
    pool.submit([job])
    wait_set(resting)
    pool.submit([other])
    wait_set(other.running)
    scope.cancel(USER)
    wait_set(ended)
    assert pool.busy == 1
    other.let_go.set()
    _idle(pool)


def test_resting_on_a_thread_that_is_not_the_pools_changes_nothing() -> None:
    pool = CallPool(1)
    with pool.resting(Scope.root()):
        assert pool.busy == 0
    assert pool.busy == 0


# -- abandonment ---------------------------------------------------------------------------------------


def test_the_place_of_an_abandoned_thread_is_given_back_once_and_the_thread_ends_when_it_comes_back() -> None:
    pool = CallPool(1)
    deaf, next_one = Held(pool), Held(pool)
    thread: list[threading.Thread] = []

    def job() -> None:
        thread.append(threading.current_thread())
        deaf()

    pool.submit([job])
    pool.submit([next_one])
    wait_set(deaf.running)
    assert deaf.worker is not None
    for _ in range(3):
        pool.abandon(deaf.worker)
    wait_set(next_one.running)
    assert (pool.busy, pool.abandoned) == (1, 1)
    deaf.let_go.set()
    wait_until(lambda: not thread[0].is_alive(), "the abandoned thread ends")
    assert (pool.busy, pool.abandoned) == (1, 0)
    next_one.let_go.set()
    _idle(pool)


def test_an_abandoned_thread_does_not_take_new_work_when_it_comes_back() -> None:
    pool = CallPool(1)
    deaf, blocker = Held(pool), Held(pool)
    pool.submit([deaf])
    wait_set(deaf.running)
    assert deaf.worker is not None
    pool.abandon(deaf.worker)
    pool.submit([blocker])
    wait_set(blocker.running)
    worker: Future[object] = Future()
    pool.submit([lambda: worker.set_result(pool.current())])
    deaf.let_go.set()
    wait_until(lambda: pool.abandoned == 0, "it came back")
    assert not worker.done()
    blocker.let_go.set()
    assert worker.result(PATIENCE_S) is not deaf.worker


def test_a_thread_that_is_abandoned_while_it_rests_gives_no_place_back_twice() -> None:
    pool = CallPool(2)
    resting, other = Resting(pool), Held(pool)
    pool.submit([resting])
    wait_set(resting.resting)
    pool.submit([other])
    wait_set(other.running)
    assert resting.worker is not None
    pool.abandon(resting.worker)
    assert pool.busy == 1
    resting.let_go.set()
    resting.wake.set()
    wait_set(resting.ended)
    wait_until(lambda: pool.abandoned == 0, "it came back")
    assert pool.busy == 1
    other.let_go.set()
    _idle(pool)


# -- threads ---------------------------------------------------------------------------------------------


def _threads() -> int:
    return sum(thread.name == "call" for thread in threading.enumerate())


def test_a_thread_with_nothing_to_do_is_used_again_and_ends_after_its_idle_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = _threads()
    pool = CallPool(4)
    handles: list[object] = []
    for _ in range(20):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            handles.append(pool.current())
            done.set()

        pool.submit([job])
        wait_set(done)
        wait_until(lambda: len(pool._idle) == 1, "the thread is idle")
    assert len(set(map(id, handles))) == 1
    monkeypatch.setattr(call_pool, "IDLE_S", 0.01)
    short = CallPool(4)
    short.submit([lambda: None] * 4)
    wait_until(lambda: not short._idle and short.busy == 0, "idle threads end")
    assert _threads() <= before + 1 + 4


def test_work_that_comes_at_the_moment_at_which_an_idle_thread_ends_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_pool, "IDLE_S", 0.001)
    pool = CallPool(2)
    dice = random.Random(1)
    for _ in range(300):
        done = threading.Event()
        pool.submit([done.set])
        wait_set(done)
        threading.Event().wait(dice.random() / 500)  # around the idle time, so that both happen
    _idle(pool)
    wait_until(lambda: not pool._idle, "every thread ends")


def test_a_job_is_not_lost_when_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = CallPool(2)
    first, done = Held(pool), threading.Event()
    pool.submit([first])
    wait_set(first.running)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        pool.submit([done.set])
    assert pool.busy == 1
    first.let_go.set()
    wait_set(done)
    _idle(pool)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_jobs_rest_stop_fail_and_are_abandoned_every_place_comes_back(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    places, count = 5, 1_500
    pool, meter, ended = CallPool(places), Meter(), threading.Semaphore(0)
    root = Scope.root()

    def job(number: int) -> None:
        dice = random.Random(seed * 100_000 + number)
        scope = root.open(Level.CALL, str(number))
        try:
            meter.enter()
            for _ in range(dice.randrange(3)):
                meter.leave()
                try:
                    with pool.resting(scope):
                        if dice.random() < 0.2:
                            Started(lambda: scope.cancel(USER))
                        scope.sleep(dice.random() / 500)
                finally:
                    meter.enter()
            if dice.random() < 0.1:
                worker = pool.current()
                assert worker is not None
                Started(lambda: pool.abandon(worker)).result()
            if dice.random() < 0.1:
                raise ValueError("a job failed")
        finally:
            meter.leave()
            scope.finish()
            ended.release()

    pool.submit([lambda n=n: job(n) for n in range(count)])  # type: ignore[misc]
    for _ in range(count):
        assert ended.acquire(timeout=PATIENCE_S)
    _idle(pool)
    wait_until(lambda: pool.abandoned == 0, "abandoned threads came back")
    assert not pool.has_backlog()
    assert not root._children


def test_a_job_for_which_there_was_no_thread_runs_later_though_no_other_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_pool, "RETRY_S", 0.01)
    alarm_clock.after(0, lambda: None)  # so that the clock has its thread
    pool, done = CallPool(2), threading.Event()
    real = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "call":
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        pool.submit([done.set])
        assert pool.busy == 0
    wait_set(done)
    _idle(pool)
