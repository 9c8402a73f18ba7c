"""The goals of a plan, made of a checked spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.plan.goal import Goal
from core.plan.plan import Plan
from core.plan.plan_spec import GoalSpec, PlanSpec


def make_goals(plan: Plan, spec: PlanSpec, agent_of: Callable[[str | None], Any]) -> dict[str, Goal]:
    """Put them into the plan; by id, parents before children. Without recursion: plans may be deep."""
    goals: dict[str, Goal] = {}
    waiting: list[tuple[GoalSpec, Goal]] = [(each, plan.plan_goal) for each in reversed(spec.goals)]
    order: list[tuple[GoalSpec, Goal]] = []
    while waiting:
        each, parent = waiting.pop()
        tool = each.tool.model_dump() if each.tool is not None else None
        goal = Goal(plan, each.id, each.title or each.id, each.prompt, parent, agent_of(each.agent), tool)
        goals[each.id] = goal
        order.append((each, goal))
        waiting.extend((child, goal) for child in reversed(each.goals))
    for each, goal in order:
        for name in dict.fromkeys(each.depends_on):
            goal.depend_on(goals[name])
    return goals
