"""Messages that wait. Each has an id and one fate: delivered, returned or withdrawn; never lost, never twice."""

import time
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, case, func, insert, select, update

from core.errors import MessageIsSettled, NotFound, QueueFull
from core.events import Event, EventType
from core.ids import new_id
from core.session.run_state import OPEN, RunState
from core.store.commit import Transaction
from core.store.tables import messages

#: More waiting messages than this are refused: nobody reads the answers.
MAX_WAITING: Final = 100

#: The states of a message that has no fate yet; ``held`` since a stop.
WAITING: Final = ("queued", "held")


def find_duplicate(tx: Transaction, run_id: str, client_message_id: str | None) -> RowMapping | None:
    """The message that came to this run with the same ``client_message_id`` before."""
    if client_message_id is None:
        return None
    query = select(messages).where(
        messages.c.run_id == run_id, messages.c.client_message_id == client_message_id
    )
    return tx.connection.execute(query).mappings().first()


def add_message(
    tx: Transaction, run: RowMapping, text: str, client_message_id: str | None = None,
    mode: str = "queue", goal_id: str | None = None, has_room: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Put a message last in the queue. ``QueueFull`` as :func:`check_room`; not if it ``has_room``, whoever came since."""
    waiting, last = _count(tx, run)
    if not has_room:
        _check_count(run, waiting)
    row = {
        "id": new_id("m"), "run_id": run["id"], "session_id": run["session_id"], "number": last + 1,
        "client_message_id": client_message_id, "text": text, "mode": mode, "goal_id": goal_id, "state": "queued",
        "created_at": time.time(),
    }  # fmt: skip
    tx.connection.execute(insert(messages).values(row))
    return row


def check_room(tx: Transaction, run: RowMapping) -> None:
    """``QueueFull`` if too many wait; to a parked run one always may come, since it sets the others going."""
    _check_count(run, _count(tx, run)[0])


def _count(tx: Transaction, run: RowMapping) -> tuple[int, int]:
    """How many wait, and the number of the last message."""
    waiting, last = tx.connection.execute(
        select(
            func.count().filter(messages.c.state.in_(WAITING)),
            func.coalesce(func.max(messages.c.number), 0),
        ).where(messages.c.run_id == run["id"])
    ).one()
    return waiting, last


def _check_count(run: RowMapping, waiting: int) -> None:
    if waiting >= MAX_WAITING and run["state"] != RunState.AWAITING_INPUT:
        error = QueueFull(f"{waiting} messages are waiting already")
        error.headers["Retry-After"] = "5"
        raise error


def queue_once(tx: Transaction, run: RowMapping, text: str) -> None:
    """Queue what a batch run goes on with after a stop of its turn; a repeated stop says it again and adds nothing."""
    waiting = select(messages.c.id).where(
        messages.c.run_id == run["id"], messages.c.state == "queued", messages.c.text == text
    )
    if tx.connection.execute(waiting).first() is not None:
        return
    message = add_message(tx, run, text)
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


def settle_message(
    tx: Transaction, message_id: str, state: str, turn_id: str | None = None, position: int | None = None
) -> None:
    """Give a message its fate; ``position`` is its place among the messages of the turn that it was delivered to."""
    fate = {"state": state, "turn_id": turn_id, "position": position, "settled_at": time.time()}
    tx.connection.execute(update(messages).where(messages.c.id == message_id).values(fate))


# -- at a stop -------------------------------------------------------------------------------


def hold(tx: Transaction, run: RowMapping, policy: str, turn_id: str | None) -> dict[str, Any]:
    """A stop came: what waits is kept for later, handed back, or dropped. ``turn_id`` is the open turn, if any.

    Returns what became of it: ``{policy, kept, returned, withdrawn}``, ids in the order of delivery.
    """
    fates: dict[str, Any] = {"policy": policy, "kept": [], "returned": [], "withdrawn": []}
    if policy == "keep":
        tx.connection.execute(
            update(messages)
            .where(messages.c.run_id == run["id"], messages.c.state == "queued")
            .values(state="held")
        )
        fates["kept"] = [message["id"] for message in _waiting(tx, run)]
    elif policy == "return":
        fates["returned"] = hand_back(tx, run, turn_id)
    else:
        fates["withdrawn"] = _settle_waiting(tx, run, "withdrawn", EventType.MESSAGE_WITHDRAWN, turn_id)
    return fates


def hand_back_rest(tx: Transaction, run: RowMapping, fates: dict[str, Any] | None) -> dict[str, Any]:
    """The stop of the open turn ends the run, too: what it has kept goes back, and what came since. As :func:`hold`."""
    new = hold(tx, run, "return", run["turn_id"])
    if fates is None:
        return new
    return new | {"returned": [*fates["returned"], *new["returned"]], "withdrawn": fates["withdrawn"]}


def hand_back(tx: Transaction, run: RowMapping, turn_id: str | None) -> list[str]:
    """Everything that waits goes back to the user, with its text; its ids. ``turn_id`` is the open turn, if any."""
    return _settle_waiting(tx, run, "returned", EventType.MESSAGE_RETURNED, turn_id)


def _settle_waiting(
    tx: Transaction, run: RowMapping, state: str, event_type: EventType, turn_id: str | None
) -> list[str]:
    waiting = _waiting(tx, run)
    for message in waiting:
        _settle_and_tell(tx, message, state, event_type, turn_id)
    return [message["id"] for message in waiting]


def _settle_and_tell(
    tx: Transaction, message: RowMapping, state: str, event_type: EventType, turn_id: str | None
) -> None:
    settle_message(tx, message["id"], state)
    about = {"message_id": message["id"], "text": message["text"]}
    tx.emit(Event(message["run_id"], event_type, about, turn_id))


def _waiting(tx: Transaction, run: RowMapping) -> Sequence[RowMapping]:
    query = select(messages).where(messages.c.run_id == run["id"], messages.c.state.in_(WAITING))
    return tx.connection.execute(query.order_by(messages.c.number)).mappings().all()


# -- by the user -----------------------------------------------------------------------------


def find_message(connection: Connection, run_id: str, message_id: str) -> RowMapping:
    """A message of the run, whatever became of it, or :class:`NotFound`."""
    query = select(messages).where(messages.c.run_id == run_id, messages.c.id == message_id)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise NotFound("the run has no such message")
    return row


def withdraw(tx: Transaction, run: RowMapping, message_id: str) -> None:
    """Take a message back before it is delivered. Repeating it changes nothing; ``MessageIsSettled`` if it is too late."""
    message = find_message(tx.connection, run["id"], message_id)
    if message["state"] != "withdrawn":
        _check_waits(message)
        _settle_and_tell(tx, message, "withdrawn", EventType.MESSAGE_WITHDRAWN, _open_turn(run))


def move(tx: Transaction, run: RowMapping, message_id: str, position: int) -> None:
    """Put a message at another place among those that wait: 0 is the first, a place beyond the end the last.

    ``MessageIsSettled`` if it does not wait any more.
    """
    _check_waits(find_message(tx.connection, run["id"], message_id))
    new = put_at(tx, run, message_id, position)
    if new is not None:
        about = {"message_id": message_id, "position": new}
        tx.emit(Event(run["id"], EventType.MESSAGE_MOVED, about, _open_turn(run)))


def put_at(tx: Transaction, run: RowMapping, message_id: str, position: int) -> int | None:
    """As :func:`move`, without a word to the readers. The new place; None if it stands there already."""
    waiting = _waiting(tx, run)
    order = [message["id"] for message in waiting]
    old, new = order.index(message_id), min(position, len(order) - 1)
    if new == old:
        return None
    order.insert(new, order.pop(old))
    _renumber(tx, {name: row["number"] for name, row in zip(order, waiting, strict=True) if name != row["id"]})
    return new


def _renumber(tx: Transaction, numbers: dict[str, int]) -> None:
    these = update(messages).where(messages.c.id.in_(numbers))
    # Both databases check row by row that a number is there once, so all of them go out of the way first.
    tx.connection.execute(these.values(number=-messages.c.number))
    tx.connection.execute(these.values(number=case(numbers, value=messages.c.id)))


def _check_waits(message: RowMapping) -> None:
    if message["state"] not in WAITING:
        raise MessageIsSettled(f"it was {message['state']}", state=message["state"])


def _open_turn(run: RowMapping) -> str | None:
    return run["turn_id"] if run["state"] in OPEN else None
