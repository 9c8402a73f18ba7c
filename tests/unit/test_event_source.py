"""One reader's way from the committed past to what comes: nothing left out, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from core.events import Event, EventType
from core.session.event_source import EventSource
from core.store import feed as feed_module
from core.store.feed import FeedHub, StoredEvent


class Log:
    """A run's log: the committed part, and what is said of it to the hub. ``meanwhile`` runs once, behind a read."""

    def __init__(self, hub: FeedHub) -> None:
        self.hub = hub
        self.committed: list[Event] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.forgotten: list[str] = []

    def commit(self, *types: str) -> None:
        for event_type in types:
            self.committed.append(Event("r_1", EventType(event_type), {}, "t_1", seq=len(self.committed) + 1))

    def publish(self, first: int, last: int) -> None:
        new = self.committed[first - 1 : last]
        self.hub.publish(new, [json.dumps(event.data) for event in new])

    def read(self, run_id: str, after: int, joined_at: float) -> list[StoredEvent]:
        found = [StoredEvent.of(event, "{}") for event in self.committed[after : after + 3]]
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return found

    def forget(self, run_id: str) -> None:
        self.forgotten.append(run_id)

    def source(self, is_over: bool = False) -> EventSource:
        return EventSource(self.hub, self, "r_1", is_over, 1 << 30)  # type: ignore[arg-type]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(feed_module, "GATHER_S", 0.0)
    monkeypatch.setattr(feed_module, "GATHER_A_READER_S", 0.0)
    hub = FeedHub()
    yield Log(hub)
    hub.close()


def _seqs(batches: Any) -> list[int]:
    return [event.seq for batch in batches for event in batch]


def test_the_past_comes_in_pages_and_then_what_is_published(log: Log) -> None:
    log.commit(*["text"] * 4)
    batches = log.source().batches(0, 0)
    assert [_seqs([batch]) for batch in islice(batches, 3)] == [[1, 2, 3], [4], []]
    log.commit("text", "run_completed")
    log.publish(5, 6)
    assert [_seqs([batch]) for batch in batches] == [[5, 6]]


@pytest.mark.parametrize("after", range(7))
def test_what_is_committed_between_the_past_and_the_present_is_there_once(log: Log, after: int) -> None:
    log.commit(*["text"] * 4)

    def meanwhile() -> None:
        log.commit("text", "run_completed")
        log.publish(5, 6)

    source = log.source()
    log.meanwhile = meanwhile
    # A reader that is ahead of the log has nothing to get, and the end of the run is behind it.
    assert _seqs(islice(source.batches(after, 0), 4)) == list(range(after + 1, 7))


def test_what_was_committed_before_the_past_was_read_and_published_after_it_is_there_once(log: Log) -> None:
    source = log.source()
    log.commit(*["text"] * 3)
    batches = source.batches(0, 0)
    assert _seqs([next(batches)]) == [1, 2, 3]
    log.publish(1, 3)
    assert _seqs([next(batches)]) == []
    log.commit("run_cancelled")
    log.publish(4, 4)
    assert _seqs(batches) == [4]


def test_one_that_falls_behind_once_it_has_caught_up_is_told_so_and_ends(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "FEED_LENGTH", 2)
    log.commit("text")
    batches = log.source().batches(0, 0)
    assert _seqs([next(batches)]) == [1]
    assert _seqs([next(batches)]) == []
    log.commit(*["text"] * 3)
    log.publish(2, 4)
    assert list(batches) == [None]


def test_one_that_has_not_caught_up_reads_on_from_the_store_however_fast_the_run_is(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "FEED_LENGTH", 2)
    log.commit(*["text"] * 3)
    batches = log.source().batches(0, 0)
    assert _seqs([next(batches)]) == [1, 2, 3]
    log.commit(*["text"] * 6, "run_failed")
    log.publish(4, 10)
    assert _seqs(batches) == list(range(4, 11))


@pytest.mark.parametrize("after", [2, 3, 9])
def test_the_log_of_a_run_that_is_over_ends_at_once(log: Log, after: int) -> None:
    log.commit("text", "text", "run_completed")
    assert _seqs(log.source(is_over=True).batches(after, 0)) == [3][: 3 - after]


def test_a_reader_that_was_ended_ends_with_what_there_is(log: Log) -> None:
    log.commit("text")
    source = log.source()
    batches = source.batches(0, 3600)
    next(batches)
    source.reader.end()
    assert _seqs(batches) == []


def test_the_last_one_who_leaves_has_the_past_forgotten(log: Log) -> None:
    one, other = log.source(), log.source()
    one.close()
    assert log.forgotten == []
    other.close()
    assert log.forgotten == ["r_1"]
    assert log.hub.count_readers() == 0
