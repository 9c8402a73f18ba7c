"""What goals said and did, folded from the log: of a turn that a crash left, or of one that is resumed."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, select

from core.agent.rounds import Rounds
from core.agent.told import Told
from core.events import EventType
from core.session.queries import log_of_turn, read_plan, walk_goals
from core.session.said import Said, with_earlier
from core.session.usage import UsageSum
from core.store.tables import events, turns
from core.tool.shell_result import SHELL, Printed

#: What of a turn's log its transcript and its sums are made of.
_KINDS: Final = (
    EventType.TEXT, EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.MESSAGE_DELIVERED, EventType.USAGE,
    EventType.RETRY,
)  # fmt: skip


@dataclass(slots=True)
class LoggedTurn:
    """What the log of a turn tells."""

    #: Of each leaf, in plan order.
    said: list[Said] = field(default_factory=list)
    #: What the user said while it was at work, in order.
    told: list[Told] = field(default_factory=list)
    #: What its calls used.
    usage: UsageSum = field(default_factory=UsageSum)


def read_said(connection: Connection, turn: RowMapping, goals: list[dict[str, Any]]) -> LoggedTurn:
    """What was said and done in a turn whose plan has these goals."""
    query = select(events.c.type, events.c.goal_id, events.c.call_id, events.c.data).where(
        log_of_turn(connection, turn), events.c.type.in_(_KINDS)
    )
    rounds: dict[str, Rounds] = {}
    logged = LoggedTurn()
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        data = json.loads(row["data"])
        if row["type"] == EventType.USAGE:
            logged.usage.add(data)
        elif row["type"] == EventType.MESSAGE_DELIVERED:
            _take_message(data, logged.told, rounds)
        else:
            rounds.setdefault(row["goal_id"], Rounds()).take(row["type"], row["call_id"], data)
    logged.said = [_said_of(goal, rounds) for goal in walk_goals(goals) if not goal["goals"]]
    return logged


def read_printed(connection: Connection, turn: RowMapping, said: list[Said]) -> dict[str, Printed]:
    """By call: what the shell commands that are still open had printed; those that had printed nothing are not there."""
    open_ids = {call.id for each in said for call in each.rounds.open_calls() if call.name == SHELL}
    printed: dict[str, Printed] = {}
    if not open_ids:
        return printed
    query = select(events.c.call_id, events.c.data).where(
        log_of_turn(connection, turn), events.c.type == EventType.TOOL_OUTPUT, events.c.call_id.in_(open_ids)
    )
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        data = json.loads(row["data"])
        printed.setdefault(row["call_id"], Printed()).take(data["stream"], data["text"])
    return printed


def _take_message(data: dict[str, Any], told: list[Told], rounds: dict[str, Rounds]) -> None:
    if "text" not in data:  # the message that began the turn
        return
    message = Told(data["message_id"], data["text"], data["mode"] == "redirect")
    told.append(message)
    for place in data["goals"]:
        rounds.setdefault(place["goal_id"], Rounds()).tell(replace(message, is_cut=place["cut"]), place["round"])


def said_before(connection: Connection, turn: RowMapping) -> LoggedTurn:
    """What was said in the turn that this one resumes, and in those before it; nothing if it resumes none."""
    before = LoggedTurn()
    for old in reversed(_resumed_by(connection, turn)):
        own = read_said(connection, old, read_plan(connection, old)["goals"])
        before.said = with_earlier(own.said, before.said)
        # Who takes them up begins with them: of its answer nothing was cut off.
        before.told += [replace(each, is_cut=False) for each in own.told]
    return before


def _resumed_by(connection: Connection, turn: RowMapping) -> list[RowMapping]:
    """The turn that this one resumes, the one that that one resumes, and so on: however many, newest first."""
    resumed: list[RowMapping] = []
    while turn["resumes"] is not None:
        turn = connection.execute(select(turns).where(turns.c.id == turn["resumes"])).mappings().one()
        resumed.append(turn)
    return resumed


def _said_of(goal: dict[str, Any], rounds: dict[str, Rounds]) -> Said:
    result = goal["result"] if goal["status"] == "COMPLETED" else None
    own = rounds.get(goal["id"], Rounds())
    return Said(goal["id"], own, result, goal["cause"], is_delegated=goal.get("call_id") is not None)
