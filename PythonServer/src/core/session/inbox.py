"""Messages that wait. Each has an id and one fate: delivered, returned or withdrawn; never lost, never twice."""

import time
from typing import Any, Final

from sqlalchemy import RowMapping, func, insert, select, update

from core.errors import QueueFull
from core.events import Event, EventType
from core.ids import new_id
from core.session.run_state import RunState
from core.store.commit import Transaction
from core.store.tables import messages

#: More waiting messages than this are refused: nobody reads the answers.
MAX_WAITING: Final = 100


def find_duplicate(tx: Transaction, run_id: str, client_message_id: str | None) -> RowMapping | None:
    """The message that came to this run with the same ``client_message_id`` before."""
    if client_message_id is None:
        return None
    query = select(messages).where(
        messages.c.run_id == run_id, messages.c.client_message_id == client_message_id
    )
    return tx.connection.execute(query).mappings().first()


def add_message(tx: Transaction, run: RowMapping, text: str, client_message_id: str | None) -> dict[str, Any]:
    """Put a message last in the queue. To a parked run it always may come: it is what sets the others going."""
    waiting, last = tx.connection.execute(
        select(
            func.count().filter(messages.c.state.in_(("queued", "held"))),
            func.coalesce(func.max(messages.c.number), 0),
        ).where(messages.c.run_id == run["id"])
    ).one()
    if waiting >= MAX_WAITING and run["state"] != RunState.AWAITING_INPUT:
        error = QueueFull(f"{waiting} messages are waiting already")
        error.headers["Retry-After"] = "5"
        raise error
    row = {
        "id": new_id("m"), "run_id": run["id"], "session_id": run["session_id"], "number": last + 1,
        "client_message_id": client_message_id, "text": text, "state": "queued", "created_at": time.time(),
    }  # fmt: skip
    tx.connection.execute(insert(messages).values(row))
    return row


def queue_once(tx: Transaction, run: RowMapping, text: str) -> None:
    """Queue what a batch run goes on with after a stop of its turn; a repeated stop says it again and adds nothing."""
    waiting = select(messages.c.id).where(
        messages.c.run_id == run["id"], messages.c.state == "queued", messages.c.text == text
    )
    if tx.connection.execute(waiting).first() is not None:
        return
    message = add_message(tx, run, text, None)
    about = {"message_id": message["id"], "text": text}
    tx.emit(Event(run["id"], EventType.MESSAGE_QUEUED, about, run["turn_id"]))


def take_next(tx: Transaction, run: RowMapping) -> RowMapping | None:
    """The first message that may start a turn now; those held since a stop wait for the user's next word."""
    query = select(messages).where(messages.c.run_id == run["id"], messages.c.state == "queued")
    return tx.connection.execute(query.order_by(messages.c.number).limit(1)).mappings().first()


def release_held(tx: Transaction, run: RowMapping | dict[str, Any]) -> None:
    """The user spoke: what was kept at a stop goes before it."""
    tx.connection.execute(
        update(messages)
        .where(messages.c.run_id == run["id"], messages.c.state == "held")
        .values(state="queued")
    )


def settle_message(tx: Transaction, message_id: str, state: str, turn_id: str | None = None) -> None:
    """Give a message its fate."""
    tx.connection.execute(
        update(messages).where(messages.c.id == message_id).values(state=state, turn_id=turn_id)
    )


def hold(tx: Transaction, run: RowMapping, policy: str, turn_id: str | None) -> None:
    """A stop came: what waits is kept for later, handed back, or dropped. ``turn_id`` is the open turn, if any."""
    if policy == "keep":
        tx.connection.execute(
            update(messages)
            .where(messages.c.run_id == run["id"], messages.c.state == "queued")
            .values(state="held")
        )
    elif policy == "return":
        hand_back(tx, run, turn_id)
    else:
        _settle_waiting(tx, run, "withdrawn", EventType.MESSAGE_WITHDRAWN, turn_id)


def hand_back(tx: Transaction, run: RowMapping, turn_id: str | None) -> None:
    """Everything that waits goes back to the user, with its text. ``turn_id`` is the turn that is open, if any."""
    _settle_waiting(tx, run, "returned", EventType.MESSAGE_RETURNED, turn_id)


def _settle_waiting(
    tx: Transaction, run: RowMapping, state: str, event_type: EventType, turn_id: str | None
) -> None:
    query = select(messages).where(messages.c.run_id == run["id"], messages.c.state.in_(("queued", "held")))
    for message in tx.connection.execute(query.order_by(messages.c.number)).mappings().all():
        settle_message(tx, message["id"], state)
        about = {"message_id": message["id"], "text": message["text"]}
        tx.emit(Event(run["id"], event_type, about, turn_id))
