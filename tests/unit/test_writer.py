"""The one writer: groups, decisions, the fence, numbers without gaps, and a store that takes no writes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select, text
from sqlalchemy.exc import OperationalError

from core.errors import NotFound, StoreError
from core.events import Event, EventType
from core.session.records import TurnOutcome, TurnStart
from core.session.turns import begin_turn, end_turn
from core.store import commit as commit_module
from core.store import writer as writer_module
from core.store.commit import Transaction
from core.store.feed import StoredEvent
from core.store.tables import sessions
from core.store.writer import Writer
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, Store, open_store, wait_set
from tests.support.servers import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


def _text(start: TurnStart, words: str) -> Event:
    return Event(start.run_id, EventType.TEXT, {"text": words}, start.turn_id)


def _said(stored: list[StoredEvent]) -> list[str]:
    return [json.loads(each.json)["text"] for each in stored if each.type == "text"]


def _assert_gapless(stored: list[StoredEvent]) -> None:
    assert [each.seq for each in stored] == list(range(1, len(stored) + 1))


def _end(start: TurnStart) -> Callable[[Transaction], Any]:
    outcome = TurnOutcome("completed", [{"role": "assistant", "content": "done"}])
    return lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome)


def _add_session(tx: Transaction, name: str) -> None:
    tx.connection.execute(insert(sessions).values(id=name, tenant="t", owner="o", created_at=0.0))


def _sessions(store: Store) -> set[str]:
    with store.database.connect() as connection:
        return set(connection.execute(select(sessions.c.id)).scalars())


@contextmanager
def _blocked(store: Store) -> Iterator[None]:
    """The writer stands in a decision, so that what is queued meanwhile becomes one group."""
    standing, let_go = threading.Event(), threading.Event()

    def stand(_: Transaction) -> None:
        standing.set()
        wait_set(let_go)

    store.writer.transact(stand)
    wait_set(standing)
    try:
        yield
    finally:
        let_go.set()


@contextmanager
def _failing(store: Store, fails: Callable[[int], bool]) -> Iterator[list[int]]:
    """Commits fail as on a lost disk, where ``fails(number of the commit)`` says so."""
    commits: list[int] = []

    def fail(_: Connection) -> None:
        commits.append(len(commits))
        if fails(commits[-1]):
            raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

    event.listen(store.database, "commit", fail)
    try:
        yield commits
    finally:
        event.remove(store.database, "commit", fail)


# -- groups ------------------------------------------------------------------------------------


def test_what_is_queued_while_a_commit_runs_becomes_one_commit(store: Store) -> None:
    start = store.start()
    with _failing(store, lambda _: False) as commits:
        with _blocked(store):
            for n in range(100):
                store.writer.emit(_text(start, str(n)))
        store.flush()
    assert len(commits) <= 3
    assert _said(store.events(start.run_id)) == [str(n) for n in range(100)]
    _assert_gapless(store.events(start.run_id))


def test_a_group_is_bounded(store: Store) -> None:
    start = store.start()
    with _failing(store, lambda _: False) as commits:
        with _blocked(store):
            for n in range(writer_module.MAX_GROUP * 3):
                store.writer.emit(_text(start, str(n)))
        store.flush()
    assert len(commits) >= 4
    assert len(_said(store.events(start.run_id))) == writer_module.MAX_GROUP * 3


# -- decisions ------------------------------------------------------------------------------------


def test_a_refusal_undoes_its_own_writes_and_events_and_nothing_else_of_its_group(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))

    def refuse(tx: Transaction) -> None:
        _add_session(tx, "refused")
        tx.emit(_text(start, "refused"))
        raise NotFound("no")

    with _blocked(store):
        first = store.writer.transact(lambda tx: _add_session(tx, "first"))
        refused = store.writer.transact(refuse)
        store.writer.emit(_text(start, "kept"))
        last = store.writer.transact(lambda tx: _add_session(tx, "last"))
    assert first.result(PATIENCE_S) is last.result(PATIENCE_S) is None
    with pytest.raises(NotFound):
        refused.result(PATIENCE_S)
    assert _sessions(store) == {"s1", "first", "last"}
    assert _said(store.events(start.run_id)[before:]) == ["kept"]
    _assert_gapless(store.events(start.run_id))
    assert store.writer.is_healthy


def test_a_decision_that_is_at_fault_fails_alone_and_does_not_make_the_store_look_broken(store: Store) -> None:
    def wrong(_: Transaction) -> None:
        raise KeyError("a fault of ours")

    with _blocked(store):
        first = store.writer.transact(lambda tx: _add_session(tx, "first"))
        failed = store.writer.transact(wrong)
    with pytest.raises(KeyError):
        failed.result(PATIENCE_S)
    first.result(PATIENCE_S)
    assert _sessions(store) == {"first"}
    assert store.writer.is_healthy


def test_a_row_that_the_store_refuses_fails_alone(store: Store) -> None:
    with _blocked(store):
        answers = [store.writer.transact(lambda tx, n=n: _add_session(tx, n)) for n in ("a", "b", "a", "c")]  # type: ignore[misc]
    for index, answer in enumerate(answers):
        if index == 2:
            with pytest.raises(StoreError):
                answer.result(PATIENCE_S)
        else:
            answer.result(PATIENCE_S)
    assert _sessions(store) == {"a", "b", "c"}


def test_decisions_are_made_one_after_the_other_each_on_what_the_one_before_wrote(store: Store) -> None:
    def decide(tx: Transaction) -> int:
        count = len(tx.connection.execute(select(sessions.c.id)).all())
        _add_session(tx, str(count))
        return count

    assert sorted(in_threads(20, lambda _: store.decide(decide))) == list(range(20))


def test_a_decision_that_was_taken_back_before_it_began_never_happens(store: Store) -> None:
    with _blocked(store):
        unwanted = store.writer.transact(lambda tx: _add_session(tx, "unwanted"))
        wanted = store.writer.transact(lambda tx: _add_session(tx, "wanted"))
        assert unwanted.cancel()
    wanted.result(PATIENCE_S)
    assert _sessions(store) == {"wanted"}


def test_a_decision_that_has_begun_cannot_be_taken_back(store: Store) -> None:
    standing, let_go = threading.Event(), threading.Event()

    def decide(tx: Transaction) -> None:
        standing.set()
        wait_set(let_go)
        _add_session(tx, "a")

    begun = store.writer.transact(decide)
    wait_set(standing)
    assert not begun.cancel()
    let_go.set()
    begun.result(PATIENCE_S)
    assert _sessions(store) == {"a"}


# -- the fence -------------------------------------------------------------------------------------


def test_events_of_a_turn_that_has_ended_are_dropped(store: Store) -> None:
    start = store.start()
    with _blocked(store):
        store.writer.emit(_text(start, "in time"))
        ended = store.writer.transact(_end(start))
        store.writer.emit(_text(start, "late"))
    ended.result(PATIENCE_S)
    store.writer.emit(_text(start, "later"))
    store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": "of no turn"}))
    store.writer.emit(Event("r_unknown", EventType.TEXT, {"text": "of no run"}, "t_unknown"))
    store.flush()
    stored = store.events(start.run_id)
    assert _said(stored) == ["in time"]
    _assert_gapless(stored)
    assert stored[-1].type == "awaiting_input"


def test_the_fence_holds_for_a_writer_that_remembers_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "MAX_MEMORY", 0)
    starts = [store.start(session_id=f"s{n}") for n in range(5)]
    with _blocked(store):
        for start in starts:
            store.writer.emit(_text(start, "one"))
            store.writer.transact(_end(start))
            store.writer.emit(_text(start, "late"))
    store.flush()
    for start in starts:
        _assert_gapless(store.events(start.run_id))
        assert _said(store.events(start.run_id)) == ["one"]
    assert len(store.writer._committer._memory) <= 5


# -- seen only when committed -------------------------------------------------------------------------


def test_a_reader_that_sees_an_event_can_read_it_from_the_store(store: Store) -> None:
    start = store.start()
    reader = store.hub.join(start.run_id)
    total, before = 400, len(store.events(start.run_id))

    def read() -> int:
        after = before
        seen: list[str] = []
        while len(seen) < total:
            batch = reader.read(after, PATIENCE_S)
            assert batch, "nothing came"
            assert batch[0].seq == after + 1
            stored = {each.seq: each.json for each in store.events(start.run_id)}
            assert all(stored[each.seq] == each.json for each in batch)
            seen += _said(batch)
            after = batch[-1].seq
        assert seen == [str(n) for n in range(total)]
        return after

    reading = Started(read)
    for n in range(total):
        store.writer.emit(_text(start, str(n)))
        if n % 20 == 0:
            store.flush()
    reading.result()


# -- numbers ---------------------------------------------------------------------------------------------


def test_a_group_whose_commit_fails_is_tried_again_one_by_one_and_numbers_have_no_gap(store: Store) -> None:
    start = store.start()
    reader = store.hub.join(start.run_id)
    before = len(store.events(start.run_id))
    with _failing(store, lambda n: n == 1) as commits:  # 0 is the one that blocks, 1 the whole group
        with _blocked(store):
            for n in range(10):
                store.writer.emit(_text(start, str(n)))
            added = store.writer.transact(lambda tx: _add_session(tx, "a"))
        added.result(PATIENCE_S)
    assert len(commits) == 2 + 11
    stored = store.events(start.run_id)
    _assert_gapless(stored)
    assert _said(stored) == [str(n) for n in range(10)]
    assert reader.read(before, PATIENCE_S) is not None
    assert store.writer.is_healthy


def test_what_fails_alone_is_refused_and_its_number_is_given_to_the_next(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    reader = store.hub.join(start.run_id)

    def say(tx: Transaction) -> None:
        tx.emit(_text(start, "refused"))

    with _failing(store, lambda n: n == 0):
        with pytest.raises(StoreError):
            store.decide(say)
        assert not store.writer.is_healthy
        store.writer.emit(_text(start, "next"))
        store.flush()
    assert store.writer.is_healthy
    seen = reader.read(before, PATIENCE_S)
    assert seen is not None
    assert [(each.seq, json.loads(each.json)["text"]) for each in seen] == [(before + 1, "next")]
    assert _said(store.events(start.run_id)) == ["next"]


def test_events_that_the_store_did_not_take_are_kept_and_written_in_order_when_it_does(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    reader = store.hub.join(start.run_id)
    is_down = [True]
    with _failing(store, lambda _: is_down[0]):
        for n in range(5):
            store.writer.emit(_text(start, str(n)))
            with pytest.raises(StoreError):
                store.flush()
        assert store.events(start.run_id)[before:] == []
        assert not store.writer.is_healthy
        is_down[0] = False
        store.writer.emit(_text(start, "5"))
        store.flush()
    assert store.writer.is_healthy
    _assert_gapless(store.events(start.run_id))
    assert _said(store.events(start.run_id)) == [str(n) for n in range(6)]
    seen = reader.read(before, PATIENCE_S)
    assert seen is not None
    assert seen[0].seq == before + 1


def test_kept_events_are_not_overtaken_by_later_ones_of_their_group_that_would_fit(store: Store) -> None:
    start = store.start()
    with _failing(store, lambda n: n in (1, 2)), _blocked(store):  # the group, and its first event alone
        for n in range(4):
            store.writer.emit(_text(start, str(n)))
    store.flush()
    assert _said(store.events(start.run_id)) == ["0", "1", "2", "3"]
    _assert_gapless(store.events(start.run_id))


def test_kept_events_of_a_turn_that_ends_meanwhile_come_before_its_end(store: Store) -> None:
    start = store.start()
    with _failing(store, lambda n: n == 0):
        store.writer.emit(_text(start, "said"))
        store.decide(_end(start))
    assert [each.type for each in store.events(start.run_id)][-3:] == ["text", "turn_completed", "awaiting_input"]


def test_a_decision_is_not_made_before_the_kept_events_that_came_before_it_are_written(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    # 0 is the one that blocks, 1 the group, 2 the event alone, 3 its next try; the decision alone would go through.
    with _failing(store, lambda n: n in (1, 2, 3)):
        with _blocked(store):
            store.writer.emit(_text(start, "said"))
            refused = store.writer.transact(_end(start))
        with pytest.raises(StoreError):
            refused.result(PATIENCE_S)
        assert store.events(start.run_id)[before:] == []
        store.decide(_end(start))
    assert [each.type for each in store.events(start.run_id)[before:]] == ["text", "turn_completed", "awaiting_input"]


def test_what_is_kept_while_the_store_takes_nothing_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "MAX_UNWRITTEN", 3)
    start = store.start()
    writer = Writer(store.database, store.hub)
    is_down = [True]
    with _failing(store, lambda _: is_down[0]):
        for n in range(6):
            writer.emit(_text(start, str(n)))
            with pytest.raises(StoreError):
                writer.transact(lambda tx: None).result(PATIENCE_S)
        is_down[0] = False
    writer.close(PATIENCE_S)
    said = _said(store.events(start.run_id))
    assert said == ["3", "4", "5"]
    assert "is lost" in caplog.text


def test_an_error_of_a_reader_does_not_make_the_writer_write_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = store.start()

    def broken(*_: object) -> None:
        raise RuntimeError("a reader's fault")

    with monkeypatch.context() as patch:
        patch.setattr(store.hub, "publish", broken)
        with _blocked(store):
            store.writer.emit(_text(start, "once"))
            answer = store.writer.transact(lambda tx: _add_session(tx, "a"))
        answer.result(PATIENCE_S)
    store.flush()
    assert _said(store.events(start.run_id)) == ["once"]
    assert "publishing failed" in caplog.text


def test_what_cannot_be_written_as_json_fails_alone(store: Store) -> None:
    start = store.start()
    endless: dict[str, Any] = {}
    endless["itself"] = endless
    with _blocked(store):
        store.writer.emit(_text(start, "one"))
        store.writer.emit(Event(start.run_id, EventType.TEXT, endless, start.turn_id))
        store.writer.emit(_text(start, "two \ud800 \U0001f600"))
    store.flush()
    stored = store.events(start.run_id)
    assert _said(stored) == ["one", "two \ud800 \U0001f600"]
    _assert_gapless(stored)


def test_marks_hold_the_numbers_that_the_events_got(store: Store) -> None:
    start = store.start()
    with _failing(store, lambda n: n == 1), _blocked(store):
        store.writer.emit(_text(start, "one"))
        plan = Event(start.run_id, EventType.PLAN_UPDATED, {"goals": []}, start.turn_id)
        store.writer.transact(lambda tx: tx.emit(plan, mark="plan_seq"))
        store.writer.emit(_text(start, "two"))
    store.flush()
    with store.database.connect() as connection:
        plan_seq = connection.execute(text("SELECT plan_seq FROM turns")).scalar_one()
    assert store.events(start.run_id)[plan_seq - 1].type == "plan_updated"


# -- the end ----------------------------------------------------------------------------------------------


def test_closing_commits_what_is_queued(store: Store) -> None:
    start = store.start()
    with _blocked(store):
        for n in range(1_200):
            store.writer.emit(_text(start, str(n)))
        added = store.writer.transact(lambda tx: _add_session(tx, "a"))
        closing = Started(lambda: store.writer.close(PATIENCE_S))
        wait_until(lambda: store.writer._is_closed, "closing has begun")
    closing.result()
    assert added.result(0) is None
    assert len(_said(store.events(start.run_id))) == 1_200
    store.writer.close(PATIENCE_S)


def test_a_decision_after_the_close_is_refused_at_once_and_an_event_is_dropped(store: Store) -> None:
    start = store.start()
    store.writer.close(PATIENCE_S)
    store.writer.emit(_text(start, "late"))
    with pytest.raises(StoreError, match="shutting down"):
        store.writer.transact(lambda tx: None).result(0)
    assert not store.writer.try_again()


def test_every_decision_that_races_with_the_close_is_answered(store: Store) -> None:
    for _ in range(20):
        writer = Writer(store.database, store.hub)
        answers: list[Future[None]] = []

        def work(index: int, writer: Writer = writer, answers: list[Future[None]] = answers) -> None:
            if index == 0:
                writer.close(PATIENCE_S)
                return
            for _ in range(20):
                answers.append(writer.transact(lambda tx: None))

        in_threads(4, work)
        for answer in answers:
            error = answer.exception(PATIENCE_S)
            assert error is None or isinstance(error, StoreError)


def test_twenty_threads_at_once_lose_nothing_and_leave_no_gap(store: Store) -> None:
    starts = [store.start(session_id=f"s{n}") for n in range(5)]
    for start in starts:
        store.decide(lambda tx, start=start: begin_turn(tx, start.run_id))  # type: ignore[misc]

    def work(number: int) -> int:
        dice = random.Random(number)
        start, decided = starts[number % 5], 0
        for step in range(60):
            store.writer.emit(_text(start, f"{number}.{step}"))
            if dice.random() < 0.1:
                note = Event(start.run_id, EventType.RETRY, {"by": number}, start.turn_id)
                store.decide(lambda tx, note=note: tx.emit(note))  # type: ignore[misc]
                decided += 1
        return decided

    with _failing(store, lambda n: False):
        decided = in_threads(20, work)
    store.flush()
    for index, start in enumerate(starts):
        stored = store.events(start.run_id)
        _assert_gapless(stored)
        said = _said(stored)
        for number in range(index, 20, 5):
            mine = [each for each in said if each.startswith(f"{number}.")]
            assert mine == [f"{number}.{step}" for step in range(60)]
        assert sum(each.type == "retry" for each in stored) == sum(decided[index::5])
