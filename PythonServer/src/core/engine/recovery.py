"""Settling what a crash left: before the server serves, every turn that was open is parked or ended."""

import json
import logging
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from core.cancellation import Cause, CauseWord
from core.events import Event, EventType
from core.session.queries import read_plan
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import OPEN
from core.session.transcript import compose_message
from core.session.turns import end_turn
from core.store.commit import Transaction
from core.store.tables import events, runs, turns
from core.store.writer import Writer

log = logging.getLogger(__name__)

_LOST = StopOrder(Cause(CauseWord.SERVER_LOST, "the server ended while the turn was running"))


def settle_lost_turns(writer: Writer) -> list[TurnStart]:
    """End every open turn with cause ``server_lost``, or the stop that it had; returns the turns that follow."""
    run_ids = writer.transact(_open_runs).result()
    following = [writer.transact(partial(_settle, run_id=run_id)).result() for run_id in run_ids]
    if run_ids:
        log.warning("settled %d turns that an earlier server left", len(run_ids))
    return [start for start in following if start is not None]


def _open_runs(tx: Transaction) -> list[str]:
    return list(tx.connection.execute(select(runs.c.id).where(runs.c.state.in_(OPEN))).scalars())


def _settle(tx: Transaction, run_id: str) -> TurnStart | None:
    run = tx.connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    turn = tx.connection.execute(select(turns).where(turns.c.id == run["turn_id"])).mappings().one()
    order = StopOrder.from_json(turn["stop"]) if turn["stop"] else _LOST
    plan = read_plan(tx.connection, turn)
    cancelled = _cancel_goals(tx, turn, plan["goals"], order)
    said = _said(tx.connection, turn, plan["goals"])
    outcome = TurnOutcome(
        "cancelled",
        [compose_message(said, "cancelled", order.cause.word)],
        order=order,
        receipt=cancelled,
        plan=plan if plan["goals"] else None,
    )
    return end_turn(tx, run_id, turn["id"], outcome)[1]


def _cancel_goals(
    tx: Transaction, turn: RowMapping, goals: list[dict[str, Any]], order: StopOrder
) -> list[dict[str, Any]]:
    """Every goal that is not final becomes CANCELLED; returns their receipt items."""
    items = []
    waiting = list(reversed(goals))
    while waiting:
        goal = waiting.pop()
        waiting.extend(reversed(goal["goals"]))
        if goal["status"] in ("COMPLETED", "FAILED", "CANCELLED"):
            continue
        outcome = "not_started" if goal["status"] == "NOT_STARTED" else "cancelled"
        data = {"status": "CANCELLED", "cause": order.cause.word}
        goal |= data
        tx.emit(Event(turn["run_id"], EventType.GOAL_STATUS, data, turn["id"], goal["id"]))
        items.append(
            {
                "kind": "goal", "id": goal["id"], "goal_id": goal["id"], "outcome": outcome,
                "how": "the server that ran it is gone", "took_ms": None,
            }
        )  # fmt: skip
    return items


def _said(connection: Connection, turn: RowMapping, goals: list[dict[str, Any]]) -> list[str]:
    """What each goal said, in plan order, from the log."""
    query = select(events.c.goal_id, events.c.data).where(
        events.c.run_id == turn["run_id"], events.c.turn_id == turn["id"], events.c.type == EventType.TEXT
    )
    texts: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        texts.setdefault(row["goal_id"], []).append(json.loads(row["data"])["text"])
    said = []
    waiting = list(reversed(goals))
    while waiting:
        goal = waiting.pop()
        waiting.extend(reversed(goal["goals"]))
        if text := "".join(texts.get(goal["id"], ())):
            said.append(text)
    return said
