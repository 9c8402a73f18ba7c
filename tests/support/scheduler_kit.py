"""What the tests of the scheduling loop share: goals and plans from plain functions, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.engine.call_pool import CallPool
from core.errors import ProviderError
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from tests.support.core_kit import Started, build_plan

COMPLETED, FAILED, CANCELLED = GoalStatus.COMPLETED, GoalStatus.FAILED, GoalStatus.CANCELLED


def leaf(goal_id: str, *depends_on: str) -> dict[str, Any]:
    """A goal with a prompt, as a spec says it."""
    return {"id": goal_id, "prompt": "p", "depends_on": list(depends_on)}


def inner(goal_id: str, *goals: dict[str, Any], depends_on: tuple[str, ...] = ()) -> dict[str, Any]:
    """A goal with goals inside, as a spec says it."""
    return {"id": goal_id, "goals": list(goals), "depends_on": list(depends_on)}


def make_plan(
    work: Callable[[Goal], str | None], *goals: dict[str, Any], places: int = 4
) -> tuple[Plan, dict[str, Goal]]:
    """A plan whose leaves do the work, and its goals by id."""
    return build_plan({"goals": list(goals)}, CallPool(places), work)


def run_plan(plan: Plan) -> GoalStatus:
    """Run it on a thread of its own; its verdict."""
    status = Started(plan.run).result()
    assert isinstance(status, GoalStatus)
    return status


def fail(goal: Goal) -> str:
    """Work that fails as a call does."""
    raise ProviderError(f"{goal.id} failed")


def statuses(goals: dict[str, Goal]) -> dict[str, str]:
    """Name of each goal's status by id."""
    return {name: goal.status.value for name, goal in goals.items()}
