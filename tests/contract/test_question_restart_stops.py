"""Turns that asked and whose server went: stops while they come back, and those that do not come back."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_goal, statuses
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan
from tests.support.questions import (
    answer,
    ask_line,
    calls_line,
    interrupts,
    results,
    wait_question,
    wait_questions,
)
from tests.support.servers import LocalServer, Restart, ServerProcess, gate

pytestmark = pytest.mark.spread(2)

WAIT: dict[str, Any] = {"wait_ms": 30_000}


def test_a_stop_after_the_restart_withdraws_the_question(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = start_plan(own_asking.api(), goal("a", ask_line(key, "Which?")), goal("b", say_done(f"{key}-b"), "a"))
    question = wait_question(run)
    restart()
    run = seen_at(own_asking, run)
    stopped = run.cancel(**WAIT)
    assert (stopped["stopped"], stopped["parked"]) == (True, True)
    assert {(item["kind"], item["goal_id"]) for item in stopped["receipt"]} >= {("goal", "a"), ("goal", "b")}
    assert answer(run, question, "late", 409)["settled"] == "cancelled"
    assert statuses(run) == {"a": ("CANCELLED", "user"), "b": ("CANCELLED", "user")}
    five_checks(run, models, key)


def test_a_stop_of_one_goal_after_the_restart_leaves_the_other_question_open(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = start_plan(own_asking.api(), goal("a", ask_line(f"{key}-a", "A?")), goal("b", ask_line(f"{key}-b", "B?")))
    asked = {event["goal_id"]: event["interrupt_id"] for event in wait_questions(run, 2)}
    restart()
    run = seen_at(own_asking, run)
    # Until the goal is back, it counts as one that has not begun: either way it is stopped.
    assert cancel_goal(run, "a", **WAIT)["stopped"] is True
    assert answer(run, asked["a"], "late", 409)["cause"] == "user"
    answer(run, asked["b"], "b")
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": ("CANCELLED", "user"), "b": ("COMPLETED", None)}
    five_checks(run, models, key)


def test_a_turn_that_also_works_on_something_else_ends_with_its_server(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = start_plan(own_asking.api(), goal("a", ask_line(f"{key}-a", "A?")), goal("b", script("silent", key=f"{key}-b")))
    question = wait_question(run)
    models.wait_calls(1, key=f"{key}-b")
    restart()
    run = seen_at(own_asking, run)
    assert run.state == "awaiting_input"
    end = next(event for event in all_events(run) if event["type"] == "turn_cancelled")
    assert end["cause"] in ("server_lost", "shutdown")
    assert "question" in {item["kind"] for item in end["receipt"]}
    assert answer(run, question, "late", 409)["cause"] == end["cause"]
    assert interrupts(run, "pending") == []
    five_checks(run, models, key)


def test_a_question_beside_another_tool_that_runs_ends_with_its_server(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    line = calls_line(key, ("ask_user", {"question": "A?"}), ("shell", {"command": "sleep 600"}))
    _check_ends_with_its_server(own_asking, models, key, restart, line)


def test_a_question_of_a_sub_agent_ends_with_its_server(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    sub = [{"id": "sub", "prompt": ask_line(f"{key}-sub", "Deep?")}]
    line = script("toolcall", name="delegate", arguments={"goals": sub}, tokens=2, key=key)
    _check_ends_with_its_server(own_asking, models, key, restart, line)


def _check_ends_with_its_server(
    server: ServerProcess, models: ModelServer, key: str, restart: Restart, line: str
) -> None:
    """The question that comes of this line is withdrawn when there is a server again."""
    run = server.api().start(line)
    question = wait_question(run)
    restart()
    run = seen_at(server, run)
    assert (run.state, answer(run, question, "late", 409)["settled"]) == ("awaiting_input", "cancelled")
    five_checks(run, models, key)


@pytest.mark.parametrize("stopped_at", ["engine.claimed", "engine.began"])
def test_a_stop_before_the_turn_is_back_ends_it_as_the_log_has_it(
    models: ModelServer, key: str, tmp_path: Path, stopped_at: str
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user") as server:
        asks = goal("a", ask_line(key, "Which?", text=1))
        run = start_plan(server.api(), asks, goal("b", say_done(f"{key}-b"), "a"))
        wait_question(run)
        server.kill()
    with gate(stopped_at) as before, LocalServer(tmp_path, models.url, tools_allowed=("ask_user",)) as local:
        before.wait_reached()
        run = seen_at(local, run)
        assert run.cancel()["stopped"] is True
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert statuses(run) == {"a": ("CANCELLED", "user"), "b": ("CANCELLED", "user")}
        said = run.transcript()[-1]
        assert (said["content"], said["cause"]) == ("I will use a tool. ", "user")
        end = next(event for event in all_events(run) if event["type"] == "turn_cancelled")
        assert end["usage"]["calls"] == 1
        assert {(item["kind"], item["outcome"]) for item in end["receipt"]} == {
            ("question", "cancelled"), ("goal", "cancelled"), ("goal", "not_started")
        }  # fmt: skip
        five_checks(run, models, key)


@pytest.mark.parametrize("stopped_at", ["engine.claimed", "tool_batch.before_tools"])
def test_an_answer_to_a_call_that_is_not_back_yet_is_not_lost_to_a_stop(
    models: ModelServer, key: str, tmp_path: Path, stopped_at: str
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user") as server:
        run = server.api().start(ask_line(key, "Which?"))
        question = wait_question(run)
        server.kill()
    with gate(stopped_at) as before, LocalServer(tmp_path, models.url, tools_allowed=("ask_user",)) as local:
        before.wait_reached()
        run = seen_at(local, run)
        answer(run, question, "blue", comment="like the sky")
        assert run.cancel()["stopped"] is True
        before.open()
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["blue\n\nThe user's comment: like the sky"]
        assert [event["is_error"] for event in of_type(run, "tool_result")] == [False]
        five_checks(run, models, key)


def test_a_turn_whose_agent_is_gone_after_the_restart_fails_and_keeps_what_was_said(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    agents = tmp_path / "agents.json"
    agents.write_text('[{"name": "default"}, {"name": "other", "tools": ["ask_user"]}]')
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user", AGENTS_FILE=str(agents)) as server:
        asks = {**goal("a", ask_line(key, "Which?", text=1)), "agent": "other"}
        run = start_plan(server.api(), asks, goal("b", say_done(f"{key}-b"), "a"))
        question = wait_question(run)
        server.kill()
        agents.write_text('[{"name": "default"}]')
        server.start()
        run = seen_at(server, run)
        assert run.wait_parked() == "awaiting_input"
        end = next(event for event in all_events(run) if event["type"] == "turn_failed")
        assert "no agent 'other'" in end["error"]
        assert statuses(run) == {"a": ("FAILED", None), "b": ("CANCELLED", "dependency")}
        said = run.transcript()[-1]
        assert (said["content"], said["failed"]) == ("I will use a tool. ", True)
        assert answer(run, question, "late", 409)["settled"] == "cancelled"
        five_checks(run, models, key)


def test_an_answer_that_was_accepted_is_the_result_although_its_server_went_and_the_turn_ended(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_asking.api().start(
        calls_line(key, ("ask_user", {"question": "A?"}), ("shell", {"command": "sleep 600"}))
    )
    question = wait_question(run)
    own_asking.kill()
    with contextlib.closing(sqlite3.connect(next(own_asking.data_dir.glob("*.db")))) as store, store:  # its last commit
        change = "UPDATE questions SET state = 'answered', answer = 'blue', settled_at = 0 WHERE id = ?"
        assert store.execute(change, (question,)).rowcount == 1
    own_asking.start()
    run = seen_at(own_asking, run)
    assert run.wait_parked() == "awaiting_input"
    end = next(event for event in all_events(run) if event["type"] == "turn_cancelled")
    assert [(item["kind"], item["outcome"]) for item in end["receipt"]] == [
        ("question", "already_done"), ("tool", "cancelled"), ("goal", "cancelled")
    ]  # fmt: skip
    assert results(run) == ["blue", "cancelled: server_lost"]
    five_checks(run, models, key)
