"""Stores that are filled by code: what a server would have written, without the hours that it would take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.events import Event, EventType
from core.session.access import Caller
from core.session.records import NewRun, TurnOutcome, TurnStart
from core.session.starts import start_run
from core.session.turn_end import end_turn
from core.store.database import open_database
from core.store.feed import FeedHub
from core.store.writer import Writer


class _Alice:
    sub, tenant, session_id = "alice", "default", None


ALICE: Caller = _Alice()
_AT_ONCE = 400


@contextmanager
def open_writer(folder: Path, hub: FeedHub | None = None) -> Iterator[Writer]:
    """A writer over the store of that folder."""
    database = open_database(None, folder)
    writer = Writer(database, hub or FeedHub())
    try:
        yield writer
    finally:
        writer.close()
        database.dispose()


def start(writer: Writer, session_id: str) -> TurnStart:
    """A turn that is open."""
    begun = writer.transact(lambda tx: start_run(tx, ALICE, NewRun("bench", session_id))).result()[1]
    assert begun is not None
    return begun


def say(begun: TurnStart, number: int) -> Event:
    """A piece of text of an open turn, as long as a model's usually are."""
    return Event(begun.run_id, EventType.TEXT, {"text": f"word{number} "}, begun.turn_id, "main")


def fill_run(folder: Path, length: int) -> str:
    """A parked run with so many events in its log; its id."""
    with open_writer(folder) as writer:
        begun = start(writer, "long")
        done = TurnOutcome("completed", [])
        for number in range(length - 4):  # beside run_started, turn_started, turn_completed, awaiting_input
            writer.emit(say(begun, number))
        writer.transact(lambda tx: end_turn(tx, begun.run_id, begun.turn_id, done)).result()
    return begun.run_id


def fill_sessions(folder: Path, count: int, state: str) -> None:
    """So many sessions with one turn each: ``parked``, or ``open`` as after a kill -9."""
    done = TurnOutcome("completed", [{"role": "assistant", "content": "word " * 50}])
    with open_writer(folder) as writer:
        for first in range(0, count, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, count))
            new = [NewRun("bench", f"{state}{number}") for number in numbers]
            futures = [writer.transact(lambda tx, each=each: start_run(tx, ALICE, each)) for each in new]  # type: ignore[misc]
            turns = [turn for _, turn in (future.result() for future in futures) if turn is not None]
            for begun in turns:
                for number in range(10):
                    writer.emit(say(begun, number))
            if state == "parked":
                ends = [writer.transact(lambda tx, t=t: end_turn(tx, t.run_id, t.turn_id, done)) for t in turns]  # type: ignore[misc]
                for end in ends:
                    end.result()
        writer.transact(lambda _: None).result()
