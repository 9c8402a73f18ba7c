"""Threads that give up their place: to rest, or because they were abandoned."""

import threading
from concurrent.futures import Future
from functools import partial

from core.cancellation import Cancelled, Scope
from core.engine.call_pool import CallPool
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.call_pool_kit import USER, Held, Meter, Resting, wait_idle
from tests.support.core_kit import wait_set
from tests.support.servers import wait_until

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
    wait_idle(pool)


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
    wait_idle(pool)


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
    wait_idle(pool)
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
        wait_idle(pool)
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
    wait_idle(pool)


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
    wait_idle(pool)


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
    wait_idle(pool)


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
    wait_idle(pool)
