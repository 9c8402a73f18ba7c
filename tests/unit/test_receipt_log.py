"""Receipts of what was stopped by itself, made of the log of a turn whose server is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cause, CauseWord
from core.engine.recovery import settle_lost_turns
from core.events import Event, EventType
from core.session import queries
from core.session.from_log import outcome_in_log
from core.session.records import TurnStart
from core.session.stop_moves import note_part_stop
from core.session.turn_end import end_turn
from core.session.turns import begin_turn, emit_in_turn, read_turn
from tests.support.core_kit import Store, open_store, plan_node

USER = Cause(CauseWord.USER, "enough")
BEGUN, STOPPED = {"status": "IN_PROGRESS"}, {"status": "CANCELLED", "cause": "user"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


class _Log:
    """The log of an open turn with the goals ``a`` and ``b``, of which ``a`` is at work and has called a tool."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.start: TurnStart = store.start()
        store.decide(lambda tx: begin_turn(tx, self.start.run_id))
        self._publish([plan_node("a"), plan_node("b")])
        self.tell(EventType.GOAL_STATUS, BEGUN)
        self.tell(EventType.TOOL_CALL, {"name": "t", "arguments": "{}"}, call_id="c_1")

    def _publish(self, goals: list[dict[str, Any]]) -> None:
        data = {"goals": goals, "note": None}
        event = Event(self.start.run_id, EventType.PLAN_UPDATED, data, self.start.turn_id)
        self.store.decide(lambda tx: emit_in_turn(tx, event, mark="plan_seq"))

    def tell(self, kind: EventType, data: dict[str, Any], goal_id: str = "a", call_id: str | None = None) -> None:
        self.store.writer.emit(Event(self.start.run_id, kind, data, self.start.turn_id, goal_id, call_id))

    def stop(self, goal_id: str, call_id: str | None = None) -> None:
        run_id, turn_id = self.start.run_id, self.start.turn_id
        self.store.decide(lambda tx: note_part_stop(tx, run_id, turn_id, USER, goal_id, call_id))

    def receipts(self) -> list[dict[str, Any]]:
        """Of the parts, once the next server has settled the turn."""
        settle_lost_turns(self.store.writer)
        return self.parts()

    def parts(self) -> list[dict[str, Any]]:
        with self.store.database.connect() as connection:
            found = queries.receipts(connection, self.start.run_id)
        return [each for each in found if each["goal_id"] is not None]


def _outcomes(receipt: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(item["kind"], item["id"], item["outcome"]) for item in receipt["receipt"]]


def test_what_the_event_that_ended_it_tells_is_the_receipt(store: Store) -> None:
    log = _Log(store)
    items = [{"kind": "model_call", "id": "c_2", "goal_id": "a", "outcome": "aborted", "how": "cut", "took_ms": 3}]
    log.stop("a", "c_1")
    log.tell(EventType.TOOL_RESULT, {"content": "", "is_error": True, "receipt": items}, call_id="c_1")
    (receipt,) = log.receipts()
    assert (receipt["goal_id"], receipt["call_id"]) == ("a", "c_1")
    assert (receipt["cause"], receipt["reason"], receipt["receipt"]) == ("user", "enough", items)


def test_a_text_that_speaks_of_receipts_is_none(store: Store) -> None:
    log = _Log(store)
    log.stop("a", "c_1")
    log.tell(EventType.TOOL_RESULT, {"content": '{"receipt":[1]}', "is_error": False}, call_id="c_1")
    (receipt,) = log.receipts()
    assert _outcomes(receipt) == [("tool", "c_1", "aborted")]


def test_a_goal_whose_end_came_into_the_log_before_its_stop_has_a_receipt(store: Store) -> None:
    log = _Log(store)
    log.tell(EventType.TOOL_RESULT, {"content": "", "is_error": True}, call_id="c_1")
    log.tell(EventType.GOAL_STATUS, STOPPED)
    log.stop("a")
    (receipt,) = log.receipts()
    assert _outcomes(receipt) == [("goal", "a", "cancelled")]


def test_what_was_stopped_and_is_not_over_in_the_log_is_ended_for_that_cause(store: Store) -> None:
    log = _Log(store)
    log.stop("a")
    log.stop("b")
    first, second = log.receipts()
    assert _outcomes(first) == [("tool", "c_1", "cancelled"), ("goal", "a", "cancelled")]
    assert _outcomes(second) == [("goal", "b", "not_started")]
    with store.database.connect() as connection:
        goals = queries.plan_view(connection, store.run(log.start.run_id), log.start.turn_id)["goals"]
    assert [(goal["status"], goal["cause"]) for goal in goals] == [("CANCELLED", "user")] * 2


def test_a_call_that_was_stopped_and_is_not_over_in_the_log_has_a_result_that_says_who_stopped_it(store: Store) -> None:
    log = _Log(store)
    log.tell(EventType.TOOL_CALL, {"name": "t", "arguments": "{}"}, call_id="c_2")
    log.stop("a", "c_1")
    (receipt,) = log.receipts()
    assert _outcomes(receipt) == [("tool", "c_1", "cancelled")]
    results = [json.loads(event.json) for event in store.events(log.start.run_id) if event.type == "tool_result"]
    assert [(event["call_id"], event["content"]) for event in results] == [
        ("c_1", "cancelled by operator"), ("c_2", "cancelled: server_lost")
    ]  # fmt: skip


def test_a_goal_that_was_stopped_is_cancelled_and_not_failed_when_its_turn_fails(store: Store) -> None:
    log = _Log(store)
    log.stop("a")
    run_id, turn_id = log.start.run_id, log.start.turn_id
    store.decide(lambda tx: end_turn(tx, run_id, turn_id, outcome_in_log(tx, read_turn(tx, turn_id), None, "no agent")))
    with store.database.connect() as connection:
        a, b = queries.plan_view(connection, store.run(run_id), turn_id)["goals"]
    assert (a["status"], a["cause"], a["error"]) == ("CANCELLED", "user", None)
    assert (b["status"], b["cause"]) == ("CANCELLED", "dependency")
    assert [_outcomes(each) for each in log.parts()] == [[("tool", "c_1", "cancelled"), ("goal", "a", "cancelled")]]
