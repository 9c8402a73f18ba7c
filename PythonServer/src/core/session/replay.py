"""The committed past of runs, on its way to readers: read from the store once for all that catch up together."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from core.session.queries import events_after
from core.store.feed import StoredEvent

#: Events of a page: what a reader that catches up gets at once.
PAGE: Final = 500

#: Bytes of pages that are kept, about, over all runs.
MAX_SIZE: Final = 32 * 1024 * 1024

#: Readers that read from the store at the same time. A crowd of them would keep a stop from the interpreter.
LOADS_AT_ONCE: Final = 4

#: Bytes of an event beside its text, which may be there twice: as JSON and as a frame.
_OVERHEAD: Final = 400

Key = tuple[str, int]


@dataclass(slots=True, frozen=True)
class _Page:
    """Committed events without a gap: perhaps not from the page's beginning on, and perhaps not to its end."""

    events: list[StoredEvent]
    #: ``time.monotonic()`` before the store was asked for what is behind them. What was committed earlier is here.
    asked_at: float

    def behind(self, after: int) -> list[StoredEvent] | None:
        """None if it begins later."""
        if not self.events:
            return []
        start = after + 1 - self.events[0].seq
        return None if start < 0 else self.events[start:]

    @property
    def size(self) -> int:
        return _OVERHEAD + sum(_OVERHEAD + 2 * len(event.json) for event in self.events)


_UNKNOWN: Final = _Page([], -math.inf)


class Replay:
    """Pages of logs, by run and number: page ``n`` has events of ``n * PAGE + 1`` to ``(n + 1) * PAGE``."""

    def __init__(self, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._reading = reading
        self._lock = threading.Lock()
        self._pages: OrderedDict[Key, _Page] = OrderedDict()
        self._size = 0
        # Held while the store is read: who wants the same page waits for it, instead of reading it as well.
        self._gates = [threading.Lock() for _ in range(LOADS_AT_ONCE)]

    def read(self, run_id: str, after: int, joined_at: float) -> list[StoredEvent]:
        """Committed events behind ``after``, ``PAGE`` at most; [] if none was committed before ``joined_at``.

        ``joined_at`` is the ``time.monotonic()`` from which on the reader gets what is committed by the feed.
        """
        number = after // PAGE
        with self._gates[hash(run_id) % LOADS_AT_ONCE]:
            page = self._recall((run_id, number))
            wanted = page.behind(after)
            if wanted is None:
                page = _Page(self._load(run_id, after, page.events[0].seq - 1) + page.events, page.asked_at)
            elif not wanted and page.asked_at < joined_at:
                asked_at = time.monotonic()
                last = page.events[-1].seq if page.events else after
                page = _Page(page.events + self._load(run_id, last, (number + 1) * PAGE), asked_at)
            else:
                return wanted
            self._keep((run_id, number), page)
        return page.behind(after) or []

    def forget(self, run_id: str) -> None:
        """Let go of the pages of a run that nobody reads."""
        with self._lock:
            for key in [key for key in self._pages if key[0] == run_id]:
                self._size -= self._pages.pop(key).size

    def _load(self, run_id: str, after: int, last: int) -> list[StoredEvent]:
        with self._reading() as connection:
            return events_after(connection, run_id, after, last - after)

    def _recall(self, key: Key) -> _Page:
        with self._lock:
            if key not in self._pages:
                return _UNKNOWN
            self._pages.move_to_end(key)
            return self._pages[key]

    def _keep(self, key: Key, page: _Page) -> None:
        with self._lock:
            if key in self._pages:
                self._size -= self._pages.pop(key).size
            self._pages[key] = page
            self._size += page.size
            while self._size > MAX_SIZE:
                self._size -= self._pages.popitem(last=False)[1].size
