"""The committed past on its way to readers: from the store once, and from memory then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from core.events import Event, EventType
from core.session import replay as replay_module
from core.session.records import TurnStart
from core.session.replay import Replay
from core.store.feed import StoredEvent
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, Store, open_store, wait_set


class Reading:
    """Connections to the store, counted; each first waits until the test lets it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.count = 0
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.fails = False

    @contextmanager
    def __call__(self) -> Iterator[Connection]:
        self.count += 1
        self.begun.set()
        wait_set(self.open)
        if self.fails:
            raise OSError("no store")
        with self.store.database.connect() as connection:
            yield connection


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as store:
        yield store


@pytest.fixture
def reading(store: Store) -> Reading:
    return Reading(store)


@pytest.fixture
def replay(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> Replay:
    monkeypatch.setattr(replay_module, "PAGE", 4)
    return Replay(reading)


def _say(store: Store, start: TurnStart, count: int) -> None:
    for number in range(count):
        store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": f"w{number}"}, start.turn_id))
    store.flush()


def _log(store: Store, length: int, session_id: str = "s1") -> TurnStart:
    """A run with so many events."""
    start = store.start(session_id=session_id)
    _say(store, start, length - len(store.events(start.run_id)))
    return start


def _all(replay: Replay, run_id: str, after: int = 0, joined_at: float | None = None) -> list[StoredEvent]:
    joined_at = time.monotonic() if joined_at is None else joined_at
    found: list[StoredEvent] = []
    while batch := replay.read(run_id, after, joined_at):
        assert 0 < len(batch) <= 4
        found += batch
        after = batch[-1].seq
    return found


def _seqs(events: list[StoredEvent]) -> list[int]:
    return [event.seq for event in events]


@pytest.mark.parametrize("length", [3, 4, 5, 8, 11])
def test_from_every_number_it_is_the_rest_of_the_log_whoever_has_read_before(
    store: Store, reading: Reading, replay: Replay, length: int
) -> None:
    run_id = _log(store, length).run_id
    whole = [event.json for event in store.events(run_id)]
    for first in range(length + 2):
        for after in (first, 0, length + 9):
            assert [event.json for event in _all(replay, run_id, after)] == whole[after:]
        replay.forget(run_id)
    for after in reversed(range(length + 2)):
        assert [event.json for event in _all(replay, run_id, after)] == whole[after:]


def test_a_second_reader_gets_the_same_events_and_reads_nothing_again(
    store: Store, reading: Reading, replay: Replay
) -> None:
    run_id = _log(store, 11).run_id
    joined_at = time.monotonic()
    first = _all(replay, run_id, joined_at=joined_at)
    assert (len(first), reading.count) == (11, 3)
    second = _all(replay, run_id, joined_at=joined_at)
    assert [one is other for one, other in zip(first, second, strict=True)] == [True] * 11
    assert reading.count == 3


def test_a_crowd_that_has_joined_and_wants_the_same_reads_it_once(
    store: Store, reading: Reading, replay: Replay
) -> None:
    run_id = _log(store, 6).run_id
    joined_at = time.monotonic()
    reading.open.clear()
    readers = [Started(lambda: _all(replay, run_id, joined_at=joined_at)) for _ in range(20)]
    wait_set(reading.begun)
    reading.open.set()
    assert [_seqs(reader.result()) for reader in readers] == [[1, 2, 3, 4, 5, 6]] * 20
    assert reading.count == 2


def test_one_that_has_joined_later_sees_what_was_committed_in_between(
    store: Store, reading: Reading, replay: Replay
) -> None:
    start = _log(store, 6)
    early = time.monotonic()
    assert _seqs(_all(replay, start.run_id, joined_at=early)) == [1, 2, 3, 4, 5, 6]
    _say(store, start, 3)
    assert _seqs(_all(replay, start.run_id, 6)) == [7, 8, 9]
    assert _seqs(_all(replay, start.run_id, 6, early)) == [7, 8, 9], "early or not: they are there by now"


def test_what_is_missing_before_a_page_is_read_and_no_more(store: Store, reading: Reading, replay: Replay) -> None:
    run_id = _log(store, 4).run_id
    late = replay.read(run_id, 2, time.monotonic())
    whole = replay.read(run_id, 0, time.monotonic())
    assert (_seqs(late), _seqs(whole)) == ([3, 4], [1, 2, 3, 4])
    assert whole[2:] == late, "the very same events"
    assert reading.count == 2


def test_other_runs_are_other_logs(store: Store, replay: Replay) -> None:
    one, other = _log(store, 6, "s1"), _log(store, 9, "s2")
    for start, length in ((one, 6), (other, 9), (one, 6)):
        found = _all(replay, start.run_id)
        assert _seqs(found) == list(range(1, length + 1))
        assert all(start.run_id in event.json for event in found)


def test_pages_are_kept_within_a_bound_and_the_oldest_go_first(
    store: Store, reading: Reading, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = _log(store, 40).run_id
    joined_at = time.monotonic()
    replay.read(run_id, 36, joined_at)
    monkeypatch.setattr(replay_module, "MAX_SIZE", replay._size * 3.5)
    assert _seqs(_all(replay, run_id, joined_at=joined_at)) == list(range(1, 41))
    assert 0 < replay._size <= replay_module.MAX_SIZE
    assert replay._size == sum(page.size for page in replay._pages.values())
    before = reading.count
    assert _seqs(_all(replay, run_id, 36, joined_at)) == [37, 38, 39, 40]
    assert reading.count == before, "the newest are there"
    replay.read(run_id, 0, joined_at)
    assert reading.count == before + 1, "the oldest had gone"


def test_a_run_that_is_forgotten_leaves_nothing(store: Store, replay: Replay) -> None:
    one, other = _log(store, 9, "s1"), _log(store, 9, "s2")
    _all(replay, one.run_id)
    _all(replay, other.run_id)
    replay.forget(one.run_id)
    assert {run_id for run_id, _ in replay._pages} == {other.run_id}
    replay.forget(other.run_id)
    replay.forget("r_unknown")
    assert (dict(replay._pages), replay._size) == ({}, 0)


def test_a_store_that_fails_is_the_readers_error_and_nobody_waits_behind_it(
    store: Store, reading: Reading, replay: Replay
) -> None:
    run_id = _log(store, 5).run_id
    reading.fails = True
    for _ in range(2):
        with pytest.raises(OSError, match="no store"):
            replay.read(run_id, 0, time.monotonic())
    reading.fails = False
    assert _seqs(_all(replay, run_id)) == [1, 2, 3, 4, 5]


def test_readers_that_come_while_the_run_goes_on_see_no_gap(store: Store, reading: Reading, replay: Replay) -> None:
    start = _log(store, 3)
    done = threading.Event()

    def write() -> None:
        for _ in range(40):
            _say(store, start, 3)
        done.set()

    def read(_: int) -> None:
        while not done.is_set():
            found = _all(replay, start.run_id)
            assert _seqs(found) == list(range(1, len(found) + 1))
            replay.forget(start.run_id)

    writing = Started(write)
    in_threads(6, read, patience_s=2 * PATIENCE_S)
    writing.result()
    assert _seqs(_all(replay, start.run_id)) == list(range(1, 124))
