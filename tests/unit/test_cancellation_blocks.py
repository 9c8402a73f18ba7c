"""The stop module's aborts, the blocks that a stop ends, and what waits in them."""

import gc
import threading
import time
import weakref
from concurrent.futures import Future

import pytest

from core.cancellation import Cancelled, Level, Scope, Verdict
from tests.support.api_client import PATIENCE_S
from tests.support.causes import OTHER, USER
from tests.support.core_kit import Started, wait_set

# -- aborts -----------------------------------------------------------------------------------


def test_aborts_run_once_each_on_the_thread_that_cancels_with_the_lock_released(turn: Scope) -> None:
    ran: list[tuple[str, int]] = []
    goal = turn.open(Level.GOAL, "a")

    def note(name: str) -> None:
        goal.open(Level.CALL, "born in an abort").finish()  # would hang if the tree were locked
        ran.append((name, threading.get_ident()))

    turn.add_abort(lambda: note("turn"))
    goal.add_abort(lambda: note("goal"))
    turn.cancel(USER)
    turn.cancel(USER)
    goal.cancel(USER)
    here = threading.get_ident()
    assert ran == [("turn", here), ("goal", here)]


@pytest.mark.parametrize("error", [ValueError("broken"), Cancelled], ids=["an error", "a stop of something else"])
def test_an_abort_that_fails_does_not_keep_the_others_from_running(
    turn: Scope, error: object, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = Scope.root()
    elsewhere.cancel(OTHER)
    ran: list[int] = []

    def fail() -> None:
        if isinstance(error, Exception):
            raise error
        elsewhere.checkpoint()

    for abort in (fail, lambda: ran.append(1), fail, lambda: ran.append(2)):
        turn.add_abort(abort)
    assert turn.cancel(USER) is Verdict.FIRST
    assert ran == [1, 2]
    assert "an abort failed" in caplog.text


def test_a_forgotten_abort_does_not_run_and_forgetting_may_be_repeated(turn: Scope) -> None:
    registration = turn.add_abort(lambda: pytest.fail("it was forgotten"))
    turn.forget(registration)
    turn.forget(registration)
    turn.cancel(USER)


def test_an_abort_is_forgotten_when_its_block_is_left(turn: Scope) -> None:
    with turn.on_cancel(lambda: pytest.fail("the block was left")):
        pass
    turn.cancel(USER)


# -- what comes out of a block that a stop has met ----------------------------------------------


def test_an_ordinary_error_in_a_stopped_block_becomes_the_stop_with_the_error_as_its_context(turn: Scope) -> None:
    reset = ConnectionResetError("the socket was shut")
    with pytest.raises(Cancelled) as caught, turn.on_cancel(lambda: None):
        turn.cancel(USER)
        raise reset
    assert caught.value.cause is USER
    assert caught.value.__cause__ is reset


def test_a_normal_end_of_a_stopped_block_becomes_the_stop(turn: Scope) -> None:
    with pytest.raises(Cancelled) as caught, turn.on_cancel(lambda: None):
        turn.cancel(USER)
    assert caught.value.scope is turn


def test_a_base_exception_passes_through_a_stopped_block(turn: Scope) -> None:
    with pytest.raises(KeyboardInterrupt), turn.on_cancel(lambda: None):
        turn.cancel(USER)
        raise KeyboardInterrupt


def test_a_stop_of_an_inner_scope_passes_through_the_block_of_an_outer_one_as_it_is(turn: Scope) -> None:
    inner = turn.open(Level.GOAL, "a")
    with pytest.raises(Cancelled) as caught, turn.on_cancel(lambda: None), inner.on_cancel(lambda: None):
        turn.cancel(USER)
    assert caught.value.scope is inner


def test_without_a_stop_results_and_errors_of_a_block_are_its_own(turn: Scope) -> None:
    with pytest.raises(ValueError, match="mine"), turn.on_cancel(lambda: None):
        raise ValueError("mine")


# -- waiting ----------------------------------------------------------------------------------


def _cancel_when_waiting(scope: Scope) -> Started:
    """Cancel once an abort is registered, which is when the other thread is about to block."""

    def cancel() -> Verdict:
        deadline = time.monotonic() + PATIENCE_S
        while not scope._aborts and time.monotonic() < deadline:
            time.sleep(0.0005)  # nothing tells that somebody registered
        return scope.cancel(USER)

    return Started(cancel)


def test_a_stop_ends_a_sleep_at_once(turn: Scope) -> None:
    stopping = _cancel_when_waiting(turn)
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        turn.sleep(3600)
    assert time.monotonic() - begun < 10
    assert stopping.result() is Verdict.FIRST


def test_a_sleep_that_is_not_stopped_lasts_its_time(turn: Scope) -> None:
    begun = time.monotonic()
    turn.sleep(0.02)
    assert time.monotonic() - begun >= 0.02


def test_a_stop_ends_the_wait_for_work_and_leaves_the_work_alone(turn: Scope) -> None:
    work: Future[int] = Future()
    stopping = _cancel_when_waiting(turn)
    with pytest.raises(Cancelled):
        turn.wait_for(work)
    stopping.result()
    assert not work.cancelled()
    assert work.set_running_or_notify_cancel()


def test_the_wait_for_work_gives_its_result_its_error_or_a_timeout(turn: Scope) -> None:
    done: Future[int] = Future()
    done.set_result(3)
    assert turn.wait_for(done) == 3
    failed: Future[int] = Future()
    failed.set_exception(LookupError("no"))
    with pytest.raises(LookupError):
        turn.wait_for(failed)
    with pytest.raises(TimeoutError):
        turn.wait_for(Future(), timeout=0.01)
    assert not turn._aborts


def test_the_wait_for_work_is_woken_by_work_that_ends_on_another_thread(turn: Scope) -> None:
    work: Future[int] = Future()
    Started(lambda: work.set_result(4))
    assert turn.wait_for(work, PATIENCE_S) == 4


def test_an_abort_whose_block_was_left_is_not_kept_alive(turn: Scope) -> None:
    watched = _Abort()
    gone = weakref.ref(watched)
    with turn.on_cancel(watched.run):
        pass
    del watched
    gc.collect()
    assert gone() is None


class _Abort:
    def run(self) -> None:
        """What a stop would call."""


def test_an_abort_may_be_running_while_its_block_is_left(turn: Scope) -> None:
    in_abort, let_go = threading.Event(), threading.Event()

    def abort() -> None:
        in_abort.set()
        wait_set(let_go)

    with pytest.raises(Cancelled), turn.on_cancel(abort):
        stopping = Started(lambda: turn.cancel(USER))
        wait_set(in_abort)
    let_go.set()
    assert stopping.result() is Verdict.FIRST
