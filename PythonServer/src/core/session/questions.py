"""Questions to a human, as rows: opened, answered, declined, withdrawn by a stop, or expired; each exactly once.

Every function is a part of a decision of the one writer, and the row is the only truth: who came first is who was
written first. The state of the run follows in the same transaction: ``awaiting_answer`` while its open turn has at
least one question that is pending.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from core.cancellation import Cause
from core.clock import iso
from core.errors import InvalidRequest, NotFound, QuestionIsExpired, QuestionIsSettled, TurnIsOver
from core.events import Event, EventType
from core.ids import new_id
from core.session.access import Caller, find_run
from core.session.run_state import OPEN, RunState, may_move
from core.store.commit import Transaction
from core.store.tables import questions, runs
from core.tool.ask_user import result_of
from core.tool.tool import Answered, ToolFailed

#: Questions of one run that may wait at the same time.
MAX_PENDING: Final = 10

PENDING: Final = "pending"


@dataclass(frozen=True, slots=True)
class Asking:
    """A tool call that asks a question."""

    run_id: str
    turn_id: str
    goal_id: str | None
    call_id: str
    question: str
    #: To choose from; None: any text is an answer.
    options: list[str] | None
    #: Milliseconds until it expires; None: never.
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the user says to a question. ``answer`` is None for ``declined``."""

    disposition: str
    answer: str | None
    comment: str | None


# -- for the tool that asks ----------------------------------------------------------------


def look_at_question(tx: Transaction, asking: Asking, cause: Cause | None) -> RowMapping | None:
    """How the question of a call stands; asks it if the call has not done so before, in this server or an earlier one.

    ``cause``: the call was stopped. Then a question that is pending is withdrawn, and one that was not asked is not:
    None. One whose time is over expires. ``ToolFailed`` if too many are waiting, ``TurnIsOver`` if the turn is.
    """
    row = question_of_call(tx, asking.run_id, asking.call_id)
    if row is None:
        return None if cause is not None else _open_question(tx, asking)
    if row["state"] != PENDING:
        return row
    if cause is not None:
        return _settle(tx, row, "cancelled", cause=cause.word)
    return _settle(tx, row, "expired") if _is_overdue(row) else row


def _open_question(tx: Transaction, asking: Asking) -> RowMapping:
    run = _read_run(tx, asking.run_id)
    if run["turn_id"] != asking.turn_id or run["state"] not in OPEN or run["state"] == RunState.STOPPING:
        raise TurnIsOver()
    if _count_pending(tx, asking.run_id) >= MAX_PENDING:
        raise ToolFailed(f"{MAX_PENDING} questions are waiting for the user already: wait for their answers")
    now = time.time()
    expires_at = None if asking.timeout_ms is None else now + asking.timeout_ms / 1000
    row = {
        "id": new_id("q"), "run_id": asking.run_id, "turn_id": asking.turn_id, "goal_id": asking.goal_id,
        "call_id": asking.call_id, "question": asking.question, "options": asking.options, "state": PENDING,
        "created_at": now, "expires_at": expires_at,
    }  # fmt: skip
    tx.connection.execute(insert(questions).values(row))
    about = {
        "interrupt_id": row["id"], "question": asking.question, "options": asking.options,
        "expires_at": iso(expires_at) if expires_at is not None else None,
    }  # fmt: skip
    tx.emit(_event(row, EventType.INTERRUPTION_PENDING, about))
    _follow(tx, asking.run_id)
    found = question_of_call(tx, asking.run_id, asking.call_id)
    assert found is not None
    return found


# -- for the user who answers --------------------------------------------------------------


def resolve_question(
    tx: Transaction, caller: Caller, run_id: str, question_id: str, resolution: Resolution
) -> RowMapping:
    """Take in an answer, or that there will be none; the row afterwards. Of several, the first one stands.

    ``NotFound``; ``QuestionIsExpired``; ``QuestionIsSettled``, which says how; ``InvalidRequest`` for an answer that
    is not among the options.
    """
    find_run(tx.connection, caller, run_id)
    query = select(questions).where(questions.c.id == question_id, questions.c.run_id == run_id)
    row = tx.connection.execute(query.with_for_update()).mappings().first()
    if row is None:
        raise NotFound("the run has no such question")
    if row["state"] == "expired" or (row["state"] == PENDING and _is_overdue(row)):
        raise QuestionIsExpired()
    if row["state"] != PENDING:
        raise QuestionIsSettled(_how_settled(row), settled=row["state"], cause=row["cause"])
    if resolution.answer is not None and row["options"] is not None and resolution.answer not in row["options"]:
        raise InvalidRequest(
            "the answer is none of the options", errors=[{"field": "answer", "message": "must be one of the options"}]
        )
    return _settle(tx, row, resolution.disposition, answer=resolution.answer, comment=resolution.comment)


def _how_settled(row: RowMapping) -> str:
    if row["state"] == "answered":
        return "the question was answered before"
    if row["state"] == "declined":
        return "the question was declined before"
    return f"the question was withdrawn: what asked it was stopped ({row['cause'] or 'it has ended'})"


def questions_of_turn(connection: Connection, run_id: str, turn_id: str) -> dict[str, RowMapping]:
    """Call id -> question, of each call of the turn that has asked one, whatever became of it."""
    query = select(questions).where(questions.c.run_id == run_id, questions.c.turn_id == turn_id)
    return {row["call_id"]: row for row in connection.execute(query).mappings()}


def was_told(row: RowMapping) -> bool:
    """Whether there is something to tell the model: it was answered or declined, or nobody did so in time."""
    return row["state"] not in (PENDING, "cancelled")


def answer_calls(
    tx: Transaction, run_id: str, turn_id: str, closing: Collection[Event], history: Collection[dict[str, Any]]
) -> None:
    """An answer that was accepted is the result of its call, also if nobody was there any more to take it up.

    ``closing``: the events that give open calls of the turn a result; ``history``: the messages with those results.
    """
    asked = questions_of_turn(tx.connection, run_id, turn_id) if closing else {}
    for event in closing:
        row = asked.get(str(event.call_id))
        if row is None or not was_told(row):
            continue
        result = result_of(Answered(row["state"], row["answer"], row["comment"]))
        event.data = {"content": result.content, "is_error": result.is_error}
        for message in history:
            if message.get("tool_call_id") == event.call_id:
                message["content"] = result.content
                message.pop("is_error", None)
                message.update({"is_error": True} if result.is_error else {})


# -- for stops and ends --------------------------------------------------------------------


def withdraw_questions(
    tx: Transaction, run_id: str, turn_id: str, cause: str | None,
    goal_ids: Collection[str] | None = None, call_id: str | None = None,
) -> None:  # fmt: skip
    """What is pending of a turn is withdrawn: all of it or, if they are given, what these goals or this call ask.

    ``cause`` is None for a turn that ended by itself.
    """
    query = select(questions).where(
        questions.c.run_id == run_id, questions.c.turn_id == turn_id, questions.c.state == PENDING
    )
    for row in tx.connection.execute(query.order_by(questions.c.id)).mappings().all():
        if goal_ids is None or row["goal_id"] in goal_ids or (call_id is not None and row["call_id"] == call_id):
            _settle(tx, row, "cancelled", cause=cause)


# -- moves ---------------------------------------------------------------------------------


def _settle(tx: Transaction, row: RowMapping, state: str, **columns: Any) -> RowMapping:
    now = time.time()
    tx.connection.execute(
        update(questions)
        .where(questions.c.id == row["id"], questions.c.state == PENDING)
        .values(state=state, settled_at=now, **columns)
    )
    about = {"interrupt_id": row["id"], "disposition": state}
    about |= {name: value for name, value in columns.items() if value is not None}
    tx.emit(_event(row, EventType.INTERRUPTION_RESOLVED, about))
    _follow(tx, row["run_id"])
    return tx.connection.execute(select(questions).where(questions.c.id == row["id"])).mappings().one()


def _follow(tx: Transaction, run_id: str) -> None:
    """Bring the state of the run up to date. A run that is stopping stays so."""
    run = _read_run(tx, run_id)
    if run["state"] not in (RunState.RUNNING, RunState.AWAITING_ANSWER):
        return
    state = RunState.AWAITING_ANSWER if _count_pending(tx, run_id) else RunState.RUNNING
    if state != run["state"]:
        assert may_move(run["state"], state)
        tx.connection.execute(update(runs).where(runs.c.id == run_id).values(state=state))


def _read_run(tx: Transaction, run_id: str) -> RowMapping:
    return tx.connection.execute(select(runs).where(runs.c.id == run_id).with_for_update()).mappings().one()


def _count_pending(tx: Transaction, run_id: str) -> int:
    """Only an open turn has any: its end withdraws them."""
    query = select(func.count()).where(questions.c.run_id == run_id, questions.c.state == PENDING)
    count: int = tx.connection.execute(query).scalar_one()
    return count


def question_of_call(tx: Transaction, run_id: str, call_id: str) -> RowMapping | None:
    """The question that a call has asked, whatever became of it."""
    query = select(questions).where(questions.c.run_id == run_id, questions.c.call_id == call_id).with_for_update()
    return tx.connection.execute(query).mappings().first()


def _is_overdue(row: RowMapping) -> bool:
    return row["expires_at"] is not None and row["expires_at"] <= time.time()


def _event(row: RowMapping | dict[str, Any], event_type: EventType, data: dict[str, Any]) -> Event:
    return Event(row["run_id"], event_type, data, row["turn_id"], row["goal_id"], row["call_id"])
