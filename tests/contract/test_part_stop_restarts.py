"""Stops of one goal or one call around the end of a server: nothing of them is lost, and they hold in the next one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.engine import stopping
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, cancel_goal, outcomes, part_stops, statuses
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan
from tests.support.problems import assert_problem
from tests.support.questions import (
    answer,
    ask_goal,
    ask_line,
    calls_line,
    interrupts,
    results,
    wait_question,
    wait_questions,
)
from tests.support.race_kit import Later, break_store
from tests.support.servers import LocalServer, Restart, ServerProcess, gate

pytestmark = pytest.mark.spread(2)

BY_USER, DONE = ("CANCELLED", "user"), ("COMPLETED", None)
WAIT: dict[str, Any] = {"wait_ms": 30_000}
BEFORE_IT_IS_BACK = ["scheduler.before_goal_starts", "tool_batch.before_tools"]


def _receipts(run: Run) -> list[dict[str, Any]]:
    return run.api.get(f"{run.path}/receipts")["receipts"]  # type: ignore[no-any-return]


def _asked(models: ModelServer, key: str, folder: Path, *questions: str) -> tuple[Run, list[dict[str, Any]]]:
    """A run that has asked these, and whose server was then killed; and the events of the questions."""
    with ServerProcess(folder, models.url, TOOLS_ALLOWED="ask_user") as server:
        run = server.api().start(ask_line(key, *questions))
        events = wait_questions(run, len(questions))
        server.kill()
    return run, events


@contextlib.contextmanager
def _held(models: ModelServer, folder: Path, point: str, run: Run) -> Iterator[tuple[LocalServer, Run, Any]]:
    """The next server, in this process: the first goal that was at work is held at this point on its way back."""
    with gate(point) as before, LocalServer(folder, models.url, tools_allowed=("ask_user",)) as local:
        before.wait_reached()
        yield local, seen_at(local, run), before


# -- a call that is not back yet ---------------------------------------------------------------------------


def test_a_stop_of_a_part_of_a_turn_that_takes_long_to_come_back_says_so_and_can_be_sent_again(
    models: ModelServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "BACK_S", 0.05)
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with _held(models, tmp_path, "engine.claimed", run) as (_, run, before):
        path = f"{run.path}/calls/{question['call_id']}/cancel"
        assert_problem(run.api.request("POST", path, json={}), 503, "turn_is_coming_back")
        monkeypatch.setattr(stopping, "BACK_S", PATIENCE_S)
        before.open()
        assert cancel_call(run, question["call_id"], **WAIT)["stopped"] is True
        assert run.wait_parked() == "awaiting_input"
        five_checks(run, models, key)


@pytest.mark.parametrize("point", BEFORE_IT_IS_BACK)
def test_a_call_that_is_stopped_before_it_is_back_is_over_and_the_model_goes_on_without_it(
    models: ModelServer, key: str, tmp_path: Path, point: str
) -> None:
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with _held(models, tmp_path, point, run) as (_, run, before):
        stopped = cancel_call(run, question["call_id"], reason="no need", **WAIT)
        assert (stopped["goal_id"], stopped["stopped"], stopped["ended"]) == ("answer", True, True)
        assert outcomes(stopped["receipt"]) == [("question", "cancelled")]
        assert [(each["status"], each["cause"]) for each in interrupts(run)] == [("cancelled", "user")]
        assert answer(run, question["interrupt_id"], "late", 409)["cause"] == "user"
        assert cancel_call(run, question["call_id"]) == stopped
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["cancelled by operator"]
        assert statuses(run) == {"answer": DONE}
        assert part_stops(run) == [("answer", question["call_id"])]
        (receipt,) = _receipts(run)
        assert (receipt["call_id"], receipt["reason"], receipt["receipt"]) == (
            question["call_id"], "no need", stopped["receipt"]
        )  # fmt: skip
        five_checks(run, models, key)


def test_the_questions_beside_a_call_that_is_stopped_before_it_is_back_stay_open(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    run, events = _asked(models, key, tmp_path, "A?", "B?")
    asked = {event["question"]: event for event in events}
    with _held(models, tmp_path, "scheduler.before_goal_starts", run) as (_, run, before):
        assert cancel_call(run, asked["B?"]["call_id"])["stopped"] is True
        assert run.state == "awaiting_answer"
        before.open()
        answer(run, asked["A?"]["interrupt_id"], "this")
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["this", "cancelled by operator"]
        five_checks(run, models, key)


@pytest.mark.parametrize("point", BEFORE_IT_IS_BACK)
def test_an_answer_to_a_call_that_is_stopped_before_it_is_back_is_not_lost(
    models: ModelServer, key: str, tmp_path: Path, point: str
) -> None:
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with _held(models, tmp_path, point, run) as (_, run, before):
        answer(run, question["interrupt_id"], "blue")
        assert outcomes(cancel_call(run, question["call_id"])["receipt"]) == [("question", "already_done")]
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["blue"]
        five_checks(run, models, key)


def test_a_call_that_comes_back_while_its_stop_is_on_the_way_is_stopped(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with (
        gate("parts.before_stand_in_is_stopped") as stopping, gate("asking.before_look") as back,
        _held(models, tmp_path, "scheduler.before_goal_starts", run) as (local, run, before),
    ):  # fmt: skip
        stop = Later(lambda: cancel_call(seen_at(local, run), question["call_id"], **WAIT))
        stopping.wait_reached()
        before.open()
        back.wait_reached()
        stopping.open()
        run.wait_event("stop_requested")
        back.open()
        answered = stop.result()
        assert (answered["stopped"], answered["ended"]) == (True, True)
        assert outcomes(answered["receipt"]) == [("question", "cancelled")]
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["cancelled by operator"]
        five_checks(run, models, key)


def test_a_goal_that_is_a_question_and_is_stopped_by_its_call_before_it_is_back_is_cancelled(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    last = goal("c", say_done(f"{key}-c"), "a")
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user") as server:
        run = start_plan(server.api(), ask_goal("a", "A?"), ask_goal("b", "B?"), last)
        asked = {event["goal_id"]: event for event in wait_questions(run, 2)}
        server.kill()
    with _held(models, tmp_path, "scheduler.before_goal_starts", run) as (_, run, before):
        for name in "ab":
            assert cancel_call(run, asked[name]["call_id"], **WAIT)["stopped"] is True
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert statuses(run) == {"a": BY_USER, "b": BY_USER, "c": ("CANCELLED", "dependency")}
        assert [each["call_id"] for each in _receipts(run)] == [asked[name]["call_id"] for name in "ab"]
        five_checks(run, models, key)


def test_a_turn_whose_call_was_stopped_before_it_was_back_is_not_left_to_the_next_server(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with _held(models, tmp_path, "scheduler.before_goal_starts", run) as (local, run, before):
        stopped = cancel_call(run, question["call_id"])
        local.main.engine.shut_down()
        before.open()
        assert local.main.engine.wait_parked(30)
        (end,) = of_type(run, "turn_cancelled")
        assert (end["cause"], [each["receipt"] for each in end["parts"]]) == ("shutdown", [stopped["receipt"]])


def test_the_stop_of_a_call_that_is_not_back_yet_holds_although_it_could_not_be_recorded(
    models: ModelServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, (question,) = _asked(models, key, tmp_path, "Which?")
    with _held(models, tmp_path, "scheduler.before_goal_starts", run) as (local, run, before):
        is_broken = [True]
        break_store(monkeypatch, local.main.writer, lambda: is_broken[0])
        refused = cancel_call(run, question["call_id"], expect=500)
        assert (refused["code"], refused["stopped"]) == ("stop_not_recorded", True)
        is_broken[0] = False
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["cancelled by operator"]
        assert [each["status"] for each in interrupts(run)] == ["cancelled"]
        five_checks(run, models, key)


# -- receipts ------------------------------------------------------------------------------------------------


def test_the_receipt_of_a_goal_that_was_stopped_alone_outlives_its_server_with_the_turn(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    silent = script("silent", key=f"{key}-b")
    run = start_plan(own_asking.api(), goal("a", ask_line(key, "Which?")), goal("b", silent), goal("c", silent, "b"))
    question = wait_question(run)
    models.wait_open(1, key=f"{key}-b")
    stopped = cancel_goal(run, "b", reason="enough", **WAIT)
    assert outcomes(stopped["receipt"]) == [("model_call", "cancelled"), ("goal", "cancelled")]
    run.wait_event("goal_status", goal_id="c", status="CANCELLED")
    restart()
    run = seen_at(own_asking, run)
    assert run.state == "awaiting_answer"
    assert cancel_goal(run, "b", **WAIT) == stopped
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    (receipt,) = _receipts(run)
    assert (receipt["goal_id"], receipt["call_id"], receipt["cause"], receipt["reason"]) == ("b", None, "user", "enough")
    assert receipt["receipt"] == stopped["receipt"]
    assert part_stops(run) == [("b", None)]
    five_checks(run, models, key)


def test_the_receipt_of_a_call_that_was_stopped_alone_outlives_its_server_with_the_turn(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    line = calls_line(key, ("ask_user", {"question": "A?"}), ("shell", {"command": "echo begun; sleep 600"}))
    run = own_asking.api().start(line)
    question = wait_question(run)
    call_id = run.wait_event("tool_output")["call_id"]
    stopped = cancel_call(run, call_id, **WAIT)
    assert outcomes(stopped["receipt"]) == [("tool", "killed")]
    run.wait_event("tool_result", call_id=call_id)
    restart()
    run = seen_at(own_asking, run)
    assert cancel_call(run, call_id, **WAIT) == stopped
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    assert [(each["call_id"], each["receipt"]) for each in _receipts(run)] == [(call_id, stopped["receipt"])]
    five_checks(run, models, key)


def test_the_receipt_of_a_goal_that_was_stopped_alone_is_kept_when_the_turn_ends_with_its_server(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    silent = script("silent", key=key)
    run = start_plan(own_asking.api(), goal("a", silent), goal("b", silent))
    models.wait_open(2, key=key)
    stopped = cancel_goal(run, "a", reason="enough", **WAIT)
    run.wait_event("goal_status", goal_id="a", status="CANCELLED")
    own_asking.kill()
    own_asking.start()
    run = seen_at(own_asking, run)
    first, last = _receipts(run)
    assert (first["goal_id"], first["reason"], first["receipt"]) == ("a", "enough", stopped["receipt"])
    assert (last["goal_id"], last["cause"], [item["id"] for item in last["receipt"]]) == (None, "server_lost", ["b"])
    five_checks(run, models, key)


def _kill_before_the_end(server: ServerProcess, run: Run) -> None:
    """The server dies right behind the record of the newest stop: what came after it is not in the log."""
    stop = of_type(run, "stop_requested")[-1]["seq"]
    server.kill()
    with contextlib.closing(sqlite3.connect(next(server.data_dir.glob("*.db")))) as store, store:
        assert store.execute("DELETE FROM events WHERE run_id = ? AND seq > ?", (run.id, stop)).rowcount > 0


def test_a_stop_is_the_end_of_its_goals_although_the_server_died_before_that_was_written(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    silent = script("silent", key=key)
    run = start_plan(own_asking.api(), goal("a", goals=[goal("a1", silent), goal("a2", silent, "a1")]), goal("b", silent))
    models.wait_open(2, key=key)
    cancel_goal(run, "a", reason="enough", **WAIT)
    run.wait_event("goal_status", goal_id="a", status="CANCELLED")
    _kill_before_the_end(own_asking, run)
    own_asking.start()
    run = seen_at(own_asking, run)
    assert statuses(run) == {"a": BY_USER, "a1": BY_USER, "a2": BY_USER, "b": ("CANCELLED", "server_lost")}
    first, last = _receipts(run)
    assert (first["goal_id"], first["cause"], first["reason"]) == ("a", "user", "enough")
    assert [(item["id"], item["outcome"]) for item in first["receipt"]] == [("a1", "cancelled"), ("a2", "not_started")]
    assert last["cause"] == "server_lost"
    five_checks(run, models, key)


def test_a_goal_that_was_stopped_never_begins_although_the_server_died_before_its_end_was_written(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(own_asking.api(), goal("a", ask_line(key, "Which?")), goal("b", say_done(f"{key}-b"), "a"))
    question = wait_question(run)
    stopped = cancel_goal(run, "b", reason="enough", **WAIT)
    run.wait_event("goal_status", goal_id="b", status="CANCELLED")
    _kill_before_the_end(own_asking, run)
    own_asking.start()
    run = seen_at(own_asking, run)
    assert run.wait_event("goal_status", goal_id="b", status="CANCELLED")["cause"] == "user"
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    assert (statuses(run), models.calls(key=f"{key}-b")) == ({"a": DONE, "b": BY_USER}, [])
    (receipt,) = _receipts(run)
    assert (receipt["goal_id"], receipt["reason"]) == ("b", "enough")
    assert outcomes(receipt["receipt"]) == outcomes(stopped["receipt"]) == [("goal", "not_started")]
    assert part_stops(run) == [("b", None)]
    five_checks(run, models, key)


def test_a_turn_that_is_stopped_before_it_is_back_keeps_the_receipts_of_its_parts(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user") as server:
        run = start_plan(server.api(), goal("a", ask_line(key, "Which?")), goal("b", script("silent", key=f"{key}-b")))
        wait_question(run)
        models.wait_open(1, key=f"{key}-b")
        stopped = cancel_goal(run, "b", **WAIT)
        run.wait_event("goal_status", goal_id="b", status="CANCELLED")
        server.kill()
    with _held(models, tmp_path, "engine.claimed", run) as (_, run, before):
        run.cancel()
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert [each["goal_id"] for each in _receipts(run)] == ["b", None]
        assert _receipts(run)[0]["receipt"] == stopped["receipt"]
        assert "b" not in {item["goal_id"] for item in _receipts(run)[1]["receipt"]}
        five_checks(run, models, key)


def test_the_event_that_ends_what_was_stopped_alone_has_its_receipt_and_no_other_has_one(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    silent = script("silent", key=key)
    run = start_plan(own_asking.api(), goal("a", silent), goal("b", silent), goal("c", say_done(f"{key}-c"), "a"))
    models.wait_open(2, key=key)
    stopped = cancel_goal(run, "a", **WAIT)
    run.cancel(**WAIT)
    told = {event["goal_id"]: event["receipt"] for event in all_events(run) if "receipt" in event and "goal_id" in event}
    assert told == {"a": stopped["receipt"]}
    five_checks(run, models, key)
