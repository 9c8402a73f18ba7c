"""The scheduling loop on deep plans and on ten thousand goals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from core.plan.goal import Goal
from tests.support.causes import USER
from tests.support.scheduler_kit import CANCELLED, COMPLETED, FAILED, fail, inner, leaf, make_plan, run_plan


@pytest.mark.parametrize("depth", [50, 100])
def test_one_thread_runs_a_deep_plan(depth: int) -> None:
    goal = leaf("leaf")
    for level in range(depth - 1):
        goal = inner(f"i{level}", goal, leaf(f"beside{level}"))
    plan, goals = make_plan(lambda each: each.id, goal, places=1)
    assert run_plan(plan) is COMPLETED
    assert len(goals) == 2 * depth - 1


def _wide(count: int) -> list[dict[str, Any]]:
    return [leaf(str(n)) for n in range(count)]


def _chain(count: int) -> list[dict[str, Any]]:
    return [leaf("0"), *(leaf(str(n), str(n - 1)) for n in range(1, count))]


def _layered(count: int) -> list[dict[str, Any]]:
    width = 100
    return [
        leaf(str(n), *(str(n // width * width - width + (n + step) % width) for step in range(3)) if n >= width else ())
        for n in range(count)
    ]


@pytest.mark.parametrize("shape", [_wide, _chain, _layered])
def test_ten_thousand_goals_complete_without_recursion_in_time_that_grows_with_their_number(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    def seconds(count: int) -> float:
        plan, _ = make_plan(lambda _: None, *shape(count))
        begun = time.process_time()  # not the time that other processes take
        assert run_plan(plan) is COMPLETED
        return time.process_time() - begun

    seconds(100)
    small = max(min(seconds(1_000) for _ in range(3)), 0.02)
    # Ten times the goals: ten times the time if linear, a hundred times if quadratic.
    assert min(seconds(10_000) for _ in range(2)) < small * 45


@pytest.mark.parametrize("shape", [_wide, _chain, _layered])
def test_ten_thousand_goals_are_cancelled_without_recursion_when_the_first_fails_or_a_stop_comes(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    plan, goals = make_plan(lambda goal: fail(goal) if goal.id == "0" else "fine", *shape(10_000))
    assert run_plan(plan) is FAILED
    assert all(goal.is_final for goal in goals.values())

    def work(goal: Goal) -> None:
        if goal.id == "0":
            goal.plan.scope.cancel(USER)

    plan, goals = make_plan(work, *shape(10_000))
    assert run_plan(plan) is CANCELLED
    assert all(goal.is_final for goal in goals.values())
