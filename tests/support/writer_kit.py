"""What the tests of the writer share: what is written and read, a writer that stands still, commits that fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import OperationalError

from core.events import Event, EventType
from core.session.records import TurnOutcome, TurnStart
from core.session.turn_end import end_turn
from core.store.commit import Transaction
from core.store.feed import StoredEvent
from core.store.tables import sessions
from tests.support.core_kit import Store, wait_set


def text_event(start: TurnStart, words: str) -> Event:
    """A text of the turn."""
    return Event(start.run_id, EventType.TEXT, {"text": words}, start.turn_id)


def texts_of(stored: list[StoredEvent]) -> list[str]:
    """The texts among these events."""
    return [json.loads(each.json)["text"] for each in stored if each.type == "text"]


def assert_gapless(stored: list[StoredEvent]) -> None:
    """The events are numbered from 1 on, with none missing."""
    assert [each.seq for each in stored] == list(range(1, len(stored) + 1))


def ending(start: TurnStart) -> Callable[[Transaction], Any]:
    """The decision that ends the turn as completed."""
    outcome = TurnOutcome("completed", [{"role": "assistant", "content": "done"}])
    return lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome)


def add_session(tx: Transaction, name: str) -> None:
    """Write a row that a decision is told by."""
    tx.connection.execute(insert(sessions).values(id=name, tenant="t", owner="o", created_at=0.0))


def sessions_in(store: Store) -> set[str]:
    """Ids of the committed sessions."""
    with store.database.connect() as connection:
        return set(connection.execute(select(sessions.c.id)).scalars())


@contextmanager
def blocked(store: Store) -> Iterator[None]:
    """The writer stands in a decision, so that what is queued meanwhile becomes one group."""
    standing, let_go = threading.Event(), threading.Event()

    def stand(_: Transaction) -> None:
        standing.set()
        wait_set(let_go)

    store.writer.transact(stand)
    wait_set(standing)
    try:
        yield
    finally:
        let_go.set()


@contextmanager
def failing(store: Store, fails: Callable[[int], bool]) -> Iterator[list[int]]:
    """Commits fail as on a lost disk, where ``fails(number of the commit)`` says so."""
    commits: list[int] = []

    def fail(_: Connection) -> None:
        commits.append(len(commits))
        if fails(commits[-1]):
            raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

    event.listen(store.database, "commit", fail)
    try:
        yield commits
    finally:
        event.remove(store.database, "commit", fail)
