"""A plan as it is handed in or made by a model: its shape, and the rules that it must keep to run."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import InvalidPlan
from core.tool.arguments import misfit
from core.tool.tool import Tool

#: Deeper nesting is refused: nobody reads it, and JSON parsers differ on it.
MAX_DEPTH: Final = 100

GoalId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:\-]+$")]


class ToolSpec(BaseModel):
    """A tool that is run as it is, without a model."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)


class GoalSpec(BaseModel):
    """A goal to be: it has a prompt, a tool, or children."""

    model_config = ConfigDict(extra="forbid")

    id: GoalId
    title: str = Field(default="", max_length=500)
    prompt: str | None = Field(default=None, min_length=1)
    depends_on: list[GoalId] = Field(default_factory=list)
    agent: str | None = None
    tool: ToolSpec | None = None
    goals: list[GoalSpec] = Field(default_factory=list)


class PlanSpec(BaseModel):
    """A plan to be: ``{"goals": [...]}``, at least one."""

    model_config = ConfigDict(extra="forbid")

    goals: list[GoalSpec] = Field(min_length=1)

    @staticmethod
    def single(prompt: str) -> PlanSpec:
        """One goal whose prompt is the message."""
        title = prompt.strip().splitlines()[0][:80] if prompt.strip() else "answer"
        return PlanSpec(goals=[GoalSpec.model_construct(id="answer", title=title, prompt=prompt)])


#: Agent -> the tools that it may call, by name.
ToolsOf = Mapping[str, Mapping[str, Tool]]


def check_plan(
    spec: PlanSpec, max_goals: int | None = None, agents: ToolsOf | None = None, agent: str = "default"
) -> int:
    """The number of goals, or :class:`InvalidPlan` saying what to mend and where.

    ``agents`` are those there are, ``agent`` the one that works on the goals that name none.
    """
    goals: dict[str, GoalSpec] = {}
    parents: dict[str, str] = {}
    waiting = [(goal, 1, "") for goal in spec.goals]
    while waiting:
        goal, depth, parent = waiting.pop()
        if goal.id in goals:
            raise InvalidPlan(f"two goals have the id {goal.id!r}", field="plan.goals")
        if depth > MAX_DEPTH:
            raise InvalidPlan(f"the plan is nested more than {MAX_DEPTH} deep", field="plan.goals")
        _check_goal(goal, agents, agent)
        goals[goal.id], parents[goal.id] = goal, parent
        waiting.extend((child, depth + 1, goal.id) for child in goal.goals)
    if max_goals is not None and len(goals) > max_goals:
        raise InvalidPlan(f"the plan has {len(goals)} goals; at most {max_goals} are allowed", field="plan.goals")
    _check_order(goals, parents)
    return len(goals)


def _check_goal(goal: GoalSpec, agents: ToolsOf | None, agent: str) -> None:
    has_prompt = bool(goal.prompt and goal.prompt.strip())
    if [has_prompt, goal.tool is not None, bool(goal.goals)].count(True) != 1:
        raise InvalidPlan(f"goal {goal.id!r} needs a prompt, a tool or children, one of the three", field="plan.goals")
    if agents is None:
        return
    if goal.agent is not None and goal.agent not in agents:
        raise InvalidPlan(f"goal {goal.id!r} names an unknown agent", field="plan.goals")
    who = goal.agent or agent
    if goal.tool is not None and goal.tool.name not in agents.get(who, {}):
        raise InvalidPlan(
            f"goal {goal.id!r} calls {goal.tool.name!r}, which the agent {who!r} may not: "
            "see TOOLS_ALLOWED, and the agent's tools in AGENTS_FILE",
            field="plan.goals",
        )
    fault = misfit(agents[who][goal.tool.name], goal.tool.arguments) if goal.tool is not None else None
    if fault is not None:
        raise InvalidPlan(f"the arguments of goal {goal.id!r} do not fit its tool: {fault}", field="plan.goals")


def _check_order(goals: dict[str, GoalSpec], parents: dict[str, str]) -> None:
    """No cycle among dependencies and containment: a parent begins before and ends after its children."""
    order: TopologicalSorter[tuple[str, str]] = TopologicalSorter()
    for goal in goals.values():
        begin, end = ("begin", goal.id), ("end", goal.id)
        order.add(end, begin)
        if parents[goal.id]:
            order.add(begin, ("begin", parents[goal.id]))
            order.add(("end", parents[goal.id]), end)
        for name in goal.depends_on:
            if name not in goals:
                raise InvalidPlan(f"goal {goal.id!r} depends on unknown {name!r}", field="plan.goals")
            order.add(begin, ("end", name))
    try:
        order.prepare()
    except CycleError as error:
        names = list(dict.fromkeys(name for _, name in error.args[1]))
        raise InvalidPlan(f"goals wait for each other: {' -> '.join(names[:10])}", field="plan.goals") from None


def spec_from_model(data: Any) -> PlanSpec:
    """A model's JSON as a spec; :class:`InvalidPlan` if it is not one."""
    try:
        return PlanSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise InvalidPlan(f"the model's plan has the wrong shape ({where}: {first['msg']})") from None
