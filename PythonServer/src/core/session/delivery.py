"""How a message that came to a turn at work goes into it: one decision of the writer, beside a stop and a withdrawal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update

from core.errors import TurnIsOver
from core.events import Event, EventType
from core.session.run_state import OPEN, RunState
from core.store.commit import Transaction
from core.store.tables import messages, runs


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was accepted for a turn at work, and waits there for the next request of a model."""

    id: str
    text: str
    #: ``steer`` or ``redirect``.
    mode: str
    #: The goal that it is for; None: all.
    goal_id: str | None = None


#: The modes of messages that go into the turn that runs, if it asks a model once more.
STEERING = ("steer", "redirect")


def deliver(tx: Transaction, run_id: str, turn_id: str, letter: Letter, places: list[dict[str, Any]]) -> None:
    """The message has its fate: it is in the turn. ``TurnIsOver`` if a stop, its end, or a withdrawal came first.

    ``places``: ``{goal_id, round, cut}`` for each goal that asks a model now, with the number of the round from which on
    its model has the message, and whether an answer was cut off before; goals that begin later find it in their history.
    """
    run = tx.connection.execute(select(runs).where(runs.c.id == run_id).with_for_update()).mappings().one()
    if run["turn_id"] != turn_id or run["state"] not in OPEN or run["state"] == RunState.STOPPING:
        raise TurnIsOver()
    last = select(func.coalesce(func.max(messages.c.position), 0)).where(messages.c.turn_id == turn_id)
    position = tx.connection.execute(last).scalar_one() + 1
    settled = tx.connection.execute(
        update(messages)
        .where(messages.c.id == letter.id, messages.c.state == "queued")
        .values(state="delivered", turn_id=turn_id, position=position, settled_at=time.time())
    )
    if not settled.rowcount:
        raise TurnIsOver("the message does not wait any more")
    about = {
        "message_id": letter.id, "text": letter.text, "mode": letter.mode, "position": position, "goals": places
    }  # fmt: skip
    tx.emit(Event(run_id, EventType.MESSAGE_DELIVERED, about, turn_id))


def has_been_told(tx: Transaction, turn_id: str) -> bool:
    """Whether a message went into the turn while it was at work."""
    query = select(messages.c.id).where(messages.c.turn_id == turn_id, messages.c.position > 0)
    return tx.connection.execute(query.limit(1)).first() is not None


def letters_for_turn(tx: Transaction, run_id: str) -> list[Letter]:
    """What waits to go into the turn that begins now; it may have come before this server knew the turn."""
    query = select(messages).where(
        messages.c.run_id == run_id, messages.c.state == "queued", messages.c.mode.in_(STEERING)
    )
    rows = tx.connection.execute(query.order_by(messages.c.number)).mappings()
    return [Letter(row["id"], row["text"], row["mode"], row["goal_id"]) for row in rows]
