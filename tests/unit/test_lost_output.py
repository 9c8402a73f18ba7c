"""What the log has of a command that its server has left: it is in the result of the call, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from core.cancellation import Cause, CauseWord
from core.engine.recovery import settle_lost_turns
from core.events import Event, EventType
from core.session.from_log import outcome_in_log
from core.session.records import StopOrder, TurnStart
from core.session.stop_moves import request_stop
from core.session.turn_end import end_turn
from core.session.turns import begin_turn, emit_in_turn, read_turn
from core.store.tables import events
from core.tool.output import SHOWN_BYTES, shorten
from tests.support.core_kit import Store, open_store, plan_node


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        yield opened


class _Log:
    """The log of an open turn with one goal at work."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.start: TurnStart = store.start()
        store.decide(lambda tx: begin_turn(tx, self.start.run_id))
        goals = {"goals": [plan_node("a")], "note": None}
        plan = Event(self.start.run_id, EventType.PLAN_UPDATED, goals, self.start.turn_id)
        store.decide(lambda tx: emit_in_turn(tx, plan, mark="plan_seq"))
        self.tell(EventType.GOAL_STATUS, {"status": "IN_PROGRESS"})

    def tell(self, kind: EventType, data: dict[str, Any], call_id: str | None = None) -> None:
        self.store.writer.emit(Event(self.start.run_id, kind, data, self.start.turn_id, "a", call_id))

    def call(self, call_id: str, name: str = "shell") -> None:
        self.tell(EventType.TOOL_CALL, {"name": name, "arguments": "{}"}, call_id)

    def output(self, call_id: str, text: str, stream: str = "stdout") -> None:
        self.tell(EventType.TOOL_OUTPUT, {"stream": stream, "text": text}, call_id)

    def settled(self) -> dict[str, str]:
        """The result of each call, once the next server has settled the turn."""
        settle_lost_turns(self.store.writer)
        return self.results()

    def results(self) -> dict[str, str]:
        query = select(events.c.call_id, events.c.data).where(events.c.type == EventType.TOOL_RESULT)
        with self.store.database.connect() as connection:
            rows = connection.execute(query).all()
        assert len({row.call_id for row in rows}) == len(rows)
        return {row.call_id: json.loads(row.data)["content"] for row in rows}


def test_each_open_command_gets_what_it_had_printed_and_no_other_call_does(store: Store) -> None:
    log = _Log(store)
    for call_id, name in (("c_1", "shell"), ("c_2", "shell"), ("c_3", "shell"), ("c_4", "http_request"), ("c_5", "shell")):
        log.call(call_id, name)
    for call_id in ("c_1", "c_2", "c_1", "c_4", "c_5"):
        log.output(call_id, f"of {call_id}\n")
    log.tell(EventType.TOOL_RESULT, {"content": "done", "is_error": False}, "c_5")
    results = log.settled()
    assert {results["c_3"], results["c_4"]} == {"cancelled: server_lost"}
    assert results["c_5"] == "done"
    assert [json.loads(results[each].partition("\n")[2])["stdout"] for each in ("c_1", "c_2")] == [
        "of c_1\nof c_1\n", "of c_2\n"
    ]  # fmt: skip


def test_after_a_stop_by_the_user_the_result_is_as_the_stop_would_have_made_it(store: Store) -> None:
    log = _Log(store)
    log.call("c_1")
    log.output("c_1", "no newline", "stderr")
    order = StopOrder(Cause(CauseWord.USER, "enough"))
    store.decide(lambda tx: request_stop(tx, log.start.run_id, log.start.turn_id, order))
    words, shown = log.settled()["c_1"].split("\n", 1)
    assert words == "cancelled by operator"
    assert json.loads(shown)["stderr"] == "no newline\nthe command was interrupted (user)"


def test_a_long_output_is_shown_with_its_middle_left_out(store: Store) -> None:
    log = _Log(store)
    log.call("c_1")
    pieces = [f"{number:06}\n" * 4000 for number in range(40)]
    for piece in pieces:
        log.output("c_1", piece)
        log.output("c_1", piece, "stderr")
    shown = json.loads(log.settled()["c_1"].partition("\n")[2])
    assert shown["stdout"] == shorten("".join(pieces))
    assert len(shown["stderr"].encode()) <= SHOWN_BYTES
    assert shown["stderr"].startswith("000000\n")
    assert shown["stderr"].endswith("000039\nthe command was interrupted (server_lost)")


def test_a_turn_that_failed_before_it_was_back_keeps_it_too(store: Store) -> None:
    log = _Log(store)
    log.call("c_1")
    log.output("c_1", "hi\n")
    store.flush()
    run_id, turn_id = log.start.run_id, log.start.turn_id
    store.decide(lambda tx: end_turn(tx, run_id, turn_id, outcome_in_log(tx, read_turn(tx, turn_id), None, "no agent")))
    assert json.loads(log.results()["c_1"].partition("\n")[2])["stdout"] == "hi\n"
