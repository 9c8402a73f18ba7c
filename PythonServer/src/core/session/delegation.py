"""Sub-agents: a tool call that has a plan of its own run, below the goal that made the call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.call import Outcome
from core.cancellation import Cancelled
from core.errors import InvalidPlan, NotFound
from core.gates import pause_at
from core.ids import new_id
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec, check_plan, spec_from_model
from core.plan.planner import whole_json
from core.tool.tool import Delegated, ToolFailed, ToolRun

if TYPE_CHECKING:
    from core.session.turn import Turn


class Delegation:
    """What one turn delegates."""

    def __init__(self, turn: Turn, work: Callable[[Goal], str | None], agent_of: Callable[[str | None], Any]) -> None:
        """``work`` runs a goal of a sub-agent; ``agent_of`` gives the agent of a name, or ``NotFound``."""
        self._turn = turn
        self._work = work
        self._agent_of = agent_of
        self._count = 0

    def run(
        self, owner: Goal, run: ToolRun, goals: list[dict[str, Any]], max_depth: int, max_goals: int
    ) -> list[Delegated]:
        """See :class:`core.tool.tool.DelegatePort`. The calling thread rests meanwhile."""
        if owner.plan.depth >= max_depth:
            raise ToolFailed(f"sub-agents may not delegate deeper than {max_depth}: do this part yourself")
        spec = _checked(goals)
        pause_at("delegation.before_spawn")
        plan = Plan(
            run.scope, self._turn.workers, self._work, self._turn.note_goal, self._turn.note_abandoned, (owner, run.id)
        )
        made = self._fill(plan, owner, spec)
        try:
            self._attach(plan, owner, len(made), max_goals)
        except Cancelled:
            run.settle(Outcome.NOT_STARTED, "never began")
            raise
        # Cancelled is of the call's own scope: what there is so far is its result.
        with contextlib.suppress(Cancelled), self._turn.protected(), self._turn.workers.resting(run.scope):
            plan.run()
        return [_outcome(spec_id, goal) for spec_id, goal in made.items()]

    def _fill(self, plan: Plan, owner: Goal, spec: PlanSpec) -> dict[str, Goal]:
        """The goals by the ids that the model gave them; their own are ours, since those are unique in the turn."""
        made: dict[str, Goal] = {}
        for each in spec.goals:
            try:
                agent = self._agent_of(each.agent) if each.agent is not None else owner.agent
            except NotFound as error:
                raise ToolFailed(error.detail) from None
            made[each.id] = Goal(plan, new_id("g"), each.title or each.id, each.prompt, plan.plan_goal, agent)
        for each in spec.goals:
            for name in dict.fromkeys(each.depends_on):
                made[each.id].depend_on(made[name])
        return made

    def _attach(self, plan: Plan, owner: Goal, count: int, max_goals: int) -> None:
        """From here on the goals are a part of the turn, and whoever stops it finds them. Not after a stop."""
        with owner.plan.lock:
            plan.scope.checkpoint()
            if self._count + count > max_goals:
                raise ToolFailed(f"a turn may delegate {max_goals} goals, and {self._count} were: do it yourself")
            self._count += count
            owner.delegated = (*owner.delegated, plan)
        self._turn.publish_plan()


def _checked(goals: list[dict[str, Any]]) -> PlanSpec:
    try:
        spec = spec_from_model(whole_json({"goals": goals}))
        check_plan(spec)
    except InvalidPlan as error:
        raise ToolFailed(f"the goals are no plan: {error.detail}") from None
    return spec


def _outcome(name: str, goal: Goal) -> Delegated:
    text = goal.result if goal.status is GoalStatus.COMPLETED else goal.rounds.text
    return Delegated(name, goal.status, text or "", goal.cause.word if goal.cause else None, goal.error)
