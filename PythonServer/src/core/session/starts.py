"""Accepting a new run."""

import hashlib
import time
from typing import Any

from sqlalchemy import insert, select

from core.errors import IdempotencyConflict, SessionIsBusy
from core.events import Event, EventType
from core.ids import new_id
from core.session.access import Caller, find_session
from core.session.queries import live_run_of_session
from core.session.records import NewRun, TurnStart
from core.session.run_state import RunState
from core.session.turns import open_turn
from core.store.commit import Transaction
from core.store.tables import idempotency_keys, runs, sessions


def start_run(tx: Transaction, caller: Caller, new: NewRun) -> tuple[dict[str, Any], TurnStart | None]:
    """Make a run with its first turn; the session too, on first use. Returns the answer and the turn to run.

    With an Idempotency-Key that was used before, the earlier answer and no turn.
    """
    earlier = _find_answer(tx, caller, new)
    if earlier is not None:
        return earlier, None
    if find_session(tx.connection, caller, new.session_id) is None:
        tx.connection.execute(
            insert(sessions).values(
                id=new.session_id, tenant=caller.tenant, owner=caller.sub, created_at=time.time()
            )
        )
    live = live_run_of_session(tx.connection, new.session_id)
    if live is not None:
        raise SessionIsBusy("send the message to the live run, or end it first", run_id=live["id"])
    run, start = _insert_run(tx, caller, new)
    answer = {
        "run_id": run["id"], "session_id": new.session_id, "turn_id": start.turn_id, "state": RunState.QUEUED
    }  # fmt: skip
    _keep_answer(tx, caller, new, answer)
    return answer, start


def _insert_run(tx: Transaction, caller: Caller, new: NewRun) -> tuple[dict[str, Any], TurnStart]:
    options = {
        "agent": new.agent, "planning": new.planning, "busy_mode": new.busy_mode, "deadline_ms": new.deadline_ms,
        "idle_limit_ms": new.idle_limit_ms, "on_server_lost": new.on_server_lost, "metadata": new.metadata,
    }  # fmt: skip
    run: dict[str, Any] = {
        "id": new_id("r"), "session_id": new.session_id, "tenant": caller.tenant, "owner": caller.sub,
        "interactive": new.interactive, "state": RunState.QUEUED, "options": options, "created_at": time.time(),
    }  # fmt: skip
    tx.connection.execute(insert(runs).values(run))
    about = {"session_id": new.session_id, "interactive": new.interactive, "metadata": new.metadata}
    started = Event(run["id"], EventType.RUN_STARTED, about | (new.history or {}))
    tx.emit(started)
    start = open_turn(tx, run, new.input, new.plan)
    if new.history is not None:
        tx.marks.append((start.turn_id, "history_seq", started))
    tx.connection.execute(runs.update().where(runs.c.id == run["id"]).values(turn_id=start.turn_id))
    return run, start


def _find_answer(tx: Transaction, caller: Caller, new: NewRun) -> dict[str, Any] | None:
    if new.idempotency_key is None:
        return None
    keys = idempotency_keys.c
    query = select(idempotency_keys).where(
        keys.tenant == caller.tenant, keys.owner == caller.sub, keys.key == _scoped_key(caller, new.idempotency_key)
    )
    row = tx.connection.execute(query).mappings().first()
    if row is None:
        return None
    if row["body_hash"] != new.body_hash:
        raise IdempotencyConflict()
    answer: dict[str, Any] = row["answer"]
    return answer


def _scoped_key(caller: Caller, key: str) -> str:
    """A token that sees one session only must not be answered with another's run."""
    return hashlib.sha256(f"{caller.session_id or ''}\n{key}".encode()).hexdigest()


def _keep_answer(tx: Transaction, caller: Caller, new: NewRun, answer: dict[str, Any]) -> None:
    if new.idempotency_key is not None:
        tx.connection.execute(
            insert(idempotency_keys).values(
                tenant=caller.tenant, owner=caller.sub, key=_scoped_key(caller, new.idempotency_key),
                body_hash=new.body_hash,
                answer=answer, created_at=time.time(),
            )
        )  # fmt: skip
