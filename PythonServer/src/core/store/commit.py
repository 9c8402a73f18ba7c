"""One commit: a group of events and decisions, numbered, decided and inserted in one transaction of the database."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine, func, insert, select, update
from sqlalchemy.sql.compiler import SQLCompiler

from core.errors import ServerError
from core.events import Event
from core.gates import pause_at
from core.store.database import WRITES
from core.store.tables import events, runs, turns

T = TypeVar("T")

#: Made once: ``json.dumps`` with options of its own builds an encoder a call.
_encode: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode

_COLUMNS: Final = ("run_id", "seq", "type", "at", "turn_id", "goal_id", "call_id", "data")

#: Runs whose numbers are remembered.
MAX_MEMORY: Final = 10_000


class Transaction:
    """What a decision gets: the connection to read and write by, and events to write with it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []
        #: Run id -> its open turn after this transaction, for the fence.
        self.open_turns: dict[str, str | None] = {}
        #: Turn id -> column of ``turns`` that is to hold the seq of one of the events.
        self.marks: list[tuple[str, str, Event]] = []

    def emit(self, event: Event, mark: str | None = None) -> None:
        """Append an event; ``mark`` names the column of its turn's row that remembers its seq."""
        event.at = event.at or time.time()
        self.events.append(event)
        if mark is not None and event.turn_id is not None:
            self.marks.append((event.turn_id, mark, event))


@dataclass(slots=True)
class Decision(Generic[T]):
    """A function that decides within a transaction, and where its answer goes."""

    decide: Callable[[Transaction], T]
    future: Future[T]
    is_begun: bool = False

    def begin(self) -> bool:
        """False if whoever asked took it back; once True, that is no longer possible."""
        self.is_begun = self.is_begun or self.future.set_running_or_notify_cancel()
        return self.is_begun


@dataclass(slots=True)
class _RunMemory:
    next_seq: int
    open_turn: str | None


@dataclass(slots=True)
class Committed:
    """What a commit wrote, for those who wait for it and those who read."""

    rows: list[Event] = field(default_factory=list)
    #: The ``data`` of each row as JSON.
    encoded: list[str] = field(default_factory=list)
    answers: list[tuple[Decision[Any], Any]] = field(default_factory=list)
    refused: list[tuple[Decision[Any], ServerError]] = field(default_factory=list)


class Committer:
    """Writes groups. For one thread: the writer's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(**{WRITES: True})
        self._insert = _EventInsert(engine)
        # Sequence numbers and open turns of the runs written lately; the store has the rest.
        self._memory: dict[str, _RunMemory] = {}

    def commit(self, group: list[Event | Decision[Any]]) -> Committed:
        """Write the group as one; or nothing of it, and raise what kept the store from it.

        A decision that raises a ``ServerError`` is refused: it undoes its own writes only.
        """
        if len(self._memory) > MAX_MEMORY:  # only between groups: what a group has numbered is not in the store yet
            self._memory.clear()
        done = Committed()
        try:
            with self._engine.begin() as connection:
                for item in group:
                    if isinstance(item, Event):
                        self._number(connection, item, done.rows)
                    elif item.begin():
                        self._answer(connection, item, done)
                done.encoded = [_encode(row.data) for row in done.rows]
                if done.rows:
                    self._insert(connection, done.rows, done.encoded)
                pause_at("store.before_commit")
        except BaseException:
            self._memory.clear()  # the numbers given out above were not used
            raise
        return done

    def _answer(self, connection: Connection, item: Decision[Any], done: Committed) -> None:
        try:
            done.answers.append((item, self._decide(connection, item, done.rows)))
        except ServerError as error:
            done.refused.append((item, error))

    def _decide(self, connection: Connection, item: Decision[Any], rows: list[Event]) -> Any:
        with connection.begin_nested():  # a refusal undoes its own writes only
            transaction = Transaction(connection)
            answer = item.decide(transaction)
        for run_id, turn_id in transaction.open_turns.items():
            self._remember(connection, run_id).open_turn = turn_id
        for event in transaction.events:
            memory = self._remember(connection, event.run_id)
            event.seq, memory.next_seq = memory.next_seq, memory.next_seq + 1
            rows.append(event)
        for turn_id, column, event in transaction.marks:
            connection.execute(update(turns).where(turns.c.id == turn_id).values({column: event.seq}))
        return answer

    def _number(self, connection: Connection, event: Event, rows: list[Event]) -> None:
        memory = self._memory.get(event.run_id) or self._remember(connection, event.run_id)
        if event.turn_id is None or event.turn_id != memory.open_turn:
            return  # its turn has ended: nothing of an old turn appears after that
        event.seq, memory.next_seq = memory.next_seq, memory.next_seq + 1
        rows.append(event)

    def _remember(self, connection: Connection, run_id: str) -> _RunMemory:
        memory = self._memory.get(run_id)
        if memory is None:
            last = connection.execute(select(func.max(events.c.seq)).where(events.c.run_id == run_id)).scalar()
            turn_id = connection.execute(
                select(turns.c.id).join(runs, runs.c.turn_id == turns.c.id)
                .where(runs.c.id == run_id, turns.c.state == "open")
            ).scalar()  # fmt: skip
            memory = self._memory[run_id] = _RunMemory((last or 0) + 1, turn_id)
        return memory


class _EventInsert:
    """The insert of events, compiled once: SQLAlchemy's own handling of parameters costs more than the insert."""

    def __init__(self, engine: Engine) -> None:
        compiled = insert(events).compile(dialect=engine.dialect, column_keys=list(_COLUMNS))
        self._sql = str(compiled)
        self._order = compiled.positiontup if isinstance(compiled, SQLCompiler) else None

    def __call__(self, connection: Connection, rows: list[Event], encoded: list[str]) -> None:
        values = [
            (row.run_id, row.seq, row.type.value, row.at, row.turn_id, row.goal_id, row.call_id, data)
            for row, data in zip(rows, encoded, strict=True)
        ]
        if self._order is None:  # a driver with named parameters
            connection.exec_driver_sql(self._sql, [dict(zip(_COLUMNS, row, strict=True)) for row in values])
            return
        assert tuple(self._order) == _COLUMNS
        connection.exec_driver_sql(self._sql, values)
