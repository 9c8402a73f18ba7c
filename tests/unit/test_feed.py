"""Events on their way to readers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from core.events import TURN_ENDS, Event, EventType
from core.store import feed as feed_module
from core.store.feed import FeedHub, Reader, StoredEvent
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, wait_set


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedHub]:
    """A hub whose readers are told of every commit by itself; but see ``gathering``."""
    monkeypatch.setattr(feed_module, "GATHER_S", 0.0)
    monkeypatch.setattr(feed_module, "GATHER_A_READER_S", 0.0)
    hub = FeedHub()
    yield hub
    hub.close()


@pytest.fixture
def gathering(hub: FeedHub, monkeypatch: pytest.MonkeyPatch) -> FeedHub:
    """A hub that tells its readers of what came behind the first commit only after an hour."""
    monkeypatch.setattr(feed_module, "GATHER_S", 3600.0)
    return hub


def _publish(hub: FeedHub, *seqs: int, run_id: str = "r_1", event_type: EventType = EventType.TEXT) -> None:
    new = [Event(run_id, event_type, {"n": seq}, "t_1", seq=seq) for seq in seqs]
    hub.publish(new, [json.dumps(event.data, separators=(",", ":")) for event in new])


def _seqs(batch: list[StoredEvent] | None) -> list[int]:
    assert batch is not None
    return [event.seq for event in batch]


def _reading(reader: Reader, after: int, timeout_s: float = PATIENCE_S) -> Started:
    return Started(lambda: reader.read(after, timeout_s))


def test_the_json_of_an_event_is_its_head_and_its_data_in_one_object() -> None:
    event = Event("r_1", EventType.TEXT, {"text": "é\ud800"}, "t_1", "g", None, at=0.0, seq=7)
    stored = StoredEvent.of(event, json.dumps(event.data, separators=(",", ":")))
    assert json.loads(stored.json) == {
        "seq": 7, "type": "text", "at": "1970-01-01T00:00:00.000Z", "run_id": "r_1", "turn_id": "t_1", "goal_id": "g",
        "text": "é\ud800",
    }  # fmt: skip
    bare = StoredEvent.of(Event("r_1", EventType.AWAITING_INPUT, at=1.0, seq=8), "{}")
    assert set(json.loads(bare.json)) == {"seq", "type", "at", "run_id"}


@pytest.mark.parametrize(
    ("event_type", "ends", "parks"),
    [("run_completed", True, True), ("awaiting_input", False, True), ("turn_completed", False, False)],
)
def test_an_event_knows_whether_something_follows(event_type: str, ends: bool, parks: bool) -> None:
    stored = StoredEvent.of(Event("r_1", EventType(event_type), seq=1), "{}")
    assert (stored.ends_run, stored.parks_run) == (ends, parks)


def test_a_reader_gets_what_was_published_since_it_joined_in_order_and_once(hub: FeedHub) -> None:
    _publish(hub, 1, 2)
    reader = hub.join("r_1")
    _publish(hub, 3)
    _publish(hub, 4, 5)
    batch = reader.read(2, 0)
    assert _seqs(batch) == [3, 4, 5]
    assert _seqs(reader.read(4, 0)) == [5]
    assert reader.read(5, 0) == []


def test_readers_of_other_runs_get_nothing(hub: FeedHub) -> None:
    mine, other = hub.join("r_1"), hub.join("r_2")
    new = [Event(run, EventType.TEXT, seq=seq) for run, seq in (("r_1", 1), ("r_2", 1), ("r_3", 1), ("r_1", 2))]
    hub.publish(new, ["{}"] * 4)
    assert _seqs(mine.read(0, 0)) == [1, 2]
    assert _seqs(other.read(0, 0)) == [1]


def test_readers_of_one_run_share_the_events_themselves(hub: FeedHub) -> None:
    one, other = hub.join("r_1"), hub.join("r_1")
    _publish(hub, 1)
    first, second = one.read(0, 0), other.read(0, 0)
    assert first and second
    assert first[0] is second[0]


def test_a_reader_that_waits_is_woken_by_the_next_event(hub: FeedHub) -> None:
    reader = hub.join("r_1")
    reading = _reading(reader, 0)
    _publish(hub, 1)
    assert _seqs(reading.result()) == [1]


def test_after_a_pause_readers_are_woken_at_once(gathering: FeedHub) -> None:
    reader = gathering.join("r_1")
    _publish(gathering, 1)
    assert _seqs(reader.read(0, PATIENCE_S)) == [1]
    reader._feed._told_at -= 3601
    _publish(gathering, 2)
    assert _seqs(reader.read(1, PATIENCE_S)) == [2]


def test_what_comes_soon_after_is_kept_back_and_told_together(
    hub: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "GATHER_S", 0.2)
    reader = hub.join("r_1")
    _publish(hub, 1)
    _publish(hub, 2)
    _publish(hub, 3)
    assert _seqs(reader.read(0, 0)) == [1]
    assert reader.read(1, 0) == []
    assert _seqs(reader.read(1, PATIENCE_S)) == [2, 3]


@pytest.mark.parametrize("event_type", sorted(TURN_ENDS))
def test_the_end_of_a_turn_is_told_at_once_with_all_before_it(gathering: FeedHub, event_type: EventType) -> None:
    reader = gathering.join("r_1")
    _publish(gathering, 1)
    _publish(gathering, 2)
    assert reader.read(1, 0) == []
    _publish(gathering, 3, event_type=event_type)
    assert _seqs(reader.read(1, 0)) == [2, 3]


def test_a_reader_that_joins_while_events_are_kept_back_gets_them_with_the_others(
    hub: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "GATHER_S", 0.2)
    hub.join("r_1")
    _publish(hub, 1)
    _publish(hub, 2)
    late = hub.join("r_1")
    assert _seqs(late.read(1, PATIENCE_S)) == [2]


def test_a_busy_feed_wakes_its_readers_every_twenty_milliseconds_with_all_that_came(
    hub: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "GATHER_S", 0.02)
    reader = hub.join("r_1")
    stop, wakes, after = threading.Event(), 0, 0

    def publish() -> int:
        seq = 0
        while not stop.wait(0.0005):  # a token stream
            seq += 1
            _publish(hub, seq)
        return seq

    publishing = Started(publish)
    begun = time.monotonic()
    while time.monotonic() - begun < 0.3:
        batch = reader.read(after, PATIENCE_S)
        assert _seqs(batch) == list(range(after + 1, after + len(_seqs(batch)) + 1))
        after += len(_seqs(batch))
        wakes += 1
    took = time.monotonic() - begun
    stop.set()
    assert publishing.result() >= after
    assert wakes <= 2 * (took / 0.02 + 1), "each tick may bring a commit and what was kept back"


def test_nothing_for_the_time_given_is_an_empty_batch(hub: FeedHub) -> None:
    begun = time.monotonic()
    assert hub.join("r_1").read(0, 0.02) == []
    assert time.monotonic() - begun >= 0.02


def test_a_reader_that_fell_too_far_behind_is_told_to_resync(hub: FeedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "FEED_LENGTH", 5)
    reader = hub.join("r_1")
    _publish(hub, *range(1, 6))
    assert _seqs(reader.read(0, 0)) == [1, 2, 3, 4, 5]
    _publish(hub, 6)
    assert _seqs(reader.read(1, 0)) == [2, 3, 4, 5, 6]
    assert reader.read(0, 0) is None


def test_so_is_one_that_is_behind_more_than_the_feed_keeps_in_bytes(
    hub: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = hub.join("r_1")
    _publish(hub, 1)
    monkeypatch.setattr(feed_module, "FEED_SIZE", 3 * reader._feed._size)
    _publish(hub, 2, 3)
    assert _seqs(reader.read(0, 0)) == [1, 2, 3]
    _publish(hub, 4)
    assert reader.read(0, 0) is None
    assert _seqs(reader.read(1, 0)) == [2, 3, 4]
    assert reader._feed._size == sum(len(event.json) for event in reader._feed._events)


def test_one_event_is_kept_however_long_it_is(hub: FeedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "FEED_SIZE", 1)
    reader = hub.join("r_1")
    _publish(hub, 1, 2)
    assert _seqs(reader.read(1, 0)) == [2]


def test_a_reader_that_is_behind_gets_a_bounded_batch_at_once_and_then_the_next(
    gathering: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "BATCH", 4)
    reader = gathering.join("r_1")
    _publish(gathering, *range(1, 11))
    assert [_seqs(reader.read(after, 0)) for after in (0, 4, 8)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert reader.read(10, 0) == []


# -- ends -----------------------------------------------------------------------------------------


def test_the_end_of_a_reader_wakes_it_at_once(hub: FeedHub) -> None:
    waiting = hub.join("r_1")
    reading = _reading(waiting, 0)
    waiting.end()
    assert reading.result() == []
    assert waiting.is_ended


def test_a_reader_that_was_ended_gets_what_was_kept_back_too(gathering: FeedHub) -> None:
    reader = gathering.join("r_1")
    _publish(gathering, 1)
    _publish(gathering, 2)
    reading = _reading(reader, 1)
    reader.end()
    assert _seqs(reading.result()) == [2]


def test_the_end_of_one_reader_does_not_end_the_others(hub: FeedHub) -> None:
    one, other = hub.join("r_1"), hub.join("r_1")
    reading = _reading(other, 0)
    one.end()
    _publish(hub, 1)
    assert _seqs(reading.result()) == [1]


def test_a_reader_that_was_ended_still_gets_what_had_come(hub: FeedHub) -> None:
    reader = hub.join("r_1")
    _publish(hub, 1)
    reader.end()
    assert _seqs(reader.read(0, PATIENCE_S)) == [1]


def test_closing_the_hub_ends_every_reader_and_each_that_comes_later(hub: FeedHub) -> None:
    readers = [hub.join(run) for run in ("r_1", "r_1", "r_2")]
    readings = [_reading(reader, 0) for reader in readers]
    hub.close()
    assert [reading.result() for reading in readings] == [[], [], []]
    late = hub.join("r_3")
    assert late.is_ended
    assert late.read(0, PATIENCE_S) == []


def test_no_feed_is_kept_without_readers(hub: FeedHub) -> None:
    _publish(hub, 1)
    assert hub._feeds == {}
    one, other = hub.join("r_1"), hub.join("r_1")
    assert hub.count_readers() == 2
    one.close()
    assert (hub.count_readers(), len(hub._feeds)) == (1, 1)
    other.close()
    assert (hub.count_readers(), len(hub._feeds)) == (0, 0)
    _publish(hub, 2)


def test_closing_a_reader_again_does_not_cut_off_one_that_came_since(hub: FeedHub) -> None:
    first = hub.join("r_1")
    first.close()
    second = hub.join("r_1")
    first.close()
    _publish(hub, 1)
    assert _seqs(second.read(0, 0)) == [1]
    assert hub.count_readers() == 1


def test_readers_that_come_and_go_while_events_are_published_see_no_gap_and_leave_nothing(hub: FeedHub) -> None:
    committed: list[int] = []
    done = threading.Event()

    def publish() -> None:
        for seq in range(1, 2_001):
            committed.append(seq)  # first durable, then published
            _publish(hub, seq)
        done.set()

    def read(_: int) -> None:
        while not done.is_set():
            reader = hub.join("r_1")
            after = len(committed)
            for _ in range(3):
                batch = reader.read(after, 0.05)
                if not batch:
                    break
                assert _seqs(batch)[0] == after + 1
                after = _seqs(batch)[-1]
            reader.close()

    publishing = Started(publish)
    in_threads(6, read)
    publishing.result()
    wait_set(done)
    assert hub._feeds == {}


def test_the_more_readers_there_are_the_longer_is_gathered_and_a_turns_end_is_told_at_once_all_the_same(
    hub: FeedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "GATHER_A_READER_S", 3600.0)
    readers = [hub.join("r_1") for _ in range(2)]
    _publish(hub, 1)
    _publish(hub, 2)
    assert [_seqs(reader.read(0, 0)) for reader in readers] == [[1], [1]]
    _publish(hub, 3, event_type=EventType.TURN_COMPLETED)
    assert [_seqs(reader.read(1, 0)) for reader in readers] == [[2, 3], [2, 3]]
