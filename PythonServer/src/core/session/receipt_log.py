"""Receipts made of the log: of a turn that its server left, and of what was stopped by itself in one.

Model calls are not in the log: whoever had seen their items has them from the answer of the stop, and a part that had
ended keeps them, since the event that ended it has its receipt.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, or_, select

from core.call import CallKind, Outcome
from core.clock import iso
from core.events import Event, EventType
from core.plan.goal_status import GoalStatus
from core.session.part_stop import PartReceipt
from core.session.queries import log_of_turn, walk_goals
from core.session.questions import questions_of_turn, was_told
from core.store.tables import events

Item = dict[str, Any]
#: A goal as ``GET …/plan`` shows it.
Node = dict[str, Any]

_GONE = "the server that ran it is gone"


# -- items ---------------------------------------------------------------------------------


def lost_call(closing: Event, asked: Mapping[str, RowMapping]) -> Item:
    """Of a call that was open when its server went. ``asked``: the questions of the turn by call."""
    return _call_item(str(closing.call_id), closing.goal_id, asked, Outcome.CANCELLED, _GONE)


def lost_goal(node: Node, has_begun: bool) -> Item:
    """Of a goal that was not final when its server went."""
    outcome = Outcome.CANCELLED if has_begun else Outcome.NOT_STARTED
    return _item(CallKind.GOAL, node["id"], node["id"], outcome, _GONE)


def _call_item(
    call_id: str, goal_id: str | None, asked: Mapping[str, RowMapping], outcome: Outcome, how: str
) -> Item:
    question = asked.get(call_id)
    if question is None:
        return _item(CallKind.TOOL, call_id, goal_id, outcome, how)
    if was_told(question):
        return _item(CallKind.QUESTION, call_id, goal_id, Outcome.ALREADY_DONE, f"it was {question['state']}")
    return _item(CallKind.QUESTION, call_id, goal_id, Outcome.CANCELLED, how)


def _item(kind: CallKind, item_id: str, goal_id: str | None, outcome: Outcome, how: str) -> Item:
    return {"kind": kind, "id": item_id, "goal_id": goal_id, "outcome": outcome, "how": how, "took_ms": None}


# -- goals and calls that were stopped by themselves -----------------------------------------


class PartsInLog:
    """Of one turn: what of it was stopped by itself, oldest first."""

    def __init__(self, connection: Connection, turn: RowMapping) -> None:
        self._parts: list[PartReceipt] = []
        self._ended: dict[tuple[str, str | None], list[Item]] = {}
        for row in _read(connection, turn):
            data, key = json.loads(row["data"]), (row["goal_id"], row["call_id"])
            if row["type"] != EventType.STOP_REQUESTED:
                self._ended[key] = data["receipt"]
                continue
            about = {"goal_id": row["goal_id"], "call_id": row["call_id"], "at": iso(row["at"])}
            self._parts.append(about | {"cause": data["cause"], "reason": data["reason"]})

    def unended(self, goals: list[Node]) -> dict[str, str]:
        """Id -> cause of each goal that is to end by such a stop, and of which the log does not say that it has."""
        return {
            node["id"]: part["cause"]
            for part in self._parts
            if self._receipt_of(part) is None
            for node in _inside(part, goals)
        }

    def unended_calls(self) -> dict[str, str]:
        """Id -> cause of each call that was stopped by itself, and of which the log does not say that it has ended."""
        return {
            part["call_id"]: part["cause"]
            for part in self._parts
            if part["call_id"] is not None and self._receipt_of(part) is None
        }

    def receipts(
        self, goals: list[Node], asked: Mapping[str, RowMapping], lost: Collection[Item] = ()
    ) -> list[PartReceipt]:
        """The receipt of each. ``lost``: the items of what had not ended when the server went."""
        return [
            part | {"receipt": receipt if receipt is not None else list(_rebuilt(part, goals, asked, lost))}
            for part in self._parts
            for receipt in [self._receipt_of(part)]
        ]

    def _receipt_of(self, part: PartReceipt) -> list[Item] | None:
        return self._ended.get((part["goal_id"], part["call_id"]))


def read_part_receipts(connection: Connection, turn: RowMapping, goals: list[Node]) -> list[PartReceipt]:
    """Those of a turn that is to be taken up again, and whose goals stand as in ``goals``."""
    asked = questions_of_turn(connection, turn["run_id"], turn["id"])
    return PartsInLog(connection, turn).receipts(goals, asked)


def _read(connection: Connection, turn: RowMapping) -> Iterable[RowMapping]:
    is_stop = and_(events.c.type == EventType.STOP_REQUESTED, events.c.goal_id.is_not(None))
    # In a text the quotes would stand behind backslashes.
    is_end = and_(
        events.c.type.in_((EventType.GOAL_STATUS, EventType.TOOL_RESULT)), events.c.data.contains('"receipt":')
    )
    query = select(events.c.type, events.c.goal_id, events.c.call_id, events.c.at, events.c.data).where(
        log_of_turn(connection, turn), or_(is_stop, is_end)
    )
    return connection.execute(query.order_by(events.c.seq)).mappings()


def _inside(part: PartReceipt, goals: list[Node]) -> Iterator[Node]:
    """The goals that end with it."""
    for node in walk_goals(goals):
        if node["id"] == part["goal_id"]:
            of_call = [each for each in node.get("delegated", ()) if each["call_id"] == part["call_id"]]
            yield from walk_goals([node] if part["call_id"] is None else of_call)


def _rebuilt(
    part: PartReceipt, goals: list[Node], asked: Mapping[str, RowMapping], lost: Collection[Item]
) -> Iterator[Item]:
    """What the log tells of a part of which it does not have the receipt."""
    inside = [node for node in _inside(part, goals) if not node["goals"]]
    ids = {part["call_id"], *(node["id"] for node in inside)}
    known = [item for item in lost if item["id"] in ids or item["goal_id"] in ids]
    seen = {item["id"] for item in known}
    if part["call_id"] is not None and part["call_id"] not in seen:
        yield _call_item(part["call_id"], part["goal_id"], asked, Outcome.ABORTED, "ended by the stop")
    yield from known
    for node in inside:
        if node["id"] not in seen and (node["status"], node["cause"]) == (GoalStatus.CANCELLED, part["cause"]):
            outcome = (Outcome.CANCELLED, "stopped") if node["started_at"] else (Outcome.NOT_STARTED, "never began")
            yield _item(CallKind.GOAL, node["id"], node["id"], *outcome)
