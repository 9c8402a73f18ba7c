"""What goals said and did, folded from the log: of a turn that a crash left, or of one that is resumed."""

import json
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, select

from core.agent.rounds import Rounds
from core.events import EventType
from core.session.queries import log_of_turn, read_plan, walk_goals
from core.session.said import Said, with_earlier
from core.session.usage import UsageSum
from core.store.tables import events, turns

#: What of a turn's log its transcript and its sums are made of.
_KINDS: Final = (EventType.TEXT, EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.USAGE)


def read_said(
    connection: Connection, turn: RowMapping, goals: list[dict[str, Any]]
) -> tuple[list[Said], UsageSum]:
    """What each leaf of a turn said and did, in plan order, and what the turn's calls used."""
    query = select(events.c.type, events.c.goal_id, events.c.call_id, events.c.data).where(
        log_of_turn(connection, turn), events.c.type.in_(_KINDS)
    )
    rounds: dict[str, Rounds] = {}
    usage = UsageSum()
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        data = json.loads(row["data"])
        if row["type"] == EventType.USAGE:
            usage.add(data)
        else:
            rounds.setdefault(row["goal_id"], Rounds()).take(row["type"], row["call_id"], data)
    return [_said_of(goal, rounds) for goal in walk_goals(goals) if not goal["goals"]], usage


def said_before(connection: Connection, turn: RowMapping) -> list[Said]:
    """What had been said in the turn that this one resumes, and in those before it; [] if it resumes none."""
    if turn["resumes"] is None:
        return []
    old = connection.execute(select(turns).where(turns.c.id == turn["resumes"])).mappings().one()
    own, _ = read_said(connection, old, read_plan(connection, old)["goals"])
    before = said_before(connection, old)
    return with_earlier(own, before) if own else before


def _said_of(goal: dict[str, Any], rounds: dict[str, Rounds]) -> Said:
    result = goal["result"] if goal["status"] == "COMPLETED" else None
    own = rounds.get(goal["id"]) or Rounds()
    return Said(goal["id"], own, result, goal["cause"], is_delegated=goal.get("call_id") is not None)
