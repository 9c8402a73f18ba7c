"""What a turn takes over from the one that it resumes: its plan, and the results of the goals that were finished."""

from typing import Any

from sqlalchemy import Connection, select

from core.plan.plan_spec import GoalSpec, PlanSpec, ToolSpec
from core.session.queries import read_plan
from core.session.records import TurnStart
from core.store.tables import turns


def read_earlier(connection: Connection, start: TurnStart) -> tuple[PlanSpec | None, dict[str, str | None]]:
    """The plan of the turn that ``start`` resumes, and the results of those of its leaves that were completed.

    That turn may itself resume one, and so on: it may have been stopped before it had the plan, or had taken the
    finished goals over. ``(None, {})`` if none of them had a plan.
    """
    spec: PlanSpec | None = None
    finished: dict[str, str | None] = {}
    turn_id = start.resumes
    while turn_id is not None:
        turn = connection.execute(select(turns).where(turns.c.id == turn_id)).mappings().one()
        goals = read_plan(connection, turn)["goals"]
        if goals:
            made = PlanSpec.model_construct(goals=[_spec_of(goal, finished) for goal in goals])
            spec = spec or made
        turn_id = turn["resumes"]
    return spec, finished


def _spec_of(goal: dict[str, Any], finished: dict[str, str | None]) -> GoalSpec:
    inside = [_spec_of(each, finished) for each in goal["goals"]]
    if not inside and goal["status"] == "COMPLETED":
        finished[goal["id"]] = goal["result"]
    tool = goal.get("tool")
    # Checked when it was accepted; not again, so that a rule of today does not refuse a plan of yesterday.
    return GoalSpec.model_construct(
        id=goal["id"], title=goal["title"], prompt=goal["prompt"], depends_on=goal["depends_on"], goals=inside,
        agent=goal.get("agent"), tool=ToolSpec.model_construct(**tool) if tool else None,
    )  # fmt: skip
