"""Random plans that are fit to run."""

from __future__ import annotations

from hypothesis import strategies as st

from core.errors import InvalidPlan
from core.plan.plan_spec import GoalSpec, PlanSpec, check_plan


@st.composite
def specs(draw: st.DrawFn, max_goals: int = 12) -> PlanSpec:
    """A plan that :func:`check_plan` takes: a random tree, with every drawn dependency that closes no circle."""
    count = draw(st.integers(1, max_goals))
    # Goal n's parent is one before it, or -1 for the top; whoever gets a child contains only.
    parents = [draw(st.integers(-1, n - 1)) for n in range(count)]
    goals = [GoalSpec(id=f"g{n}", title=f"goal {n}") for n in range(count)]
    for n, parent in enumerate(parents):
        if parent >= 0:
            goals[parent].goals.append(goals[n])
    for goal in goals:
        if not goal.goals:
            goal.prompt = f"do {goal.id}"
    spec = PlanSpec(goals=[goals[n] for n in range(count) if parents[n] < 0])
    for _ in range(draw(st.integers(0, count * 2))):
        one, other = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        goals[one].depends_on.append(f"g{other}")
        try:
            check_plan(spec)
        except InvalidPlan:
            goals[one].depends_on.pop()
    return spec


def flatten(spec: PlanSpec) -> dict[str, tuple[GoalSpec, str | None]]:
    """Id -> the goal and the id of the goal around it."""
    found: dict[str, tuple[GoalSpec, str | None]] = {}
    waiting: list[tuple[GoalSpec, str | None]] = [(goal, None) for goal in spec.goals]
    while waiting:
        goal, parent = waiting.pop()
        found[goal.id] = (goal, parent)
        waiting.extend((child, goal.id) for child in goal.goals)
    return found
