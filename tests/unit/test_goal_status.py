"""The states of a goal, and the states of a run."""

import pytest

from core.plan.goal_status import FINAL, MOVES, GoalStatus
from core.session.run_state import MOVES as RUN_MOVES
from core.session.run_state import OPEN, TERMINAL, RunState, may_move


def test_the_documented_names_are_the_values() -> None:
    assert [status.value for status in GoalStatus] == [
        "NOT_STARTED", "IN_PROGRESS", "CHILDREN_IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED",
    ]  # fmt: skip
    assert all(status.name == status.value for status in GoalStatus)


def test_every_state_has_its_moves_and_a_final_one_has_none() -> None:
    assert set(MOVES) == set(GoalStatus)
    assert {status for status, moves in MOVES.items() if not moves} == FINAL


def test_a_goal_that_runs_can_end_in_every_way_and_never_begins_again() -> None:
    for status in (GoalStatus.IN_PROGRESS, GoalStatus.CHILDREN_IN_PROGRESS):
        assert MOVES[status] == FINAL


def test_a_goal_that_never_began_can_only_be_cancelled() -> None:
    assert MOVES[GoalStatus.NOT_STARTED] & FINAL == {GoalStatus.CANCELLED}


@pytest.mark.parametrize("state", list(RunState))
def test_no_run_leaves_a_terminal_state_and_every_open_one_can_be_stopped_and_left(state: RunState) -> None:
    moves = RUN_MOVES[state]
    assert bool(moves) == (state not in TERMINAL)
    if state in OPEN and state is not RunState.STOPPING:
        assert may_move(state, RunState.STOPPING)


def test_stopping_is_one_way() -> None:
    assert not may_move("stopping", RunState.RUNNING)
    assert not may_move("stopping", RunState.AWAITING_ANSWER)


def test_a_turn_whose_begin_could_not_be_recorded_can_still_end() -> None:
    for state in (RunState.AWAITING_INPUT, RunState.FAILED, RunState.QUEUED):
        assert may_move("queued", state)
