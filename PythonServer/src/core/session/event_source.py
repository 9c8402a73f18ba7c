"""One reader's way through a run's log."""

from __future__ import annotations

import time
from collections.abc import Iterator

from core.session.replay import Replay
from core.store.feed import FeedHub, StoredEvent


class EventSource:
    """The committed past, then what comes. Close it."""

    def __init__(self, hub: FeedHub, replay: Replay, run_id: str, is_over: bool, last_seq: int) -> None:
        """``is_over``: whether the run was in a terminal state just now. If so, the store has the terminal event.
        ``last_seq``: of its newest event just now.
        """
        self._last_seq = last_seq
        self._replay = replay
        self._run_id = run_id
        self._is_over = is_over
        # Joined before the past is read, so that nothing falls in between.
        self.reader = hub.join(run_id)
        self._joined_at = time.monotonic()

    def batches(self, after: int, heartbeat_s: float) -> Iterator[list[StoredEvent] | None]:
        """Batches of events behind ``after``; [] when nothing came for ``heartbeat_s``; None: fell behind, resync.

        Ends after the run's terminal event, at once if that is not behind ``after``; or when the reader is ended.
        """
        after = min(after, self._last_seq)  # one that is not there yet would hide what comes
        while batch := self._replay.read(self._run_id, after, self._joined_at):
            after = batch[-1].seq
            yield batch
            if batch[-1].ends_run:
                return
        while not (self._is_over or self.reader.is_ended):
            news = self.reader.read(after, heartbeat_s)
            yield news
            if news is None or (news and news[-1].ends_run):
                return
            after = news[-1].seq if news else after

    def close(self) -> None:
        """Leave. Harmless if repeated."""
        if self.reader.close():
            self._replay.forget(self._run_id)
