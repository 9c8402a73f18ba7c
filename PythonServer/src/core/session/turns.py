"""The moves of the state machine, each one decision inside a transaction of the one writer: a turn begins.

Every function takes the transaction first. It reads what is committed, decides, writes rows and events together,
and raises a ``ServerError`` to undo all of it. Nothing else changes the state of a run. The other moves:
:mod:`core.session.stop_moves`, :mod:`core.session.turn_end`, :mod:`core.session.going_back` and
:mod:`core.session.compaction_moves`.
"""

import time
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, update

from core.errors import TurnIsOver
from core.events import Event, EventType
from core.ids import new_id
from core.session.inbox import hand_back, release_held
from core.session.records import StopOrder, TurnStart
from core.session.run_state import OPEN, TERMINAL, RunState, may_move
from core.store.commit import Transaction
from core.store.tables import runs, turns

_RUN_END = {
    RunState.COMPLETED: EventType.RUN_COMPLETED,
    RunState.CANCELLED: EventType.RUN_CANCELLED,
    RunState.FAILED: EventType.RUN_FAILED,
}


def read_run(tx: Transaction, run_id: str) -> RowMapping:
    """The run's row, locked where the database can lock rows."""
    query = select(runs).where(runs.c.id == run_id).with_for_update()
    return tx.connection.execute(query).mappings().one()


def read_turn(tx: Transaction, turn_id: str) -> RowMapping:
    """The turn's row."""
    return tx.connection.execute(select(turns).where(turns.c.id == turn_id)).mappings().one()


def move_run(tx: Transaction, run: RowMapping | dict[str, Any], state: RunState, **columns: Any) -> None:
    """Change the state of a run, by the table."""
    if not may_move(run["state"], state):
        raise AssertionError(f"no move from {run['state']} to {state}")
    if state in TERMINAL:
        columns["ended_at"] = time.time()
    tx.connection.execute(update(runs).where(runs.c.id == run["id"]).values(state=state, **columns))


def end_run(
    tx: Transaction, run: RowMapping, state: RunState, order: StopOrder | None, error: str | None = None
) -> None:
    """End the run itself, with its terminal event; what waits goes back to its senders."""
    hand_back(tx, run, None)
    move_run(tx, run, state)
    data: dict[str, Any] = {}
    if order is not None:
        data |= {"cause": order.cause.word, "reason": order.cause.reason}
    if error is not None:
        data["error"] = error
    tx.emit(Event(run["id"], _RUN_END[state], data))


def emit_in_turn(tx: Transaction, event: Event, mark: str | None = None) -> None:
    """Append an event to an open turn; ``TurnIsOver`` if it is not: nothing of a turn follows its end."""
    run = read_run(tx, event.run_id)
    if run["turn_id"] != event.turn_id or run["state"] not in OPEN:
        raise TurnIsOver()
    tx.emit(event, mark=mark)


# -- a turn begins -----------------------------------------------------------------------


def open_turn(
    tx: Transaction, run: RowMapping | dict[str, Any], text: str,
    spec: dict[str, Any] | None = None, message_id: str | None = None, resumes: str | None = None,
    kind: str = "message",
) -> TurnStart:  # fmt: skip
    """Record an accepted message as a turn. The caller moves the run to ``queued`` with this turn's id.

    A turn of another ``kind`` is no part of the transcript.
    """
    number = tx.connection.execute(
        select(func.coalesce(func.max(turns.c.number), 0) + 1).where(turns.c.session_id == run["session_id"])
    ).scalar_one()
    turn_id = new_id("t")
    tx.connection.execute(
        insert(turns).values(
            id=turn_id, run_id=run["id"], session_id=run["session_id"], number=number, state="open",
            input=text, spec=spec, resumes=resumes, created_at=time.time(),
            left_out=None if kind == "message" else kind,
        )
    )  # fmt: skip
    data = {"input": text, "number": number} | ({"message_id": message_id} if message_id else {})
    data |= {"kind": kind} if kind != "message" else {}
    tx.emit(Event(run["id"], EventType.TURN_STARTED, data, turn_id))
    tx.open_turns[run["id"]] = turn_id
    return TurnStart(
        run["id"], run["session_id"], turn_id, text, bool(run["interactive"]), run["options"], spec, resumes, kind
    )


def start_of(run: RowMapping, turn: RowMapping) -> TurnStart:
    """An accepted turn as it was recorded."""
    return TurnStart(
        run["id"], run["session_id"], turn["id"], turn["input"], bool(run["interactive"]), run["options"],
        turn["spec"], turn["resumes"], kind_of(turn),
    )  # fmt: skip


def kind_of(turn: RowMapping) -> str:
    """``message`` or ``compaction``, as in :class:`TurnStart`."""
    return "compaction" if turn["left_out"] == "compaction" else "message"


def resume_turn(tx: Transaction, run: RowMapping | dict[str, Any], old: RowMapping) -> TurnStart:
    """A new turn in the place of one that did not come to its end: it takes over the goals that did.

    The old one is left out of the transcript from now on, and stays in the log. Moves the run to ``queued``.
    """
    leave_out(tx, old["id"], "resumed")
    start = open_turn(tx, run, old["input"], old["spec"], resumes=old["id"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    tx.emit(Event(run["id"], EventType.TURN_RESUMED, {"resumes": old["id"]}, start.turn_id))
    release_held(tx, run)  # behind it, as they were behind the turn that was stopped
    return start


def leave_out(tx: Transaction, turn_id: str, why: str) -> None:
    """Take a turn that has ended out of the transcript: ``rolled_back`` or ``resumed``."""
    tx.connection.execute(update(turns).where(turns.c.id == turn_id).values(left_out=why))


def begin_turn(tx: Transaction, run_id: str) -> StopOrder | None:
    """The engine starts to work on the open turn. A stop that came first is returned, and stays the turn's stop."""
    run = read_run(tx, run_id)
    if run["state"] == RunState.STOPPING:
        return StopOrder.from_json(read_turn(tx, run["turn_id"])["stop"])
    if run["state"] == RunState.QUEUED:  # else an earlier server began it, and this one takes it up
        move_run(tx, run, RunState.RUNNING)
    return None
