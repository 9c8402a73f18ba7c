"""The one writer: commits whatever is queued, then publishes it. Nothing is seen before it is committed.

Every change of the store goes through this thread, as an event (``emit``) or as a function that reads, decides
and writes within one transaction (``transact``). So decisions are made one after the other, on what is committed,
and an event can only be followed by a decision that has seen it. There is no timer: a commit takes as many items
as came in while the one before was written.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from core.errors import StoreError
from core.events import Event
from core.store.commit import Committed, Committer, Decision, Transaction
from core.store.database import is_busy
from core.store.feed import FeedHub

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Items a commit. Bounds how long a stop can wait behind other people's text.
MAX_GROUP: Final = 500

#: Events that are kept while the store takes no writes; after that the oldest are lost.
MAX_UNWRITTEN: Final = 50_000


class Writer:
    """See the module. Start it once a process; :meth:`close` commits what is queued and ends the thread."""

    def __init__(self, engine: Engine, hub: FeedHub) -> None:
        self._hub = hub
        self._committer = Committer(engine)
        self._queue: queue.SimpleQueue[Event | Decision[Any] | None] = queue.SimpleQueue()
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
                self._queue.put(Decision(decide, future))
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

    def _take(self) -> tuple[list[Event | Decision[Any]], bool]:
        item = self._queue.get()
        group: list[Event | Decision[Any]] = []
        while item is not None:
            group.append(item)
            if len(group) >= MAX_GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit_or_split(self, group: list[Event | Decision[Any]]) -> None:
        try:
            done = self._commit(group)
        except Exception as error:  # full disk, lost connection, an item that the store refuses
            self._is_healthy = not isinstance(error, DBAPIError)
            if len(group) > 1:
                if is_busy(error):  # it is no item's fault, and each alone would wait for the lock once more
                    self._put_off(group)
                else:
                    self._commit_each(group)
                return
            log.error("could not write to the store: %s", type(error).__name__)
            item = group[0]
            if isinstance(item, Decision):
                item.future.set_exception(StoreError() if isinstance(error, SQLAlchemyError) else error)
            elif isinstance(error, OperationalError):
                self._keep(item)
            return
        self._tell(done)

    def _commit_each(self, group: list[Event | Decision[Any]]) -> None:
        for item in group:
            # Nothing may overtake an event that had to be kept: no later one, and no decision that has not seen it.
            if self._unwritten and (isinstance(item, Event) or not self._write_kept()):
                self._put_off([item])
            else:
                self._commit_or_split([item])

    def _put_off(self, group: list[Event | Decision[Any]]) -> None:
        for item in group:
            if isinstance(item, Event):
                self._keep(item)
            elif item.begin():
                item.future.set_exception(StoreError())

    def _keep(self, event: Event) -> None:
        if len(self._unwritten) == MAX_UNWRITTEN:
            log.error("the store takes no writes; an event of run %s is lost", self._unwritten[0].run_id)
        self._unwritten.append(event)

    def _write_kept(self) -> bool:
        """Write the events that the store did not take before. False if it still does not."""
        while self._unwritten:
            group: list[Event | Decision[Any]] = list(islice(self._unwritten, MAX_GROUP))
            try:
                done = self._commit(group)
            except OperationalError:
                self._is_healthy = False
                return False
            except Exception:  # one that the store will never take must not hold up the rest for ever
                log.exception("an event of run %s is lost", self._unwritten.popleft().run_id)
                continue
            for _ in group:
                self._unwritten.popleft()
            self._tell(done)
        return True

    def _commit(self, group: list[Event | Decision[Any]]) -> Committed:
        done = self._committer.commit(group)
        self._is_healthy = True
        return done

    def _tell(self, done: Committed) -> None:
        """Those who read, then those who wait: an answer is never ahead of the log."""
        try:
            self._hub.publish(done.rows, done.encoded)
        except Exception:  # what is committed must not be tried again, whatever its readers make of it
            log.exception("publishing failed")
        for decision, answer in done.answers:
            decision.future.set_result(answer)
        for decision, refusal in done.refused:
            decision.future.set_exception(refusal)


def _write_and_erase(tx: Transaction) -> None:
    """Something that needs space in the store, and leaves nothing there."""
    tx.connection.execute(text("CREATE TABLE writer_check (filler VARCHAR(8000))"))
    tx.connection.execute(text("INSERT INTO writer_check VALUES (:filler)"), {"filler": "x" * 8000})
    tx.connection.execute(text("DROP TABLE writer_check"))

