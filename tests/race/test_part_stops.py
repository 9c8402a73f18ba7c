"""A stop of one goal or one call against what happens at the same moment, each order forced."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.plan import scheduler
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.delegating import ENDLESS
from tests.support.five_checks import five_checks
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, cancel_goal, end_of, events_now, outcomes, part_stops, statuses
from tests.support.plans import goal, say_done, seen_at, start_plan
from tests.support.python_tools import PythonTool, call_line, give_tool
from tests.support.race_kit import Later, Switch, break_store
from tests.support.servers import LocalServer, ServerProcess, gate

BY_USER, DONE = ("CANCELLED", "user"), ("COMPLETED", None)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test holds is not left behind meanwhile, however slow the machine is."""
    monkeypatch.setattr(PythonTool, "ends_within_s", PATIENCE_S)
    monkeypatch.setattr(scheduler, "ABANDON_AFTER_S", PATIENCE_S)


def _other(run: Run) -> Run:
    """The same over connections of its own."""
    about = {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn}
    return Run(Api(run.api.url, run.api.token), about)


def _endless(key: str) -> str:
    return script("trickle", key=key, **ENDLESS)


# -- the goal's own beginning and end ---------------------------------------------------------------------


@pytest.mark.parametrize("point", ["scheduler.before_goal_starts", "agent.before_request", "model_call.before_sent"])
def test_a_goal_that_is_stopped_on_the_way_to_its_first_request_asks_nothing(
    local: LocalServer, models: ModelServer, key: str, point: str
) -> None:
    with gate(point) as before:
        run = start_plan(local.api(), goal("a", say_done(f"{key}-a")), goal("b", say_done(f"{key}-b"), "a"))
        before.wait_reached()
        assert cancel_goal(run, "a")["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": ("CANCELLED", "dependency")}
    assert models.calls(key=f"{key}-a") == models.calls(key=f"{key}-b") == []
    five_checks(run, models, key)


def test_a_goal_that_begins_while_its_stop_is_on_the_way_is_stopped_all_the_same(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("scheduler.before_goal_starts") as before, gate("parts.before_goal_is_stopped") as stopping:
        run = start_plan(local.api(), goal("a", _endless(f"{key}-a")), goal("b", say_done(key)))
        before.wait_reached()
        stop = Later(lambda: cancel_goal(_other(run), "a", wait_ms=30_000))
        stopping.wait_reached()
        before.open()
        models.wait_tokens(1, key=f"{key}-a")
        stopping.open()
        answer = stop.result()
    assert (answer["stopped"], answer["ended"]) == (True, True)
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE}
    five_checks(run, models, key)


def test_a_goal_that_ended_while_its_stop_was_on_the_way_is_not_stopped_and_nothing_is_recorded(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    line = script("trickle", tokens=20, interval_ms=20, key=key)
    with gate("parts.before_goal_is_stopped") as stopping:
        run = start_plan(local.api(), goal("a", line), goal("b", _endless(f"{key}-b")))
        run.wait_event("text", goal_id="a")
        stop = Later(lambda: cancel_goal(_other(run), "a"))
        stopping.wait_reached()
        run.wait_event("goal_status", goal_id="a", status="COMPLETED")
        stopping.open()
        answer = stop.result()
    assert (answer["stopped"], answer["ended"], answer["receipt"]) == (False, True, [])
    run.cancel(wait_ms=30_000)
    assert (statuses(run)["a"], part_stops(run)) == (DONE, [(None, None)])
    five_checks(run, models, key)


def test_a_turn_that_ended_while_the_stop_of_its_goal_was_on_the_way_has_nothing_to_stop(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("parts.before_goal_is_stopped") as stopping:
        run = start_plan(local.api(), goal("a", script("trickle", tokens=20, interval_ms=20, key=key)))
        run.wait_event("text", goal_id="a")
        stop = Later(lambda: cancel_goal(_other(run), "a", wait_ms=1000))
        stopping.wait_reached()
        assert run.wait_parked() == "awaiting_input"
        stopping.open()
        assert (stop.result()["stopped"], stop.result()["receipt"]) == (False, [])
    assert end_of(run)["type"] == "turn_completed"
    five_checks(run, models, key)


def test_a_stop_of_the_only_goal_just_before_the_turn_finishes_finds_it_completed(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("turn.before_finish") as at_end:
        run = start_plan(local.api(), goal("a", say_done(key)))
        at_end.wait_reached()
        answer = cancel_goal(run, "a")
        assert (answer["stopped"], answer["ended"]) == (False, True)
    assert run.wait_parked() == "awaiting_input"
    assert end_of(run)["type"] == "turn_completed"
    five_checks(run, models, key)


def test_a_stop_of_a_goal_after_the_turns_end_was_decided_is_refused(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("engine.before_final_write") as decided:
        run = start_plan(local.api(), goal("a", say_done(key)))
        decided.wait_reached()
        assert cancel_goal(run, "a", expect=409)["code"] == "turn_is_over"
    run.wait_parked()
    five_checks(run, models, key)


# -- wider stops --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_stop_of_a_goal_that_comes_after_the_turns_stop_joins_it(
    local: LocalServer, models: ModelServer, key: str, verb: str
) -> None:
    run = start_plan(local.api(), goal("a", _endless(key)), goal("b", say_done(f"{key}-b"), "a"))
    run.wait_event("text")
    with gate("turn.before_finish") as unwinding:
        assert run.api.post(f"{run.path}/{verb}")["stopped"] is True
        unwinding.wait_reached()
        answers = [cancel_goal(run, name) for name in ("a", "b")]
        assert [(answer["stopped"], answer["ended"]) for answer in answers] == [(False, True)] * 2  # they are final
    assert run.wait_parked() == ("awaiting_input" if verb == "cancel" else "cancelled")
    assert part_stops(run) == [(None, None)]
    five_checks(run, models, key)


@pytest.mark.parametrize("point", ["turn.scope_closed", "turn.requests_cancelled"])
def test_a_stop_of_a_goal_while_the_turns_stop_is_at_work_joins_it_and_is_not_recorded_again(
    local: LocalServer, models: ModelServer, key: str, point: str, patient: None
) -> None:
    switch = Switch()

    def slow(_: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("in time")

    give_tool(local, "slow", slow)
    run = start_plan(local.api(), goal("a", call_line(key, "slow")))
    switch.wait_reached()
    with gate(point) as closed:
        stop = Later(lambda: _other(run).cancel())
        closed.wait_reached()
        answer = cancel_goal(run, "a")
        assert (answer["stopped"], answer["ended"]) == (True, False)
        switch.open()
        closed.open()
        assert stop.result()["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert (statuses(run), part_stops(run)) == ({"a": BY_USER}, [(None, None)])
    five_checks(run, models, key)


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_stop_of_the_turn_that_overtakes_that_of_a_goal_is_the_one_that_is_recorded(
    local: LocalServer, models: ModelServer, key: str, verb: str
) -> None:
    run = start_plan(local.api(), goal("a", _endless(key)), goal("b", _endless(key)))
    run.wait_event("text", goal_id="a")
    with gate("parts.before_goal_is_stopped") as stopping, gate("turn.before_finish") as unwinding:
        part = Later(lambda: cancel_goal(_other(run), "a"))
        stopping.wait_reached()
        assert run.api.post(f"{run.path}/{verb}")["stopped"] is True
        unwinding.wait_reached()
        stopping.open()
        part.result()
    assert run.wait_parked() == ("awaiting_input" if verb == "cancel" else "cancelled")
    assert part_stops(run) == [(None, None)]
    assert set(statuses(run).values()) == {BY_USER}
    five_checks(run, models, key)


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_a_stop_of_the_turn_after_that_of_a_goal_stops_the_rest(
    local: LocalServer, models: ModelServer, key: str, verb: str
) -> None:
    run = start_plan(local.api(), goal("a", _endless(key)), goal("b", _endless(key)))
    run.wait_event("text", goal_id="a")
    run.wait_event("text", goal_id="b")
    cancel_goal(run, "a", wait_ms=30_000)
    answer = run.api.post(f"{run.path}/{verb}", {"wait_ms": 30_000})
    assert outcomes(answer["receipt"]) == [("model_call", "cancelled"), ("goal", "cancelled")]
    assert {item["goal_id"] for item in answer["receipt"]} == {"b"}
    assert part_stops(run) == [("a", None), (None, None)]
    five_checks(run, models, key)


def test_a_stop_of_a_goal_inside_one_that_is_being_stopped_joins_that(
    local: LocalServer, models: ModelServer, key: str, patient: None
) -> None:
    switch = Switch()

    def slow(_: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("in time")

    give_tool(local, "slow", slow)
    run = start_plan(
        local.api(), goal("around", goals=[goal("a", call_line(key, "slow"))]), goal("b", _endless(f"{key}-b"))
    )
    switch.wait_reached()
    assert cancel_goal(run, "around")["ended"] is False
    inner = cancel_goal(run, "a")
    assert (inner["stopped"], inner["ended"]) == (True, False)
    switch.open()
    assert outcomes(cancel_goal(run, "a", wait_ms=30_000)["receipt"]) == [("tool", "aborted"), ("goal", "cancelled")]
    run.cancel(wait_ms=30_000)
    assert part_stops(run) == [("around", None), (None, None)]
    five_checks(run, models, key)


def test_a_goal_and_its_call_that_are_stopped_at_once_end_once(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    begun = threading.Event()

    def work(run: ToolRun) -> ToolResult:
        begun.set()
        run.scope.sleep(60)
        return ToolResult("done")

    give_tool(local, "slow", work)
    run = start_plan(local.api(), goal("a", call_line(key, "slow")), goal("b", say_done(key)))
    assert begun.wait(30)
    call_id = events_now(run, "tool_call")[0]["call_id"]
    with gate("parts.before_call_is_stopped") as stopping:
        of_call = Later(lambda: cancel_call(_other(run), call_id))
        stopping.wait_reached()
        assert cancel_goal(run, "a", wait_ms=30_000)["ended"] is True
        stopping.open()
        of_call.result()
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE}
    assert part_stops(run) == [("a", None)]
    assert [event["content"] for event in of_type(run, "tool_result")] == ["cancelled by operator"]
    five_checks(run, models, key)


# -- the server goes down, or the disk is full ----------------------------------------------------------------


def test_a_shutdown_after_the_stop_of_a_goal_keeps_that_goals_cause(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url) as server:
        run = start_plan(server.api(), goal("a", _endless(key)), goal("b", _endless(key)))
        run.wait_event("text", goal_id="a")
        assert cancel_goal(run, "a", wait_ms=30_000)["ended"] is True
        server.terminate()
        server.start()
        run = seen_at(server, run)
        assert run.state == "awaiting_input"
        assert statuses(run) == {"a": BY_USER, "b": ("CANCELLED", "shutdown")}
        five_checks(run, models, key)


def test_the_stop_of_a_goal_survives_a_kill_right_after_its_answer_and_a_resume_makes_the_goal_anew(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url) as server:
        line = script("trickle", tokens=60, interval_ms=20, key=key)
        run = start_plan(server.api(), goal("a", line), goal("b", line), goal("c", say_done(f"{key}-c"), "a"))
        run.wait_event("text", goal_id="a")
        assert cancel_goal(run, "a", reason="enough")["stopped"] is True
        server.kill()
        server.start()
        run = seen_at(server, run)
        assert part_stops(run) == [("a", None), (None, None)]
        assert of_type(run, "stop_requested")[0]["reason"] == "enough"
        assert {cause for _, cause in statuses(run).values()} <= {"user", "dependency", "server_lost"}
        assert statuses(run)["b"] == ("CANCELLED", "server_lost")
        go_back(run, "resume")
        assert run.wait_parked() == "awaiting_input"
        assert set(statuses(run).values()) == {DONE}
        five_checks(run, models, key)


@pytest.mark.parametrize("part", ["goal", "call"])
def test_a_stop_that_cannot_be_recorded_holds_all_the_same_and_says_so(
    local: LocalServer, models: ModelServer, key: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, is_broken = Switch(), [False]

    def slow(_: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("in time")

    give_tool(local, "slow", slow)
    run = start_plan(local.api(), goal("a", call_line(key, "slow")), goal("b", say_done(key)))
    switch.wait_reached()
    call_id = events_now(run, "tool_call")[0]["call_id"]
    break_store(monkeypatch, local.main.writer, lambda: is_broken[0])
    is_broken[0] = True
    stop: Callable[[], dict[str, Any]] = (
        (lambda: cancel_goal(run, "a", expect=500))
        if part == "goal"
        else (lambda: cancel_call(run, call_id, expect=500))
    )
    answer = stop()
    is_broken[0] = False
    assert (answer["code"], answer["stopped"], answer["goal_id"]) == ("stop_not_recorded", True, "a")
    switch.open()
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run)["a"] == (BY_USER if part == "goal" else DONE)
    five_checks(run, models, key)
