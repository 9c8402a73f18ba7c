"""Taking in a session that was exported elsewhere: one interactive run, parked, whose turns have all ended."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import insert, update

from core.cancellation import CauseWord
from core.errors import InvalidRequest, SessionExists
from core.events import Event, EventType
from core.ids import new_id
from core.plan.goal_status import FINAL, GoalStatus
from core.session.access import Caller, find_session
from core.session.inbox import add_message
from core.session.portable import MessageLine, PastGoal, SessionLine, TurnLine
from core.session.run_state import RunState
from core.session.said import turn_messages
from core.session.turns import TURN_END, read_run
from core.store.commit import Transaction
from core.store.tables import messages, runs, sessions, turns


def take_in(
    tx: Transaction, caller: Caller, session_id: str,
    lines: tuple[SessionLine, list[TurnLine], list[MessageLine]],
) -> dict[str, Any]:  # fmt: skip
    """Make the session, its run, and the log of both, with ids of our own; nothing of it runs."""
    session, past, waiting = lines
    if find_session(tx.connection, caller, session_id) is not None:
        raise SessionExists(session_id=session_id)
    now = time.time()
    tx.connection.execute(
        insert(sessions).values(
            id=session_id, tenant=caller.tenant, owner=caller.sub, title=session.title, created_at=now
        )
    )
    run_id = new_id("r")
    options: dict[str, Any] = {
        "agent": "default", "planning": "auto", "deadline_ms": None, "on_server_lost": "park", "metadata": {}
    }  # fmt: skip
    tx.connection.execute(
        insert(runs).values(
            id=run_id, session_id=session_id, tenant=caller.tenant, owner=caller.sub, interactive=True,
            state=RunState.AWAITING_INPUT, options=options, created_at=now,
        )
    )  # fmt: skip
    about = {"session_id": session_id, "interactive": True, "metadata": {}, "imported": True}
    tx.emit(Event(run_id, EventType.RUN_STARTED, about))
    turn_id = None
    for number, line in enumerate(past, start=1):
        turn_id = _take_turn(tx, run_id, session_id, number, line)
    tx.connection.execute(update(runs).where(runs.c.id == run_id).values(turn_id=turn_id))
    for message in waiting:
        _take_message(tx, run_id, message)
    tx.emit(Event(run_id, EventType.AWAITING_INPUT))
    return {"session_id": session_id, "run_id": run_id, "turns": len(past), "messages": len(waiting)}


def _take_turn(tx: Transaction, run_id: str, session_id: str, number: int, line: TurnLine) -> str:
    turn_id = new_id("t")
    state = "cancelled" if line.state == "open" else line.state
    began = _seconds(line.started_at)
    ended = _seconds(line.ended_at) if line.ended_at else began
    tx.connection.execute(
        insert(turns).values(
            id=turn_id, run_id=run_id, session_id=session_id, number=number, state=state, input=line.input,
            left_out=line.left_out, usage=line.usage.model_dump() if line.usage else None, created_at=began,
            ended_at=ended,
        )
    )  # fmt: skip
    started = Event(run_id, EventType.TURN_STARTED, {"input": line.input, "number": number}, turn_id, at=began)
    if line.history is not None:
        started.data |= line.history.model_dump(exclude_none=True)
        tx.marks.append((turn_id, "history_seq", started))
    tx.emit(started)
    if line.goals:
        goals = [_plain(goal) for goal in line.goals]
        plan = Event(run_id, EventType.PLAN_UPDATED, {"goals": goals, "note": line.note}, turn_id, at=ended)
        tx.emit(plan, mark="plan_seq")
        for goal in _walk(line.goals):
            tx.emit(_final_status(run_id, turn_id, goal, ended))
    tx.emit(Event(run_id, TURN_END[state], _end_data(line, state), turn_id, at=ended), mark="end_seq")
    if line.left_out == "rolled_back":
        tx.emit(Event(run_id, EventType.TURN_ROLLED_BACK, {"rolled_back": turn_id}, at=ended))
    return turn_id


def _end_data(line: TurnLine, state: str) -> dict[str, Any]:
    cause = line.cause or (CauseWord.SERVER_LOST if line.state == "open" else CauseWord.USER)
    said = [message.model_dump(exclude_none=True) for message in line.messages]
    data: dict[str, Any] = {
        "messages": said or turn_messages([], state, cause if state == "cancelled" else None),
        "usage": line.usage.model_dump() if line.usage else None,
    }
    if state == "cancelled":
        receipt = [item.model_dump(exclude_unset=True) for item in line.receipt or ()]
        data |= {"cause": cause, "reason": line.reason, "receipt": receipt}
    return data | ({"error": line.error} if line.error is not None else {})


def _plain(goal: PastGoal) -> dict[str, Any]:
    plain = goal.model_dump(exclude={"result", "goals"})
    return plain | {"goals": [_plain(each) for each in goal.goals]}


def _walk(goals: list[PastGoal]) -> Iterator[PastGoal]:
    for goal in goals:
        yield goal
        yield from _walk(goal.goals)


def _final_status(run_id: str, turn_id: str, goal: PastGoal, ended: float) -> Event:
    status = goal.status if goal.status in FINAL else GoalStatus.CANCELLED
    data: dict[str, Any] = {"status": status}
    for name in ("cause", "error", "result"):
        if getattr(goal, name) is not None:
            data[name] = getattr(goal, name)
    at = _seconds(goal.ended_at) if goal.ended_at else ended
    return Event(run_id, EventType.GOAL_STATUS, data, turn_id, goal.id, at=at)


def _take_message(tx: Transaction, run_id: str, line: MessageLine) -> None:
    row = add_message(tx, read_run(tx, run_id), line.text, None)
    # Held, whatever it was: nothing starts by itself here; the user's next message sets it going.
    tx.connection.execute(update(messages).where(messages.c.id == row["id"]).values(state="held"))
    tx.emit(Event(run_id, EventType.MESSAGE_QUEUED, {"message_id": row["id"], "text": line.text}))


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is no time in ISO 8601") from None
