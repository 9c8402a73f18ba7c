"""A compaction that somebody asks for: a turn of its own, so that it is run, stopped and settled like any other."""

import time
from typing import Any

from sqlalchemy import select, update

from core.events import Event, EventType
from core.session.access import Caller
from core.session.going_back import find_parked
from core.session.records import TurnStart
from core.session.run_state import RunState
from core.session.turns import move_run, open_turn
from core.store.commit import Transaction
from core.store.tables import compactions


def start_compaction(
    tx: Transaction, caller: Caller, run_id: str, if_turn: str | None
) -> tuple[dict[str, Any], TurnStart]:
    """Start a turn that compacts the history. Messages that were kept at a stop wait on: the user said nothing."""
    run, _ = find_parked(tx, caller, run_id, if_turn)
    start = open_turn(tx, run, "", kind="compaction")
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    return {"run_id": run_id, "turn_id": start.turn_id}, start


def undo_compaction(tx: Transaction, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
    """Take back the session's newest compaction in force; the one before it is in force again."""
    run, _ = find_parked(tx, caller, run_id, if_turn)
    query = select(compactions.c.id).where(
        compactions.c.session_id == run["session_id"], compactions.c.undone_at.is_(None)
    )
    newest = tx.connection.execute(query.order_by(compactions.c.last.desc()).limit(1)).scalar()
    if newest is not None:
        tx.connection.execute(update(compactions).where(compactions.c.id == newest).values(undone_at=time.time()))
        tx.emit(Event(run_id, EventType.COMPACTION, {"undone": newest}))
    return {"run_id": run_id, "undone": newest is not None}
