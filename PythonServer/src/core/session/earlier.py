"""What a turn takes over from the one that it resumes: its plan, what was finished, and what was said."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from core.agent.told import Told
from core.plan.plan_spec import GoalSpec, PlanSpec, ToolSpec
from core.session.queries import read_plan
from core.session.records import TurnStart
from core.session.said import Said
from core.session.said_log import said_before
from core.store.tables import turns


@dataclass(slots=True)
class Earlier:
    """From the turn that is resumed, and those that it resumed itself."""

    #: None if none of them had a plan.
    spec: PlanSpec | None = None
    #: Id -> result of each leaf that was completed.
    finished: dict[str, str | None] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    #: What the user had said while they were at work.
    told: list[Told] = field(default_factory=list)


def read_earlier(connection: Connection, start: TurnStart) -> Earlier:
    """What there is to take over; nothing if ``start`` resumes no turn.

    The turn that it resumes may have been stopped before it had the plan, or had taken the finished goals over.
    """
    earlier = Earlier()
    turn_id = start.resumes
    while turn_id is not None:
        turn = connection.execute(select(turns).where(turns.c.id == turn_id)).mappings().one()
        goals = read_plan(connection, turn)["goals"]
        if goals:
            made = PlanSpec.model_construct(goals=[spec_of(goal, earlier.finished) for goal in goals])
            earlier.spec = earlier.spec or made
        turn_id = turn["resumes"]
    if start.resumes is not None:
        own = connection.execute(select(turns).where(turns.c.id == start.turn_id)).mappings().one()
        before = said_before(connection, own)
        earlier.said, earlier.told = before.said, before.told
    return earlier


def spec_of(goal: dict[str, Any], finished: dict[str, str | None]) -> GoalSpec:
    """A goal of a published plan as it was handed in; ``finished`` gets the result of each completed leaf."""
    inside = [spec_of(each, finished) for each in goal["goals"]]
    if not inside and goal["status"] == "COMPLETED":
        finished[goal["id"]] = goal["result"]
    tool = goal.get("tool")
    # Checked when it was accepted; not again, so that a rule of today does not refuse a plan of yesterday.
    return GoalSpec.model_construct(
        id=goal["id"], title=goal["title"], prompt=goal["prompt"], depends_on=goal["depends_on"], goals=inside,
        agent=goal.get("agent"), tool=ToolSpec.model_construct(**tool) if tool else None,
    )  # fmt: skip
