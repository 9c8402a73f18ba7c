"""Taking up a turn that waited for answers when its server went: the same turn goes on, and nothing is written twice.

What had ended has ended. A goal that was at work has all that it said and did, and waits for its open calls again; what
had not begun begins when it may. The turn's clocks, its deadline and the limit of idle time, start anew here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from core.agent.rounds import Rounds
from core.cancellation import Cause, CauseWord
from core.plan.goal import Goal, follow
from core.plan.goal_status import FINAL, GoalStatus
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from core.session.earlier import spec_of
from core.session.part_stop import PartReceipt
from core.session.queries import read_plan, walk_goals
from core.session.receipt_log import read_part_receipts
from core.session.said_log import LoggedTurn, read_said
from core.session.surviving import asked_calls
from core.store.tables import turns

if TYPE_CHECKING:
    from core.session.turn import Turn

Node = dict[str, Any]


@dataclass(slots=True)
class Revival:
    """What the log holds of the turn."""

    spec: PlanSpec
    remark: str | None
    goals: list[Node]
    logged: LoggedTurn
    #: Calls that have asked.
    asked: set[str]
    #: Of the goals and calls that were stopped by themselves, oldest first.
    parts: list[PartReceipt]

    def restore(self, turn: Turn, made: dict[str, Goal], agent_of: Callable[[str | None], Any]) -> None:
        """Bring the goals, made of ``spec``, to where the log has them. What was logged of them is not said again.

        Goals that were at work, and those around them, begin anew in the eyes of the scheduler.
        """
        plan = turn.plan
        assert plan is not None
        rounds = {each.goal_id: each.rounds for each in self.logged.said}
        final: list[Goal] = []
        with plan.lock:
            for node in walk_goals(self.goals):
                goal = made.get(node["id"])
                if goal is None:
                    continue  # delegated
                _restore_goal(goal, node, rounds)
                if goal.is_final:
                    final.append(goal)
                elif node["status"] != GoalStatus.NOT_STARTED:
                    turn.logged_moves.add((goal.id, GoalStatus(node["status"])))
                _restore_delegated(turn, plan, goal, node["delegated"], rounds, agent_of)
            follow(final)  # what the log lacks of it, for the server went just then, is said now


def read_revival(connection: Connection, turn_id: str) -> Revival:
    """From the log of an open turn that was waiting for answers."""
    turn = connection.execute(select(turns).where(turns.c.id == turn_id)).mappings().one()
    plan = read_plan(connection, turn)
    spec = PlanSpec.model_construct(goals=[spec_of(goal, {}) for goal in plan["goals"]])
    logged = read_said(connection, turn, plan["goals"])
    parts = read_part_receipts(connection, turn, plan["goals"])
    return Revival(spec, plan["note"], plan["goals"], logged, asked_calls(connection, turn), parts)


def _restore_goal(goal: Goal, node: Node, rounds: dict[str, Rounds]) -> None:
    goal.rounds = rounds.get(goal.id, goal.rounds)
    goal.started_at = _seconds(node["started_at"])
    if node["status"] not in FINAL:
        return
    goal.status, goal.ended_at = GoalStatus(node["status"]), _seconds(node["ended_at"])
    goal.cause = Cause(CauseWord(node["cause"])) if node["cause"] else None
    goal.result, goal.error = node["result"], node["error"]


def _restore_delegated(
    turn: Turn, above: Plan, owner: Goal, nodes: list[Node], rounds: dict[str, Rounds],
    agent_of: Callable[[str | None], Any],
) -> None:  # fmt: skip
    """The plans that its calls had delegated: they are over, or the turn would not have been waiting for answers."""
    plans: dict[str, Plan] = {}
    for node in nodes:
        call_id = node["call_id"]
        plan = plans.get(call_id)
        if plan is None:
            plan = plans[call_id] = Plan(
                turn.scope, turn.workers, above.work, turn.note_goal, turn.note_abandoned, (owner, call_id)
            )
        goal = Goal(plan, node["id"], node["title"], node["prompt"], plan.plan_goal, agent_of(node["agent"]))
        _restore_goal(goal, node, rounds)
        _restore_delegated(turn, plan, goal, node["delegated"], rounds, agent_of)
    for plan in plans.values():
        goals = {goal.id: goal for goal in plan.walk()}
        for node in nodes:
            if node["id"] in goals:
                goals[node["id"]].depends_on = [goals[name] for name in node["depends_on"]]
    owner.delegated = tuple(plans.values())


def _seconds(at: str | None) -> float | None:
    return None if at is None else datetime.fromisoformat(at).timestamp()
