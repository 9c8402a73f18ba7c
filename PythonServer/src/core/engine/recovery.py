"""Settling what a crash left: before the server serves, every turn that was open is parked, ended, or taken up again."""

import json
import logging
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from core.agent.rounds import Rounds
from core.cancellation import Cause, CauseWord
from core.events import Event, EventType
from core.plan.goal_status import FINAL
from core.session.queries import log_of_turn, read_plan, walk_goals
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import RunState
from core.session.said import Said, close_calls, turn_messages
from core.session.turns import end_turn, read_turn, start_of
from core.session.usage import UsageSum
from core.store.commit import Transaction
from core.store.tables import IS_OPEN, events, runs
from core.store.writer import Writer

log = logging.getLogger(__name__)

_LOST = StopOrder(Cause(CauseWord.SERVER_LOST, "the server ended while the turn was running"))

#: What of a turn's log its transcript and its sums are made of.
_KINDS = (EventType.TEXT, EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.USAGE)


def settle_lost_turns(writer: Writer) -> list[TurnStart]:
    """End every open turn with cause ``server_lost``, or the stop that it had; returns the turns that follow."""
    run_ids = writer.transact(_open_runs).result()
    following = [writer.transact(partial(_settle, run_id=run_id)).result() for run_id in run_ids]
    if run_ids:
        log.warning("settled %d turns that an earlier server left", len(run_ids))
    return [start for start in following if start is not None]


def _open_runs(tx: Transaction) -> list[str]:
    return list(tx.connection.execute(select(runs.c.id).where(IS_OPEN)).scalars())


def _settle(tx: Transaction, run_id: str) -> TurnStart | None:
    run = tx.connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    turn = read_turn(tx, run["turn_id"])
    if run["state"] == RunState.QUEUED and run["options"].get("on_server_lost") == "resume":
        return start_of(run, turn)  # nothing of it had begun
    order = StopOrder.from_json(turn["stop"]) if turn["stop"] else _LOST
    plan = read_plan(tx.connection, turn)
    cancelled = _cancel_goals(tx, turn, plan["goals"], order)
    said, usage = _read_log(tx.connection, turn, plan["goals"])
    closing = close_calls(said, run_id, turn["id"], order.cause.word)
    outcome = TurnOutcome(
        "cancelled",
        turn_messages(said, "cancelled", order.cause.word),
        order=order,
        receipt=[*map(_lost_tool, closing), *cancelled],
        plan=plan if plan["goals"] else None,
        closing=closing,
        usage=usage.draw(),
    )
    return end_turn(tx, run_id, turn["id"], outcome)[1]


def _cancel_goals(
    tx: Transaction, turn: RowMapping, goals: list[dict[str, Any]], order: StopOrder
) -> list[dict[str, Any]]:
    """Every goal that is not final becomes CANCELLED; returns their receipt items."""
    items = []
    for goal in walk_goals(goals):
        if goal["status"] in FINAL:
            continue
        outcome = "not_started" if goal["status"] == "NOT_STARTED" else "cancelled"
        data = {"status": "CANCELLED", "cause": order.cause.word}
        goal.update(data)
        tx.emit(Event(turn["run_id"], EventType.GOAL_STATUS, data, turn["id"], goal["id"]))
        items.append(_lost_item("goal", goal["id"], goal["id"], outcome))
    return items


def _lost_tool(closing: Event) -> dict[str, Any]:
    return _lost_item("tool", str(closing.call_id), closing.goal_id, "cancelled")


def _lost_item(kind: str, item_id: str, goal_id: str | None, outcome: str) -> dict[str, Any]:
    return {
        "kind": kind, "id": item_id, "goal_id": goal_id, "outcome": outcome,
        "how": "the server that ran it is gone", "took_ms": None,
    }  # fmt: skip


def _read_log(
    connection: Connection, turn: RowMapping, goals: list[dict[str, Any]]
) -> tuple[list[Said], UsageSum]:
    """What each leaf said and did, in plan order, and what the turn's calls used."""
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


def _said_of(goal: dict[str, Any], rounds: dict[str, Rounds]) -> Said:
    result = goal["result"] if goal["status"] == "COMPLETED" else None
    return Said(goal["id"], rounds.get(goal["id"]) or Rounds(), result)
