"""Questions across a kill and an orderly shutdown: the same turn waits on, and goes on with its answer."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type, system_of
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_goal, statuses
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan
from tests.support.questions import (
    answer,
    ask_goal,
    ask_line,
    calls_line,
    decline,
    interrupts,
    results,
    wait_question,
    wait_questions,
)
from tests.support.servers import Restart, ServerProcess

pytestmark = pytest.mark.spread(2)

DONE = ("COMPLETED", None)


def _check_one_life(run: Run, before: list[dict[str, Any]]) -> None:
    """The log goes on where it was; one turn, and nothing of it was said twice."""
    events = all_events(run)
    assert events[: len(before)] == before
    assert [event["type"] for event in events].count("turn_started") == 1
    for kind, name in (("goal_status", "status"), ("tool_call", "name"), ("interruption_pending", "question")):
        said = [(event["goal_id"], event.get("call_id"), event[name]) for event in events if event["type"] == kind]
        assert len(said) == len(set(said)), said
    assert "server_lost" not in {event.get("cause") for event in events}
    assert "shutdown" not in {event.get("cause") for event in events}


@pytest.mark.parametrize("disposition", ["answered", "declined"])
def test_a_question_can_be_answered_and_declined_after_its_server_has_gone(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart, disposition: str
) -> None:
    run = own_asking.api().start(ask_line(key, {"question": "Which?", "options": ["a", "b"]}))
    question = wait_question(run)
    before = all_events(run)
    restart()
    run = seen_at(own_asking, run)
    assert (run.state, run.view()["turn_id"]) == ("awaiting_answer", run.first_turn)
    assert [each["status"] for each in interrupts(run)] == ["pending"]
    assert all_events(run) == before
    if disposition == "answered":
        answer(run, question, "b")
    else:
        decline(run, question)
    assert run.wait_parked() == "awaiting_input"
    (said,) = results(run)
    assert said == "b" if disposition == "answered" else said.startswith("the user chose to skip")
    assert (run.transcript()[-1]["content"], len(models.calls(key=key))) == ("t1 t2 ", 2)
    assert statuses(run) == {"answer": DONE}
    _check_one_life(run, before)
    five_checks(run, models, key)


def test_a_plan_goes_on_around_a_question_with_what_was_finished_and_what_was_not_begun(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = start_plan(
        own_asking.api(), goal("done", say_done(f"{key}-done")),
        goal("around", None, "done", goals=[
            goal("asks", ask_line(f"{key}-asks", "One?", "Two?", text=1)),
            ask_goal("tool", "Three?"),
            goal("inside", script("strict", key=f"{key}-inside"), "tool"),
        ]),
        goal("failed", script("error", status=400, key=f"{key}-failed"), "done"),
        goal("never", say_done(f"{key}-never"), "failed"),
        goal("last", script("strict", key=f"{key}-last"), "around"),
    )  # fmt: skip
    asked = {event["question"]: event["interrupt_id"] for event in wait_questions(run, 3)}
    run.wait_event("goal_status", goal_id="never", status="CANCELLED")
    answer(run, asked["One?"], "first")
    run.wait_event("tool_result")
    before = all_events(run)
    began = {name: each["started_at"] for name, each in run.goals().items()}
    restart()
    run = seen_at(own_asking, run)
    assert run.state == "awaiting_answer"
    assert statuses(run)["around"] == ("CHILDREN_IN_PROGRESS", None)
    answer(run, asked["Three?"], "third")
    run.wait_event("goal_status", goal_id="inside", status="COMPLETED")
    assert (run.state, models.calls(key=f"{key}-last")) == ("awaiting_answer", [])
    answer(run, asked["Two?"], "second")
    assert run.wait_parked() == "awaiting_input"
    found = statuses(run)
    assert found.pop("never") == ("CANCELLED", "dependency")
    assert found.pop("failed")[0] == "FAILED"
    assert set(found.values()) == {DONE}
    assert [event["content"] for event in of_type(run, "tool_result")] == ["first", "third", "second"]
    asks = models.calls(key=f"{key}-asks")[-1]
    assert [message["content"] for message in asks.messages if message["role"] == "tool"] == ["first", "second"]
    assert "Result of “done”:\nt1 t2 " in system_of(asks)
    assert "Result of “tool”:\nthird" in system_of(models.calls(key=f"{key}-inside")[0])
    assert {name: len(models.calls(key=f"{key}-{name}")) for name in ("done", "asks", "inside", "never", "last")} == {
        "done": 1, "asks": 2, "inside": 1, "never": 0, "last": 1
    }  # fmt: skip
    assert {name: began[name] for name in ("asks", "tool", "around")} == _begins(of_type(run, "plan_updated")[-1])
    _check_one_life(run, before)
    usage = next(event for event in all_events(run) if event["type"] == "turn_completed")["usage"]
    assert usage["calls"] == len(of_type(run, "usage"))
    five_checks(run, models, key)


def _begins(published: dict[str, Any]) -> dict[str, str]:
    around = next(each for each in published["goals"] if each["id"] == "around")
    return {each["id"]: each["started_at"] for each in (around, *around["goals"]) if each["id"] != "inside"}


def test_a_question_survives_one_restart_after_the_other(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = start_plan(own_asking.api(), goal("a", ask_line(key, "Which?")), goal("b", say_done(f"{key}-b"), "a"))
    question = wait_question(run)
    before = all_events(run)
    for _ in range(3):  # the second and third end comes as soon as the server serves
        restart()
    run = seen_at(own_asking, run)
    assert run.state == "awaiting_answer"
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": DONE, "b": DONE}
    _check_one_life(run, before)
    five_checks(run, models, key)


def test_a_question_whose_time_passed_without_a_server_has_expired_when_there_is_one_again(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    run = own_asking.api().start(ask_line(key, {"question": "Now?", "timeout_ms": 1500}))
    question = wait_question(run)
    own_asking.kill()
    time.sleep(1.6)  # nobody is there to tell that the time has passed
    own_asking.start()
    run = seen_at(own_asking, run)
    assert answer(run, question, "late", 410)["code"] == "question_is_expired"
    assert run.wait_parked() == "awaiting_input"
    assert [event["disposition"] for event in of_type(run, "interruption_resolved")] == ["expired"]
    five_checks(run, models, key)


def test_what_was_delegated_before_the_question_is_still_a_part_of_the_plan(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    sub = {"goals": [{"id": "x", "prompt": say_done(f"{key}-x")}, {"id": "y", "prompt": say_done(key), "depends_on": ["x"]}]}
    run = own_asking.api().start(calls_line(key, ("delegate", sub), ("ask_user", {"question": "A?"})))
    question = wait_question(run)
    run.wait_event("tool_result")

    def told() -> list[Any]:
        shown = run.goals()["answer"]["delegated"]
        return [{name: each[name] for name in ("id", "status", "result", "call_id", "depends_on")} for each in shown]

    before = told()
    assert [each["status"] for each in before] == ["COMPLETED"] * 2
    restart()
    run = seen_at(own_asking, run)
    answer(run, question, "yes")
    assert run.wait_parked() == "awaiting_input"
    assert told() == before
    five_checks(run, models, key)


def test_what_the_log_lacks_because_its_server_went_just_then_is_said_by_the_next_one(
    own_asking: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(
        own_asking.api(), goal("asks", ask_line(key, "Which?")),
        goal("failed", script("trickle", tokens=20, interval_ms=20, key=f"{key}-f")),
        goal("never", say_done(f"{key}-n"), "failed"), goal("last", say_done(f"{key}-l"), "asks"),
    )  # fmt: skip
    question = wait_question(run)
    run.wait_event("text", goal_id="failed")
    cancel_goal(run, "failed", wait_ms=30_000)
    run.wait_event("goal_status", goal_id="never", status="CANCELLED")
    last = all_events(run)[-1]
    assert (last["type"], last["goal_id"]) == ("goal_status", "never")
    own_asking.kill()
    with contextlib.closing(sqlite3.connect(next(own_asking.data_dir.glob("*.db")))) as store, store:
        assert store.execute("DELETE FROM events WHERE run_id = ? AND seq = ?", (run.id, last["seq"])).rowcount == 1
    own_asking.start()
    run = seen_at(own_asking, run)
    assert run.wait_event("goal_status", goal_id="never", status="CANCELLED")["cause"] == "dependency"
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    assert {name: status for name, (status, _) in statuses(run).items()} == {
        "asks": "COMPLETED", "failed": "CANCELLED", "never": "CANCELLED", "last": "COMPLETED"
    }  # fmt: skip
    five_checks(run, models, key)


def test_a_reader_whose_stream_its_server_ends_has_not_hung_up(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    api = own_asking.api()
    body = {"input": ask_line(key, "Which?"), "planning": "none", "on_disconnect": "stop"}
    stream = api.request("POST", "/v1/runs", json=body, headers={"Accept": "text/event-stream"}, stream=True)
    with contextlib.closing(stream):
        run_id = stream.headers["Location"].rpartition("/")[2]
        view = api.get(f"/v1/runs/{run_id}")
        run = Run(api, view)
        question = wait_question(run)
        restart()
    run = seen_at(own_asking, run)
    assert run.state == "awaiting_answer"
    answer(run, question, "this")
    assert run.wait_parked() == "awaiting_input"
    assert results(run) == ["this"]
    five_checks(run, models, key)


def test_a_batch_run_that_asks_survives_as_well(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = own_asking.api().start(ask_line(key, "Go?"), interactive=False)
    question = wait_question(run)
    restart()
    run = seen_at(own_asking, run)
    answer(run, question, "go")
    assert run.wait_parked() == "completed"
    five_checks(run, models, key, is_batch=True)


def test_an_answer_counts_even_if_agents_may_not_ask_any_more(models: ModelServer, key: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user") as server:
        run = server.api().start(ask_line(key, "Which?"))
        question = wait_question(run)
        server.kill()
        server.environment["TOOLS_ALLOWED"] = ""
        server.start()
        run = seen_at(server, run)
        answer(run, question, "this")
        assert run.wait_parked() == "awaiting_input"
        assert results(run) == ["this"]
        assert models.calls(key=key)[-1].tools == []
        five_checks(run, models, key)


def test_the_clocks_of_a_turn_start_anew_with_the_server(
    own_asking: ServerProcess, models: ModelServer, key: str, restart: Restart
) -> None:
    run = own_asking.api().start(ask_line(key, "Which?"), deadline_ms=5000)
    question = wait_question(run)
    restart()
    run = seen_at(own_asking, run)
    assert run.wait_parked() == "awaiting_input"
    end = next(event for event in all_events(run) if event["type"] == "turn_cancelled")
    assert (end["cause"], answer(run, question, "late", 409)["cause"]) == ("deadline", "deadline")
    five_checks(run, models, key)
