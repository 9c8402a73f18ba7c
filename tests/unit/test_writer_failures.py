"""The writer when a commit, an event or a reader fails: numbers without gaps, and nothing that was said is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from core.errors import StoreError
from core.events import Event, EventType
from core.store import writer as writer_module
from core.store.commit import Transaction
from core.store.writer import Writer
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import Store
from tests.support.writer_kit import add_session, assert_gapless, blocked, ending, failing, text_event, texts_of


def test_a_group_whose_commit_fails_is_tried_again_one_by_one_and_numbers_have_no_gap(store: Store) -> None:
    start = store.start()
    reader = store.hub.join(start.run_id)
    before = len(store.events(start.run_id))
    with failing(store, lambda n: n == 1) as commits:  # 0 is the one that blocks, 1 the whole group
        with blocked(store):
            for n in range(10):
                store.writer.emit(text_event(start, str(n)))
            added = store.writer.transact(lambda tx: add_session(tx, "a"))
        added.result(PATIENCE_S)
    assert len(commits) == 2 + 11
    stored = store.events(start.run_id)
    assert_gapless(stored)
    assert texts_of(stored) == [str(n) for n in range(10)]
    assert reader.read(before, PATIENCE_S) is not None
    assert store.writer.is_healthy


def test_what_fails_alone_is_refused_and_its_number_is_given_to_the_next(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    reader = store.hub.join(start.run_id)

    def say(tx: Transaction) -> None:
        tx.emit(text_event(start, "refused"))

    with failing(store, lambda n: n == 0):
        with pytest.raises(StoreError):
            store.decide(say)
        assert not store.writer.is_healthy
        store.writer.emit(text_event(start, "next"))
        store.flush()
    assert store.writer.is_healthy
    seen = reader.read(before, PATIENCE_S)
    assert seen is not None
    assert [(each.seq, json.loads(each.json)["text"]) for each in seen] == [(before + 1, "next")]
    assert texts_of(store.events(start.run_id)) == ["next"]


def test_events_that_the_store_did_not_take_are_kept_and_written_in_order_when_it_does(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    reader = store.hub.join(start.run_id)
    is_down = [True]
    with failing(store, lambda _: is_down[0]):
        for n in range(5):
            store.writer.emit(text_event(start, str(n)))
            with pytest.raises(StoreError):
                store.flush()
        assert store.events(start.run_id)[before:] == []
        assert not store.writer.is_healthy
        is_down[0] = False
        store.writer.emit(text_event(start, "5"))
        store.flush()
    assert store.writer.is_healthy
    assert_gapless(store.events(start.run_id))
    assert texts_of(store.events(start.run_id)) == [str(n) for n in range(6)]
    seen = reader.read(before, PATIENCE_S)
    assert seen is not None
    assert seen[0].seq == before + 1


def test_kept_events_are_not_overtaken_by_later_ones_of_their_group_that_would_fit(store: Store) -> None:
    start = store.start()
    with failing(store, lambda n: n in (1, 2)), blocked(store):  # the group, and its first event alone
        for n in range(4):
            store.writer.emit(text_event(start, str(n)))
    store.flush()
    assert texts_of(store.events(start.run_id)) == ["0", "1", "2", "3"]
    assert_gapless(store.events(start.run_id))


def test_kept_events_of_a_turn_that_ends_meanwhile_come_before_its_end(store: Store) -> None:
    start = store.start()
    with failing(store, lambda n: n == 0):
        store.writer.emit(text_event(start, "said"))
        store.decide(ending(start))
    assert [each.type for each in store.events(start.run_id)][-3:] == ["text", "turn_completed", "awaiting_input"]


def test_a_decision_is_not_made_before_the_kept_events_that_came_before_it_are_written(store: Store) -> None:
    start = store.start()
    before = len(store.events(start.run_id))
    # 0 is the one that blocks, 1 the group, 2 the event alone, 3 its next try; the decision alone would go through.
    with failing(store, lambda n: n in (1, 2, 3)):
        with blocked(store):
            store.writer.emit(text_event(start, "said"))
            refused = store.writer.transact(ending(start))
        with pytest.raises(StoreError):
            refused.result(PATIENCE_S)
        assert store.events(start.run_id)[before:] == []
        store.decide(ending(start))
    assert [each.type for each in store.events(start.run_id)[before:]] == ["text", "turn_completed", "awaiting_input"]


def test_what_is_kept_while_the_store_takes_nothing_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_module, "MAX_UNWRITTEN", 3)
    start = store.start()
    writer = Writer(store.database, store.hub)
    is_down = [True]
    with failing(store, lambda _: is_down[0]):
        for n in range(6):
            writer.emit(text_event(start, str(n)))
            with pytest.raises(StoreError):
                writer.transact(lambda tx: None).result(PATIENCE_S)
        is_down[0] = False
    writer.close(PATIENCE_S)
    said = texts_of(store.events(start.run_id))
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
        with blocked(store):
            store.writer.emit(text_event(start, "once"))
            answer = store.writer.transact(lambda tx: add_session(tx, "a"))
        answer.result(PATIENCE_S)
    store.flush()
    assert texts_of(store.events(start.run_id)) == ["once"]
    assert "publishing failed" in caplog.text


def test_what_cannot_be_written_as_json_fails_alone(store: Store) -> None:
    start = store.start()
    endless: dict[str, Any] = {}
    endless["itself"] = endless
    with blocked(store):
        store.writer.emit(text_event(start, "one"))
        store.writer.emit(Event(start.run_id, EventType.TEXT, endless, start.turn_id))
        store.writer.emit(text_event(start, "two \ud800 \U0001f600"))
    store.flush()
    stored = store.events(start.run_id)
    assert texts_of(stored) == ["one", "two \ud800 \U0001f600"]
    assert_gapless(stored)


def test_marks_hold_the_numbers_that_the_events_got(store: Store) -> None:
    start = store.start()
    with failing(store, lambda n: n == 1), blocked(store):
        store.writer.emit(text_event(start, "one"))
        plan = Event(start.run_id, EventType.PLAN_UPDATED, {"goals": []}, start.turn_id)
        store.writer.transact(lambda tx: tx.emit(plan, mark="plan_seq"))
        store.writer.emit(text_event(start, "two"))
    store.flush()
    with store.database.connect() as connection:
        plan_seq = connection.execute(text("SELECT plan_seq FROM turns")).scalar_one()
    assert store.events(start.run_id)[plan_seq - 1].type == "plan_updated"
