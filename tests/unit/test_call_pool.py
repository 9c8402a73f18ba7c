"""The threads that run calls: a bound on how many run, and threads that come and go."""

import random
import threading
from concurrent.futures import Future

import pytest

from core.cancellation import Level, Scope
from core.clock import alarm_clock
from core.engine import call_pool
from core.engine.call_pool import CallPool
from tests.support.api_client import PATIENCE_S
from tests.support.call_pool_kit import USER, Held, Meter, wait_idle
from tests.support.core_kit import Started, wait_set
from tests.support.servers import wait_until


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
    wait_idle(pool)


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
    wait_idle(pool)
    assert caplog.text.count("a job let an exception out") == 2


def test_a_thread_knows_its_handle_on_the_pool_only() -> None:
    pool, handles = CallPool(1), Future[object]()
    pool.submit([lambda: handles.set_result(pool.current())])
    assert handles.result(PATIENCE_S) is not None
    assert pool.current() is None


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
    wait_idle(pool)
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
    wait_idle(pool)


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
    wait_idle(pool)
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
    wait_idle(pool)
