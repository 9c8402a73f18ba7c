"""The one writer: groups, decisions, the fence, what is seen only when committed, and the end."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest
from sqlalchemy import select

from core.errors import NotFound, StoreError
from core.events import Event, EventType
from core.session.turns import begin_turn
from core.store import commit as commit_module
from core.store import writer as writer_module
from core.store.commit import Transaction
from core.store.tables import sessions
from core.store.writer import Writer
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, Store, wait_set
from tests.support.servers import wait_until
from tests.support.writer_kit import (
    add_session,
    assert_gapless,
    blocked,
    ending,
    failing,
    sessions_in,
    text_event,
    texts_of,
)

# -- groups ------------------------------------------------------------------------------------


def test_what_is_queued_while_a_commit_runs_becomes_one_commit(store: Store) -> None:
    start = store.start()
    with failing(store, lambda _: False) as commits:
        with blocked(store):
            for n in range(100):
                store.writer.emit(text_event(start, str(n)))
        store.flush()
    assert len(commits) <= 3
    assert texts_of(store.events(start.run_id)) == [str(n) for n in range(100)]
    assert_gapless(store.events(start.run_id))


def test_a_group_is_bounded(store: Store) -> None:
    start = store.start()
    with failing(store, lambda _: False) as commits:
        with blocked(store):
            for n in range(writer_module.MAX_GROUP * 3):
                store.writer.emit(text_event(start, str(n)))
        store.flush()
    assert len(commits) >= 4
    assert len(texts_of(store.events(start.run_id))) == writer_module.MAX_GROUP * 3


# -- decisions ------------------------------------------------------------------------------------


def test_a_refusal_undoes_its_own_writes_and_events_and_nothing_else_of_its_group(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))

    def refuse(tx: Transaction) -> None:
        add_session(tx, "refused")
        tx.emit(text_event(start, "refused"))
        raise NotFound("no")

    with blocked(store):
        first = store.writer.transact(lambda tx: add_session(tx, "first"))
        refused = store.writer.transact(refuse)
        store.writer.emit(text_event(start, "kept"))
        last = store.writer.transact(lambda tx: add_session(tx, "last"))
    assert first.result(PATIENCE_S) is last.result(PATIENCE_S) is None
    with pytest.raises(NotFound):
        refused.result(PATIENCE_S)
    assert sessions_in(store) == {"s1", "first", "last"}
    assert texts_of(store.events(start.run_id)[before:]) == ["kept"]
    assert_gapless(store.events(start.run_id))
    assert store.writer.is_healthy


def test_a_decision_that_is_at_fault_fails_alone_and_does_not_make_the_store_look_broken(store: Store) -> None:
    def wrong(_: Transaction) -> None:
        raise KeyError("a fault of ours")

    with blocked(store):
        first = store.writer.transact(lambda tx: add_session(tx, "first"))
        failed = store.writer.transact(wrong)
    with pytest.raises(KeyError):
        failed.result(PATIENCE_S)
    first.result(PATIENCE_S)
    assert sessions_in(store) == {"first"}
    assert store.writer.is_healthy


def test_a_row_that_the_store_refuses_fails_alone(store: Store) -> None:
    with blocked(store):
        answers = [store.writer.transact(lambda tx, n=n: add_session(tx, n)) for n in ("a", "b", "a", "c")]  # type: ignore[misc]
    for index, answer in enumerate(answers):
        if index == 2:
            with pytest.raises(StoreError):
                answer.result(PATIENCE_S)
        else:
            answer.result(PATIENCE_S)
    assert sessions_in(store) == {"a", "b", "c"}


def test_decisions_are_made_one_after_the_other_each_on_what_the_one_before_wrote(store: Store) -> None:
    def decide(tx: Transaction) -> int:
        count = len(tx.connection.execute(select(sessions.c.id)).all())
        add_session(tx, str(count))
        return count

    assert sorted(in_threads(20, lambda _: store.decide(decide))) == list(range(20))


def test_a_decision_that_was_taken_back_before_it_began_never_happens(store: Store) -> None:
    with blocked(store):
        unwanted = store.writer.transact(lambda tx: add_session(tx, "unwanted"))
        wanted = store.writer.transact(lambda tx: add_session(tx, "wanted"))
        assert unwanted.cancel()
    wanted.result(PATIENCE_S)
    assert sessions_in(store) == {"wanted"}


def test_a_decision_that_has_begun_cannot_be_taken_back(store: Store) -> None:
    standing, let_go = threading.Event(), threading.Event()

    def decide(tx: Transaction) -> None:
        standing.set()
        wait_set(let_go)
        add_session(tx, "a")

    begun = store.writer.transact(decide)
    wait_set(standing)
    assert not begun.cancel()
    let_go.set()
    begun.result(PATIENCE_S)
    assert sessions_in(store) == {"a"}


# -- the fence -------------------------------------------------------------------------------------


def test_events_of_a_turn_that_has_ended_are_dropped(store: Store) -> None:
    start = store.start()
    with blocked(store):
        store.writer.emit(text_event(start, "in time"))
        ended = store.writer.transact(ending(start))
        store.writer.emit(text_event(start, "late"))
    ended.result(PATIENCE_S)
    store.writer.emit(text_event(start, "later"))
    store.writer.emit(Event(start.run_id, EventType.TEXT, {"text": "of no turn"}))
    store.writer.emit(Event("r_unknown", EventType.TEXT, {"text": "of no run"}, "t_unknown"))
    store.flush()
    stored = store.events(start.run_id)
    assert texts_of(stored) == ["in time"]
    assert_gapless(stored)
    assert stored[-1].type == "awaiting_input"


def test_the_fence_holds_for_a_writer_that_remembers_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "MAX_MEMORY", 0)
    starts = [store.start(session_id=f"s{n}") for n in range(5)]
    with blocked(store):
        for start in starts:
            store.writer.emit(text_event(start, "one"))
            store.writer.transact(ending(start))
            store.writer.emit(text_event(start, "late"))
    store.flush()
    for start in starts:
        assert_gapless(store.events(start.run_id))
        assert texts_of(store.events(start.run_id)) == ["one"]
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
            seen += texts_of(batch)
            after = batch[-1].seq
        assert seen == [str(n) for n in range(total)]
        return after

    reading = Started(read)
    for n in range(total):
        store.writer.emit(text_event(start, str(n)))
        if n % 20 == 0:
            store.flush()
    reading.result()


# -- the end ----------------------------------------------------------------------------------------------


def test_closing_commits_what_is_queued(store: Store) -> None:
    start = store.start()
    with blocked(store):
        for n in range(1_200):
            store.writer.emit(text_event(start, str(n)))
        added = store.writer.transact(lambda tx: add_session(tx, "a"))
        closing = Started(lambda: store.writer.close(PATIENCE_S))
        wait_until(lambda: store.writer._is_closed, "closing has begun")
    closing.result()
    assert added.result(0) is None
    assert len(texts_of(store.events(start.run_id))) == 1_200
    store.writer.close(PATIENCE_S)


def test_a_decision_after_the_close_is_refused_at_once_and_an_event_is_dropped(store: Store) -> None:
    start = store.start()
    store.writer.close(PATIENCE_S)
    store.writer.emit(text_event(start, "late"))
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
            store.writer.emit(text_event(start, f"{number}.{step}"))
            if dice.random() < 0.1:
                note = Event(start.run_id, EventType.RETRY, {"by": number}, start.turn_id)
                store.decide(lambda tx, note=note: tx.emit(note))  # type: ignore[misc]
                decided += 1
        return decided

    with failing(store, lambda n: False):
        decided = in_threads(20, work)
    store.flush()
    for index, start in enumerate(starts):
        stored = store.events(start.run_id)
        assert_gapless(stored)
        said = texts_of(stored)
        for number in range(index, 20, 5):
            mine = [each for each in said if each.startswith(f"{number}.")]
            assert mine == [f"{number}.{step}" for step in range(60)]
        assert sum(each.type == "retry" for each in stored) == sum(decided[index::5])
