"""The one writer: commits whatever is queued, then publishes it. Nothing is seen before it is committed.

Every change of the store goes through this thread, as an event (``emit``) or as a function that reads, decides
and writes within one transaction (``transact``). So decisions are made one after the other, on what is committed,
and an event can only be followed by a decision that has seen it. There is no timer: a commit takes as many items
as came in while the one before was written.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from core.errors import ServerError, StoreError
from core.events import Event
from core.store.feed import FeedHub
from core.store.tables import events, runs, turns

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Made once: ``json.dumps`` with options of its own builds an encoder a call.
_encode: Final = json.JSONEncoder(separators=(",", ":"), default=str).encode

_COLUMNS: Final = ("run_id", "seq", "type", "at", "turn_id", "goal_id", "call_id", "data")

#: Items a commit. Bounds how long a stop can wait behind other people's text.
MAX_GROUP: Final = 500

#: Runs whose numbers are remembered.
MAX_MEMORY: Final = 10_000

#: Events that are kept while the store takes no writes; after that the oldest are lost.
MAX_UNWRITTEN: Final = 50_000


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
class _Decision(Generic[T]):
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


class Writer:
    """See the module. Start it once a process; :meth:`close` commits what is queued and ends the thread."""

    def __init__(self, engine: Engine, hub: FeedHub) -> None:
        self._engine = engine
        self._hub = hub
        self._insert = _EventInsert(engine)
        self._queue: queue.SimpleQueue[Event | _Decision[Any] | None] = queue.SimpleQueue()
        # Sequence numbers and open turns of the runs written lately; the store has the rest.
        self._memory: dict[str, _RunMemory] = {}
        # Events that the store did not take, for when it does again: what is streamed is not the caller's to repeat.
        self._unwritten: deque[Event] = deque(maxlen=MAX_UNWRITTEN)
        self._is_healthy = True
        # Held to queue a decision: none may come to lie behind the end, where nobody answers it.
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether the newest commit went through."""
        return self._is_healthy

    def emit(self, event: Event) -> None:
        """Queue an event of an open turn. Dropped if that turn has ended by then: the fence for late results."""
        event.at = time.time()
        self._queue.put(event)

    def transact(self, decide: Callable[[Transaction], T]) -> Future[T]:
        """Queue a decision. The future has its result once it is durable; or its ``ServerError``, or ``StoreError``.

        ``future.cancel()`` takes it back: True means that it never happens, False that it has begun.
        """
        future: Future[T] = Future()
        with self._closing:
            if not self._is_closed:
                self._queue.put(_Decision(decide, future))
                return future
        future.set_exception(StoreError("the server is shutting down"))
        return future

    def try_again(self, timeout_s: float = 2.0) -> bool:
        """Whether the store takes a write now; for when the newest one failed and no other comes along."""
        try:
            self.transact(_write_and_erase).result(timeout_s)
        except (StoreError, TimeoutError):
            return False
        return True

    def close(self, timeout_s: float = 10) -> None:
        """Commit what is queued and stop. Harmless if repeated."""
        with self._closing:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)

    # -- the writer's thread ----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            group, is_last = self._take()
            if self._unwritten and not self._write_kept():
                self._put_off(group)
            elif group:
                self._commit_or_split(group)
            if is_last:
                return

    def _take(self) -> tuple[list[Event | _Decision[Any]], bool]:
        item = self._queue.get()
        group: list[Event | _Decision[Any]] = []
        while item is not None:
            group.append(item)
            if len(group) >= MAX_GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit_or_split(self, group: list[Event | _Decision[Any]]) -> None:
        try:
            tell = self._commit(group)
        except Exception as error:  # full disk, lost connection, an item that the store refuses
            self._is_healthy = not isinstance(error, DBAPIError)
            if len(group) > 1:
                self._commit_each(group)
                return
            log.error("could not write to the store: %s", type(error).__name__)
            item = group[0]
            if isinstance(item, _Decision):
                _fail(item, StoreError() if isinstance(error, SQLAlchemyError) else error)
            elif isinstance(error, OperationalError):
                self._keep(item)
            return
        _run_tell(tell)

    def _commit_each(self, group: list[Event | _Decision[Any]]) -> None:
        for item in group:
            # Nothing may overtake an event that had to be kept: no later one, and no decision that has not seen it.
            if self._unwritten and (isinstance(item, Event) or not self._write_kept()):
                self._put_off([item])
            else:
                self._commit_or_split([item])

    def _put_off(self, group: list[Event | _Decision[Any]]) -> None:
        for item in group:
            if isinstance(item, Event):
                self._keep(item)
            elif item.begin():
                _fail(item, StoreError())

    def _keep(self, event: Event) -> None:
        if len(self._unwritten) == MAX_UNWRITTEN:
            log.error("the store takes no writes; an event of run %s is lost", self._unwritten[0].run_id)
        self._unwritten.append(event)

    def _write_kept(self) -> bool:
        """Write the events that the store did not take before. False if it still does not."""
        while self._unwritten:
            group: list[Event | _Decision[Any]] = list(islice(self._unwritten, MAX_GROUP))
            try:
                tell = self._commit(group)
            except OperationalError:
                self._is_healthy = False
                return False
            except Exception:  # one that the store will never take must not hold up the rest for ever
                log.exception("an event of run %s is lost", self._unwritten.popleft().run_id)
                continue
            for _ in group:
                self._unwritten.popleft()
            _run_tell(tell)
        return True

    def _commit(self, group: list[Event | _Decision[Any]]) -> Callable[[], None]:
        """Returns what tells of the commit."""
        if len(self._memory) > MAX_MEMORY:  # only between groups: what a group has numbered is not in the store yet
            self._memory.clear()
        rows: list[Event] = []
        answers: list[tuple[_Decision[Any], Any]] = []
        refused: list[tuple[_Decision[Any], ServerError]] = []
        try:
            with self._engine.begin() as connection:
                for item in group:
                    if isinstance(item, Event):
                        self._number(connection, item, rows)
                        continue
                    if not item.begin():
                        continue
                    try:
                        answers.append((item, self._decide(connection, item, rows)))
                    except ServerError as error:
                        refused.append((item, error))
                encoded = [_encode(row.data) for row in rows]
                if rows:
                    self._insert(connection, rows, encoded)
        except BaseException:
            self._memory.clear()  # the numbers given out above were not used
            raise
        self._is_healthy = True
        return partial(self._tell, rows, encoded, answers, refused)

    def _tell(
        self, rows: list[Event], encoded: list[str],
        answers: list[tuple[_Decision[Any], Any]], refused: list[tuple[_Decision[Any], ServerError]],
    ) -> None:  # fmt: skip
        try:
            self._hub.publish(rows, encoded)
        finally:
            for decision, answer in answers:
                decision.future.set_result(answer)
            for decision, refusal in refused:
                _fail(decision, refusal)

    def _decide(self, connection: Connection, item: _Decision[Any], rows: list[Event]) -> Any:
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


def _run_tell(tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception:  # what is committed must not be tried again, whatever its readers make of it
        log.exception("telling of a commit failed")


def _write_and_erase(tx: Transaction) -> None:
    """Something that needs space in the store, and leaves nothing there."""
    tx.connection.execute(text("CREATE TABLE writer_check (filler VARCHAR(8000))"))
    tx.connection.execute(text("INSERT INTO writer_check VALUES (:filler)"), {"filler": "x" * 8000})
    tx.connection.execute(text("DROP TABLE writer_check"))


def _fail(decision: _Decision[Any], error: BaseException) -> None:
    decision.future.set_exception(error)


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
