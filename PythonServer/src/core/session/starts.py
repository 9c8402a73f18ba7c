"""Accepting what a user sends: a new run, or a message to one."""

import hashlib
import time
from typing import Any

from sqlalchemy import RowMapping, insert, select

from core.errors import IdempotencyConflict, NotInteractive, RunIsOver, SessionIsBusy, TurnIsOver
from core.events import Event, EventType
from core.ids import new_id
from core.session.access import Caller, find_run, find_session
from core.session.inbox import add_message, find_duplicate, release_held, take_next
from core.session.queries import live_run_of_session
from core.session.records import NewRun, TurnStart
from core.session.run_state import TERMINAL, RunState
from core.session.turns import mark_delivered, move_run, open_turn
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
        "agent": new.agent, "planning": new.planning, "deadline_ms": new.deadline_ms,
        "on_server_lost": new.on_server_lost, "metadata": new.metadata,
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


def accept_message(
    tx: Transaction, caller: Caller, run_id: str, text: str, if_turn: str | None, client_message_id: str | None
) -> tuple[dict[str, Any], TurnStart | None]:
    """Start a turn with the message, or queue it behind the one that runs. Returns the answer and the turn to run."""
    run = find_run(tx.connection, caller, run_id)
    duplicate = find_duplicate(tx, run_id, client_message_id)
    if duplicate is not None:
        return _answer(duplicate["id"], "duplicate", duplicate["turn_id"]), None
    if run["state"] in TERMINAL:
        raise RunIsOver("start a new run in the same session to go on")
    if if_turn is not None and if_turn != run["turn_id"]:
        raise TurnIsOver()
    if not run["interactive"]:
        raise NotInteractive("a batch run takes no further messages")
    message = add_message(tx, run, text, client_message_id)
    if run["state"] != RunState.AWAITING_INPUT:
        if run["state"] == RunState.STOPPING:
            release_held(tx, run)  # the user has spoken since the stop
        about = {"message_id": message["id"], "text": text}
        tx.emit(Event(run_id, EventType.MESSAGE_QUEUED, about, run["turn_id"]))
        return _answer(message["id"], "queued"), None
    return _start_next(tx, run, message)


def _start_next(
    tx: Transaction, run: RowMapping, message: dict[str, Any]
) -> tuple[dict[str, Any], TurnStart]:
    """The run is parked: start a turn with the oldest message that waits, which may have been kept at a stop."""
    release_held(tx, run)
    first = take_next(tx, run)
    assert first is not None
    start = open_turn(tx, run, first["text"], message_id=first["id"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    mark_delivered(tx, run["id"], first["id"], start.turn_id)
    if first["id"] == message["id"]:
        return _answer(message["id"], "started", start.turn_id), start
    tx.emit(
        Event(run["id"], EventType.MESSAGE_QUEUED, {"message_id": message["id"], "text": message["text"]}, start.turn_id)
    )
    return _answer(message["id"], "queued"), start


def _answer(message_id: str, disposition: str, turn_id: str | None = None) -> dict[str, Any]:
    answer = {"message_id": message_id, "disposition": disposition}
    return answer | ({"turn_id": turn_id} if turn_id is not None else {})
