"""Committed events on their way to readers: one shared log a run, however many read it."""

from __future__ import annotations

import math
import threading
import time
from json.encoder import encode_basestring_ascii as quoted
from typing import Final

from core.clock import alarm_clock, iso
from core.events import RUN_ENDS, TURN_ENDS, Event, EventType

#: What a feed keeps for its readers, in events and in characters. One that falls further behind is told to resync.
FEED_LENGTH: Final = 10_000
FEED_SIZE: Final = 16 * 1024 * 1024

#: Events that a reader gets at once: bounds what waits in memory for each client that reads slowly.
BATCH: Final = 500

#: Seconds between two moments at which readers are woken: a thread woken for each event is what breaks at 1,000.
GATHER_S: Final = 0.02
#: The same for each reader, where there are more of them than that allows: else waking them takes a whole core.
GATHER_A_READER_S: Final = 0.0001


class StoredEvent:
    """One committed event. ``json`` is the whole ``data:`` of its frame; ``frame`` is for the HTTP edge to keep."""

    __slots__ = ("frame", "json", "seq", "type")

    def __init__(self, seq: int, event_type: str, text: str) -> None:
        self.seq = seq
        self.type = event_type
        self.json = text
        self.frame: bytes | None = None

    @staticmethod
    def of(event: Event, data: str) -> StoredEvent:
        """From an event and its ``data`` as JSON text."""
        return StoredEvent.of_row(
            event.run_id, event.seq, event.type.value, event.at, event.turn_id, event.goal_id, event.call_id, data
        )

    @staticmethod
    def of_row(
        run_id: str, seq: int, event_type: str, at: float,
        turn_id: str | None, goal_id: str | None, call_id: str | None, data: str,
    ) -> StoredEvent:  # fmt: skip
        """From the columns of its row. Written by hand: this is most of what a replay costs."""
        text = f'{{"seq":{seq},"type":"{event_type}","at":"{iso(at)}","run_id":{quoted(run_id)}'
        if turn_id is not None:
            text += f',"turn_id":{quoted(turn_id)}'
        if goal_id is not None:
            text += f',"goal_id":{quoted(goal_id)}'
        if call_id is not None:
            text += f',"call_id":{quoted(call_id)}'
        return StoredEvent(seq, event_type, text + ("}" if data == "{}" else f",{data[1:]}"))

    @property
    def ends_run(self) -> bool:
        """Whether nothing follows it."""
        return self.type in RUN_ENDS

    @property
    def parks_run(self) -> bool:
        """Whether the run waits or is over after it."""
        return self.type == EventType.AWAITING_INPUT or self.ends_run


class Feed:
    """The newest events of one run, and the readers that wait for more."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.readers: set[Reader] = set()
        #: Guards all that is below, and what the readers wait for.
        self.lock = threading.Lock()
        # A list: a reader takes a slice of its end, for which a deque would be walked from its beginning.
        self._events: list[StoredEvent] = []
        self._size = 0
        # Up to which event the readers were told, and when. What came since is told together.
        self._told = 0
        self._told_at = -math.inf
        self._is_due = False

    def append(self, new: list[StoredEvent]) -> None:
        """Called by the writer, in order. Readers are told at once after a pause, and then at most every 20 ms, a crowd
        of them less often; the end of a turn does not wait for that: somebody looks at a STOP button.
        """
        with self.lock:
            self._events.extend(new)
            self._size += sum(len(event.json) for event in new)
            self._forget_oldest()
            gather_s = max(GATHER_S, GATHER_A_READER_S * len(self.readers))
            pause = self._told_at + gather_s - time.monotonic()
            if pause <= 0 or any(event.type in TURN_ENDS for event in new):
                self._tell()
            elif not self._is_due:
                alarm_clock.after(pause, self._tell_rest)
                self._is_due = True

    def _forget_oldest(self) -> None:
        count = max(0, len(self._events) - FEED_LENGTH)
        self._size -= sum(len(event.json) for event in self._events[:count])
        while self._size > FEED_SIZE and count < len(self._events) - 1:
            self._size -= len(self._events[count].json)
            count += 1
        del self._events[:count]

    def _tell_rest(self) -> None:
        with self.lock:
            self._is_due = False
            self._tell()

    def _tell(self) -> None:
        self._told = self._events[-1].seq
        self._told_at = time.monotonic()
        for reader in tuple(self.readers):
            reader.news.notify()

    def read(self, after: int, reader: Reader, timeout_s: float) -> list[StoredEvent] | None:
        """The events behind ``after``, at most ``BATCH``; [] after ``timeout_s`` or when the reader was ended; None if
        some were lost.
        """
        with self.lock:
            reader.news.wait_for(lambda: reader.is_ended or self._told > after, timeout_s)
            # One that leaves takes with it what there is.
            last = self._events[-1].seq if reader.is_ended and self._events else self._told
            if last <= after:
                return []
            # Sequence numbers have no gaps, so the place is arithmetic.
            first = self._events[0].seq
            start = after + 1 - first
            return None if start < 0 else self._events[start : min(start + BATCH, last + 1 - first)]


class FeedHub:
    """The feeds that have readers. A run that nobody reads costs nothing here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._is_closed = False

    def publish(self, new: list[Event], encoded: list[str]) -> None:
        """Hand committed events, in order, to the feeds of their runs; ``encoded`` is the JSON of each one's data."""
        by_run: dict[str, list[StoredEvent]] = {}
        with self._lock:
            if not self._feeds:
                return
            for event, data in zip(new, encoded, strict=True):
                if event.run_id in self._feeds:
                    by_run.setdefault(event.run_id, []).append(StoredEvent.of(event, data))
            feeds = [(self._feeds[run_id], batch) for run_id, batch in by_run.items()]
        for feed, batch in feeds:
            feed.append(batch)

    def join(self, run_id: str) -> Reader:
        """A reader of the run's events from now on. Close it."""
        with self._lock:
            feed = self._feeds.setdefault(run_id, Feed(run_id))
            reader = Reader(self, feed)
            feed.readers.add(reader)
            is_closed = self._is_closed
        if is_closed:
            reader.end()
        return reader

    def leave(self, reader: Reader, feed: Feed) -> bool:
        """Take the reader out; whether the run has no reader now."""
        with self._lock:
            feed.readers.discard(reader)
            if not feed.readers and self._feeds.get(feed.run_id) is feed:
                del self._feeds[feed.run_id]
            return feed.run_id not in self._feeds

    def count_readers(self) -> int:
        """How many readers there are now."""
        with self._lock:
            return sum(len(feed.readers) for feed in self._feeds.values())

    def close(self) -> None:
        """End every reader, now and from now on: the server is going down."""
        with self._lock:
            self._is_closed = True
            readers = [reader for feed in self._feeds.values() for reader in feed.readers]
        for reader in readers:
            reader.end()


class Reader:
    """One reader's place in a feed."""

    def __init__(self, hub: FeedHub, feed: Feed) -> None:
        self._hub = hub
        self._feed = feed
        self._is_ended = False
        #: Its own, so that the end of one of a thousand readers wakes that one only.
        self.news = threading.Condition(feed.lock)

    @property
    def is_ended(self) -> bool:
        """Whether the client has gone, or the server is going."""
        return self._is_ended

    def read(self, after: int, timeout_s: float) -> list[StoredEvent] | None:
        """See :meth:`Feed.read`."""
        return self._feed.read(after, self, timeout_s)

    def end(self) -> None:
        """Wake the reader and let it end."""
        with self._feed.lock:
            self._is_ended = True
            self.news.notify()

    def close(self) -> bool:
        """Leave the feed; whether the run has no reader now. Harmless if repeated."""
        return self._hub.leave(self, self._feed)
