"""Settling what a crash left: before the server serves, every turn that was open is parked, ended, or taken up again."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sqlalchemy import RowMapping, select

from core.cancellation import Cause, CauseWord
from core.events import Event, EventType
from core.plan.goal_status import FINAL
from core.session.queries import read_plan, walk_goals
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import RunState
from core.session.said import close_calls, turn_messages, with_earlier
from core.session.said_log import read_said, said_before
from core.session.surviving import asked_calls, was_waiting_for_answers
from core.session.turns import end_turn, read_turn, start_of
from core.store.commit import Transaction
from core.store.tables import IS_OPEN, runs
from core.store.writer import Writer
from core.tool.marked import kill_marked
from core.tool.supervised import MARK

log = logging.getLogger(__name__)

#: Seconds that the end of what a lost server's tools have left may take.
SWEEP_S: Final = 2.0

_LOST = StopOrder(Cause(CauseWord.SERVER_LOST, "the server ended while the turn was running"))

def settle_lost_turns(writer: Writer) -> list[TurnStart]:
    """End every open turn with cause ``server_lost``, or the stop that it had; returns the turns that follow."""
    run_ids = writer.transact(_open_runs).result()
    calls: list[str] = []
    following = [writer.transact(partial(_settle, run_id=run_id, calls=calls)).result() for run_id in run_ids]
    # Their supervisors have ended them when that server died, but for one that its own command had suspended.
    if calls and not kill_marked([f"{MARK}={call_id}" for call_id in calls], SWEEP_S):
        log.error("a process that an earlier server's tool had started could not be ended")
    if run_ids:
        log.warning("settled %d turns that an earlier server left", len(run_ids))
    return [start for start in following if start is not None]


def _open_runs(tx: Transaction) -> list[str]:
    return list(tx.connection.execute(select(runs.c.id).where(IS_OPEN)).scalars())


def _settle(tx: Transaction, run_id: str, calls: list[str]) -> TurnStart | None:
    run = tx.connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    turn = read_turn(tx, run["turn_id"])
    if run["state"] == RunState.QUEUED and run["options"].get("on_server_lost") == "resume":
        return start_of(run, turn)  # nothing of it had begun
    if was_waiting_for_answers(tx.connection, run, turn):
        return replace(start_of(run, turn), is_revived=True)
    order = StopOrder.from_json(turn["stop"]) if turn["stop"] else _LOST
    plan = read_plan(tx.connection, turn)
    asked = asked_calls(tx.connection, turn)
    cancelled = _cancel_goals(tx, turn, plan["goals"], order)
    logged = read_said(tx.connection, turn, plan["goals"])
    closing = close_calls(logged.said, run_id, turn["id"], order.cause.word)
    calls += [event.call_id for event in closing if event.call_id is not None]
    before = said_before(tx.connection, turn)
    outcome = TurnOutcome(
        "cancelled",
        turn_messages(
            with_earlier(logged.said, before.said), "cancelled", order.cause.word, before.told + logged.told
        ),
        order=order,
        receipt=[*(_lost_call(event, asked) for event in closing), *cancelled],
        plan=plan if plan["goals"] else None,
        closing=closing,
        usage=logged.usage.draw(),
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


def _lost_call(closing: Event, asked: set[str]) -> dict[str, Any]:
    kind = "question" if closing.call_id in asked else "tool"
    return _lost_item(kind, str(closing.call_id), closing.goal_id, "cancelled")


def _lost_item(kind: str, item_id: str, goal_id: str | None, outcome: str) -> dict[str, Any]:
    return {
        "kind": kind, "id": item_id, "goal_id": goal_id, "outcome": outcome,
        "how": "the server that ran it is gone", "took_ms": None,
    }  # fmt: skip
