"""The stop module: who wins, how far a stop reaches, the sentinel, the current scope, and that nothing leaks."""

import contextvars
import itertools
import random
import threading
from functools import partial

import pytest

from core.cancellation import Cancelled, Cause, GoalCancelledException, Level, Scope, Verdict, current_scope
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.causes import OTHER, USER
from tests.support.core_kit import Started

# -- who wins ----------------------------------------------------------------------------


def test_the_first_cancel_is_told_so_the_second_joins_and_the_first_cause_stands(turn: Scope) -> None:
    assert turn.cancel(USER) is Verdict.FIRST
    assert turn.cancel(OTHER) is Verdict.JOINED
    assert turn.cause is USER
    assert turn.finish() is USER


def test_a_cancel_after_the_finish_changes_nothing(turn: Scope) -> None:
    assert turn.finish() is None
    assert turn.cancel(USER) is Verdict.OVER
    assert not turn.is_stopped
    turn.checkpoint()


def test_a_scope_below_one_that_is_stopped_joins(turn: Scope) -> None:
    goal = turn.open(Level.GOAL, "a")
    turn.cancel(USER)
    assert goal.cancel(OTHER) is Verdict.JOINED
    assert goal.cause is USER


def test_of_a_cancel_and_a_finish_at_once_exactly_one_wins() -> None:
    root = Scope.root()
    scopes = [root.open(Level.TURN, str(number)) for number in range(2_000)]
    verdicts: list[Verdict] = []
    causes: list[Cause | None] = []
    spots = threading.Barrier(2)

    def cancel() -> None:
        for scope in scopes:
            spots.wait(PATIENCE_S)
            verdicts.append(scope.cancel(USER))

    def finish() -> None:
        for scope in scopes:
            spots.wait(PATIENCE_S)
            causes.append(scope.finish())

    for each in [Started(cancel), Started(finish)]:
        each.result()
    outcomes = set(zip(verdicts, causes, strict=True))
    assert outcomes <= {(Verdict.FIRST, USER), (Verdict.OVER, None)}
    assert [scope.is_stopped for scope in scopes] == [verdict is Verdict.FIRST for verdict in verdicts]


def _cancel(scope: Scope, _: int = 0) -> Verdict:
    return scope.cancel(USER)


def test_of_many_cancels_at_once_one_is_first_and_all_others_join() -> None:
    for _ in range(50):
        scope = Scope.root().open(Level.TURN, "t")
        ran: list[int] = []
        scope.add_abort(lambda ran=ran: ran.append(1))  # type: ignore[misc]
        verdicts = in_threads(8, partial(_cancel, scope))
        assert sorted(verdicts) == [Verdict.FIRST] + [Verdict.JOINED] * 7
        assert ran == [1]


# -- a stop runs down ----------------------------------------------------------------------


def test_a_stop_reaches_everything_below_and_nothing_above_or_beside(turn: Scope) -> None:
    goals = [turn.open(Level.GOAL, name) for name in "ab"]
    calls = [goal.open(Level.CALL, "c") for goal in goals]
    goals[0].cancel(USER)
    assert [goals[0].cause, calls[0].cause] == [USER, USER]
    assert not any(scope.is_stopped for scope in (goals[1], calls[1], turn, turn.parent) if scope)
    assert turn.parent is not None
    turn.parent.cancel(OTHER)
    assert [calls[0].cause, calls[1].cause] == [USER, OTHER]


def test_a_scope_opened_under_a_stopped_one_is_born_stopped(turn: Scope) -> None:
    turn.cancel(USER)
    call = turn.open(Level.GOAL, "late").open(Level.CALL, "c")
    assert call.cause is USER
    with pytest.raises(Cancelled) as caught:
        call.checkpoint()
    assert caught.value.scope is call
    assert caught.value.cause is USER
    with pytest.raises(Cancelled), call.on_cancel(lambda: pytest.fail("it was never registered")):
        pytest.fail("the block was entered")
    with pytest.raises(Cancelled):
        call.add_abort(lambda: None)


def test_a_child_is_never_left_running_by_a_stop_that_races_with_its_birth() -> None:
    for _ in range(300):
        turn = Scope.root().open(Level.TURN, "t")
        stopping = Started(partial(_cancel, turn))
        children = [turn.open(Level.GOAL, str(number)) for number in range(20)]
        stopping.result()
        assert all(child.is_stopped for child in children)


def test_a_stopped_scope_stays_stopped_when_it_and_its_parent_have_finished(turn: Scope) -> None:
    goal = turn.open(Level.GOAL, "a")
    goal.cancel(USER)
    goal.finish()
    turn.finish()
    assert goal.is_stopped
    with pytest.raises(Cancelled):
        goal.checkpoint()


def test_a_finished_scope_is_out_of_reach_of_a_wider_stop(turn: Scope) -> None:
    goal = turn.open(Level.GOAL, "a")
    goal.finish()
    turn.cancel(USER)
    assert not goal.is_stopped


def test_enclosing_finds_the_nearest_scope_of_a_level(turn: Scope) -> None:
    call = turn.open(Level.GOAL, "a").open(Level.CALL, "c")
    assert call.enclosing(Level.TURN) is turn
    assert call.enclosing(Level.CALL) is call
    assert turn.enclosing(Level.CALL) is None


# -- the sentinel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Cancelled, GoalCancelledException])
def test_outsiders_cannot_build_a_stop(turn: Scope, kind: type[Cancelled]) -> None:
    with pytest.raises(TypeError):
        kind(turn, USER)
    with pytest.raises(TypeError):
        kind(turn, USER, _key=object())


def test_a_broad_except_does_not_swallow_a_stop(turn: Scope) -> None:
    turn.cancel(USER)
    with pytest.raises(Cancelled):
        try:
            turn.checkpoint()
        except Exception:
            pytest.fail("swallowed")


def test_a_499_carries_the_peers_cause_unless_we_were_stopped_ourselves(turn: Scope) -> None:
    goal = turn.open(Level.GOAL, "a")
    assert goal.cancelled_by_peer(OTHER).cause is OTHER
    assert not goal.is_stopped
    turn.cancel(USER)
    assert goal.cancelled_by_peer(OTHER).cause is USER
    assert goal.cancelled_by_peer(OTHER).scope is goal


# -- the current scope, the dump, leaks -------------------------------------------------------------


def test_the_current_scope_is_that_of_the_innermost_block_and_ends_with_it(turn: Scope) -> None:
    goal = turn.open(Level.GOAL, "a")
    assert current_scope() is None
    with turn.entered():
        with pytest.raises(ValueError), goal.entered():
            assert current_scope() is goal
            raise ValueError
        assert current_scope() is turn
    assert current_scope() is None


def test_a_thread_does_not_inherit_the_current_scope(turn: Scope) -> None:
    with turn.entered():
        assert Started(current_scope).result() is None
        assert contextvars.copy_context().run(current_scope) is turn


def test_the_dump_shows_the_tree_one_scope_a_line() -> None:
    root = Scope.root()
    run = root.open(Level.RUN, "r_1")
    turn = run.open(Level.TURN, "t_1")
    for name in ("b", "a"):
        turn.open(Level.GOAL, name)
    turn.cancel(USER)
    lines = root.dump().splitlines()
    assert lines == [
        "<Scope process process open>",
        "  <Scope run r_1 open>",
        "    <Scope turn t_1 stopped:user>",
        "      <Scope goal a stopped:user>",
        "      <Scope goal b stopped:user>",
    ]
    run.finish()
    assert root.dump() == "<Scope process process open>"


def test_nothing_is_kept_of_scopes_that_have_finished() -> None:
    root = Scope.root()
    for number in range(10_000):
        call = root.open(Level.CALL, str(number))
        with call.on_cancel(lambda: None):
            pass
        call.finish()
    assert not root._children


def test_threads_that_open_finish_register_and_stop_at_once_neither_hang_nor_leak() -> None:
    root = Scope.root()

    def work(number: int) -> None:
        dice = random.Random(number)
        for step in range(300):
            run = root.open(Level.RUN, f"{number}.{step}")
            turn = run.open(Level.TURN, "t")
            woken = threading.Event()
            try:
                with turn.on_cancel(woken.set):
                    if dice.random() < 0.5:
                        run.cancel(USER)
                assert not run.is_stopped
            except Cancelled:
                assert woken.is_set()
            turn.finish()
            run.finish()

    in_threads(8, work)
    assert not root._children


def test_levels_are_ordered_from_wide_to_narrow() -> None:
    assert all(wide < narrow for wide, narrow in itertools.pairwise(Level))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_abort_that_raises_what_ends_a_thread_does_not_end_the_one_that_stops(error: type[BaseException]) -> None:
    scope, ran = Scope.root(), list[str]()

    def fail() -> None:
        raise error

    scope.add_abort(fail)
    scope.add_abort(lambda: ran.append("next"))
    assert scope.cancel(USER) is Verdict.FIRST
    assert ran == ["next"]
