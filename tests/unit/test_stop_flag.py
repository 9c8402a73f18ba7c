"""The documented flag: a mirror of the scopes, never the truth."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.base import InputOutput
from core.base.InputOutput import (
    close_flag,
    global_scope,
    is_stopped,
    open_flag,
    plan_is_stopped,
    set_stopped,
)
from core.cancellation import Cause, CauseWord, Level, Scope
from tests.support.api_client import in_threads
from tests.support.core_kit import Started

USER = Cause(CauseWord.USER)


@pytest.fixture(autouse=True)
def _no_live_plans() -> Iterator[None]:
    InputOutput._live.clear()
    plan_is_stopped[0] = False
    yield
    InputOutput._live.clear()
    plan_is_stopped[0] = False


def _turn(name: str = "t") -> Scope:
    return Scope.root().open(Level.RUN, "r").open(Level.TURN, name)


def test_the_flag_is_the_documented_list_of_one() -> None:
    assert plan_is_stopped == [False]
    assert InputOutput.plan_is_stopped is plan_is_stopped


def test_without_a_plan_nothing_is_stopped_and_setting_it_does_nothing() -> None:
    set_stopped(True)
    assert not is_stopped()
    assert plan_is_stopped == [False]
    assert global_scope() is None


def test_setting_the_flag_stops_the_global_plan_as_the_user_and_the_mirror_shows_it() -> None:
    turn = _turn()
    open_flag(turn)
    set_stopped(True)
    assert turn.cause == USER
    assert is_stopped()
    assert plan_is_stopped == [True]


def test_clearing_the_flag_clears_the_mirror_and_never_un_stops_a_scope() -> None:
    turn = _turn()
    open_flag(turn)
    set_stopped(True)
    set_stopped(False)
    assert plan_is_stopped == [False]
    assert turn.is_stopped
    assert is_stopped()


def test_the_earlier_cause_of_a_stop_stands() -> None:
    turn = _turn()
    open_flag(turn)
    turn.cancel(Cause(CauseWord.DEADLINE))
    set_stopped(True, turn)
    assert turn.cause == Cause(CauseWord.DEADLINE)
    assert plan_is_stopped == [True]


def test_a_turn_starts_with_a_clear_flag_and_a_stop_that_came_before_it_still_counts() -> None:
    first, second, early = _turn("1"), _turn("2"), _turn("3")
    open_flag(first)
    set_stopped(True, first)
    close_flag(first)
    assert plan_is_stopped == [False]
    open_flag(second)
    assert not is_stopped()
    assert plan_is_stopped == [False]
    early.cancel(USER)
    open_flag(early)
    assert is_stopped()
    assert plan_is_stopped == [True]


def test_a_stop_of_one_plan_is_not_a_stop_of_another() -> None:
    one, other = _turn("1"), _turn("2")
    open_flag(one)
    open_flag(other)
    goal = one.open(Level.GOAL, "a")
    with goal.entered():
        set_stopped(True)
        assert is_stopped()
    with other.open(Level.GOAL, "a").entered():
        assert not is_stopped()
    assert not other.is_stopped
    assert not is_stopped(), "the global plan is the newest"
    assert plan_is_stopped == [True], "some live plan is stopped"
    close_flag(one)
    assert plan_is_stopped == [False]


def test_a_scope_that_is_handed_over_goes_before_the_current_one() -> None:
    one, other = _turn("1"), _turn("2")
    open_flag(one)
    open_flag(other)
    with other.entered():
        set_stopped(True, one.open(Level.GOAL, "a"))
    assert (one.is_stopped, other.is_stopped) == (True, False)


def test_a_stop_that_comes_after_the_turn_has_ended_leaves_no_trace() -> None:
    turn = _turn()
    open_flag(turn)
    turn.finish()
    close_flag(turn)
    set_stopped(True, turn)
    assert plan_is_stopped == [False]
    assert not turn.is_stopped


def test_the_global_plan_is_the_newest_that_lives() -> None:
    one, other = _turn("1"), _turn("2")
    open_flag(one)
    open_flag(other)
    assert global_scope() is other
    close_flag(other)
    assert global_scope() is one
    close_flag(other)


def test_a_pool_thread_without_a_scope_means_the_global_plan() -> None:
    one, other = _turn("1"), _turn("2")
    open_flag(one)
    open_flag(other)
    with one.entered():
        Started(lambda: set_stopped(True)).result()
    assert (one.is_stopped, other.is_stopped) == (False, True)


def test_plans_that_come_stop_and_go_on_many_threads_leave_a_clear_flag() -> None:
    def work(number: int) -> None:
        for step in range(200):
            turn = _turn(f"{number}.{step}")
            open_flag(turn)
            with turn.entered():
                if step % 2:
                    set_stopped(True)
                assert is_stopped() == bool(step % 2)
                set_stopped(False)
            close_flag(turn)

    in_threads(8, work)
    assert plan_is_stopped == [False]
    assert global_scope() is None
