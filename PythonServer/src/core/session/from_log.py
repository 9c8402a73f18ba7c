"""The end of a turn whose goals are not in memory: made of what the log has of it.

For a turn that a lost server left, and for one that was to be taken up again and ended before its plan was back.
"""

from typing import Any

from sqlalchemy import RowMapping

from core.cancellation import CauseWord
from core.events import Event, EventType
from core.plan.goal_status import FINAL
from core.session.queries import read_plan, walk_goals
from core.session.questions import questions_of_turn
from core.session.receipt_log import PartsInLog, lost_call, lost_goal
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.said import close_calls, turn_messages, with_earlier
from core.session.said_log import read_printed, read_said, said_before
from core.session.turn_end import end_turn
from core.session.turns import read_turn
from core.store.commit import Transaction


def outcome_in_log(tx: Transaction, turn: RowMapping, order: StopOrder | None, error: str | None = None) -> TurnOutcome:
    """The turn is over: its goals become final by this, its open calls get their results.

    ``order``: the stop that ended it; None if it failed, with ``error``.
    """
    run_id, turn_id = turn["run_id"], turn["id"]
    state, word = ("cancelled", order.cause.word) if order is not None else ("failed", None)
    plan = read_plan(tx.connection, turn)
    asked = questions_of_turn(tx.connection, run_id, turn_id)
    parts = PartsInLog(tx.connection, turn)
    ended = _end_goals(tx, turn, plan["goals"], word, error, parts.unended(plan["goals"]))
    logged = read_said(tx.connection, turn, plan["goals"])
    printed = read_printed(tx.connection, turn, logged.said)
    closing = close_calls(logged.said, run_id, turn_id, word or state, printed, parts.unended_calls())
    lost = [*(lost_call(event, asked) for event in closing), *ended]
    before = said_before(tx.connection, turn)
    return TurnOutcome(
        state,
        turn_messages(with_earlier(logged.said, before.said), state, word, before.told + logged.told),
        order=order,
        receipt=lost if order is not None else None,
        error=error,
        plan=plan if plan["goals"] else None,
        closing=closing,
        usage=logged.usage.draw(),
        parts=parts.receipts(plan["goals"], asked, lost),
    )


def end_turn_in_log(
    tx: Transaction, run_id: str, turn_id: str, outcome: TurnOutcome
) -> tuple[TurnOutcome, TurnStart | None]:
    """As :func:`end_turn`, for an open turn of which ``outcome`` tells only by what it was ended."""
    turn = read_turn(tx, turn_id)
    order = StopOrder.from_json(turn["stop"]) if turn["stop"] else outcome.order
    if turn["state"] == "open":
        outcome = outcome_in_log(tx, turn, order, outcome.error)
    return end_turn(tx, run_id, turn_id, outcome)


def _end_goals(
    tx: Transaction, turn: RowMapping, goals: list[dict[str, Any]], word: str | None, error: str | None,
    stopped: dict[str, str],
) -> list[dict[str, Any]]:  # fmt: skip
    """Every goal that is not final becomes so; returns their receipt items. ``stopped``: why each was, by itself."""
    items = []
    for goal in walk_goals(goals):
        if goal["status"] in FINAL:
            continue
        has_begun, cause = goal["status"] != "NOT_STARTED", stopped.get(goal["id"], word)
        data: dict[str, Any] = {"status": "CANCELLED", "cause": cause or CauseWord.DEPENDENCY}
        if cause is None and has_begun:
            data = {"status": "FAILED", "error": error}
        goal.update(data)
        tx.emit(Event(turn["run_id"], EventType.GOAL_STATUS, data, turn["id"], goal["id"]))
        items.append(lost_goal(goal, has_begun))
    return items
