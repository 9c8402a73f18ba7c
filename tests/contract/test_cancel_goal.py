"""``POST …/goals/{goal_id}/cancel``: one goal ends, with what hangs on it; the turn and its other goals go on."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.plan import scheduler
from core.tool.tool import ToolResult
from tests.support.api_client import PATIENCE_S, Api, Run, in_threads, make_token
from tests.support.delegating import ENDLESS
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_goal, end_of, events_now, outcomes, part_stops, statuses
from tests.support.plans import goal, say_done, start_plan, start_streaming
from tests.support.python_tools import PythonTool, call_line, give_tool
from tests.support.race_kit import Switch, check_nothing_left
from tests.support.servers import LocalServer, ServerProcess, gate, wait_until

BY_USER = ("CANCELLED", "user")
FOLLOWS = ("CANCELLED", "dependency")
DONE = ("COMPLETED", None)


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url) as server:
        yield server
        check_nothing_left(server)


def _endless(key: str) -> str:
    return script("trickle", key=key, **ENDLESS)


# -- what the goal is doing --------------------------------------------------------------------------


def test_a_goal_that_streams_ends_at_once_its_dependents_follow_and_its_siblings_go_on(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    beside = script("trickle", tokens=40, interval_ms=20, key=f"{key}-b")
    run = start_plan(
        any_server.api(key),
        goal("a", _endless(f"{key}-a")),
        goal("b", beside),
        goal("c", say_done(f"{key}-c"), "a"),
        goal("d", say_done(f"{key}-c"), "c"),
        goal("e", say_done(f"{key}-e"), "b"),
    )
    run.wait_event("text", goal_id="a")
    run.wait_event("text", goal_id="b")
    answer = cancel_goal(run, "a", reason="the wrong one", if_turn=run.first_turn, wait_ms=30_000)
    assert (answer["run_id"], answer["turn_id"]) == (run.id, run.first_turn)
    assert (answer["goal_id"], answer["call_id"], answer["stopped"], answer["ended"]) == ("a", None, True, True)
    asked = any_server.environment.get("LLM_PROVIDER") is None
    assert outcomes(answer["receipt"]) == [("model_call", "cancelled" if asked else "aborted"), ("goal", "cancelled")]
    models.wait_open(0, key=f"{key}-a")
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE, "c": FOLLOWS, "d": FOLLOWS, "e": DONE}
    assert models.calls(key=f"{key}-c") == []
    assert end_of(run)["type"] == "turn_completed"
    (said,) = [message["content"] for message in run.transcript() if message["role"] == "assistant"]
    assert said.startswith("t1 ") and said.endswith("t39 t40 \n\nt1 t2 ")
    assert part_stops(run) == [("a", None)]
    five_checks(run, models, key)


def test_a_goal_that_waits_for_the_first_byte_ends_at_once(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(any_server.api(key), goal("a", script("silent", key=key)), goal("b", say_done(key)))
    run.wait_event("goal_status", goal_id="b", status="COMPLETED")
    models.wait_open(1, key=key)
    assert cancel_goal(run, "a", wait_ms=30_000)["ended"] is True
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE}
    five_checks(run, models, key)


def test_a_goal_that_waits_for_another_attempt_is_woken(server: ServerProcess, models: ModelServer, key: str) -> None:
    busy = script("busy", retry_after_s=60, key=f"{key}-a")
    run = start_plan(server.api(key), goal("a", busy), goal("b", say_done(key)))
    run.wait_event("retry")
    answer = cancel_goal(run, "a", wait_ms=30_000)
    assert outcomes(answer["receipt"]) == [("wait", "cancelled"), ("goal", "cancelled")]
    assert run.wait_parked() == "awaiting_input"
    assert len(models.calls(key=f"{key}-a")) == 1
    five_checks(run, models, key)


def test_the_tools_of_a_goal_are_killed_and_those_of_its_sibling_are_not(
    shell_server: ServerProcess, models: ModelServer, key: str, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    line = {"command": "echo begun; sleep 600 & sleep 600"}
    brief = {"command": f"until [ -e {flag} ]; do sleep 0.05; done; echo here"}
    run = start_plan(
        shell_server.api(key),
        goal("a", script("toolcall", arguments=line, count=2, key=key)),
        goal("b", script("toolcall", arguments=brief, tokens=1, key=key)),
    )
    begun = [event["goal_id"] for event in events_now(run, "tool_output", 2)]
    assert begun == ["a", "a"]
    answer = cancel_goal(run, "a", wait_ms=30_000)
    assert outcomes(answer["receipt"]) == [("tool", "killed"), ("tool", "killed"), ("goal", "cancelled")]
    flag.touch()
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE}
    results = [event for event in five_checks(run, models, key) if event["type"] == "tool_result"]
    assert [event["content"].splitlines()[0] for event in results if event["goal_id"] == "a"] == [
        "cancelled by operator"
    ] * 2
    (of_sibling,) = [event for event in results if event["goal_id"] == "b"]
    assert of_sibling["is_error"] is False


def test_a_goal_with_a_deaf_tool_is_final_in_time_and_the_receipt_says_that_the_call_was_left_behind(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    switch = Switch()

    def deaf(_: Any) -> ToolResult:
        switch.hold()
        return ToolResult("LATE")

    give_tool(local, "deaf", deaf)
    run = start_plan(local.api(), goal("a", call_line(key, "deaf")), goal("b", say_done(key)))
    switch.wait_reached()
    asked_at = time.monotonic()
    answer = cancel_goal(run, "a", wait_ms=30_000)
    assert time.monotonic() - asked_at < 3.5  # 1.5 s is what a tool has
    assert outcomes(answer["receipt"]) == [("tool", "abandoned"), ("goal", "cancelled")]
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE}
    five_checks(run, models, key)
    switch.open()
    wait_until(lambda: not local.main.engine.pool.abandoned, "the end of the thread that was left behind")
    assert "LATE" not in str(five_checks(run, models, key))


def test_a_goal_that_has_not_begun_never_begins_and_those_that_need_it_follow(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    first = script("trickle", tokens=60, interval_ms=20, key=f"{key}-1")
    run = start_plan(
        server.api(key), goal("a", first), goal("b", say_done(f"{key}-2"), "a"), goal("c", say_done(f"{key}-2"), "b"),
        goal("d", say_done(f"{key}-3"), "a"),
    )  # fmt: skip
    run.wait_event("text")
    answer = cancel_goal(run, "b")
    assert (answer["stopped"], answer["ended"], outcomes(answer["receipt"])) == (True, True, [("goal", "not_started")])
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": DONE, "b": BY_USER, "c": FOLLOWS, "d": DONE}
    assert models.calls(key=f"{key}-2") == []
    five_checks(run, models, key)


def test_a_goal_around_others_ends_with_those_that_run_and_those_that_wait(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(
        server.api(key),
        goal(
            "around",
            goals=[
                goal("done", say_done(key)),
                goal("runs", _endless(f"{key}-r")),
                goal("waits", say_done(f"{key}-n"), "runs"),
                goal("deep", None, "waits", goals=[goal("deeper", say_done(f"{key}-n"))]),
            ],
        ),
        goal("after", say_done(f"{key}-n"), "around"),
        goal("beside", script("trickle", tokens=30, interval_ms=20, key=key)),
    )
    run.wait_event("goal_status", goal_id="done", status="COMPLETED")
    run.wait_event("text", goal_id="runs")
    answer = cancel_goal(run, "around", wait_ms=30_000)
    assert outcomes(answer["receipt"]) == [
        ("model_call", "cancelled"), ("goal", "cancelled"), ("goal", "not_started"), ("goal", "not_started")
    ]  # fmt: skip
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {
        "around": BY_USER, "done": DONE, "runs": BY_USER, "waits": BY_USER, "deep": BY_USER, "deeper": BY_USER,
        "after": FOLLOWS, "beside": DONE,
    }  # fmt: skip
    assert models.calls(key=f"{key}-n") == []
    assert part_stops(run) == [("around", None)]
    five_checks(run, models, key)


# -- the turn's end ------------------------------------------------------------------------------------


def test_a_turn_whose_every_goal_was_stopped_has_failed_and_says_so(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(server.api(key), models, key)
    assert cancel_goal(run, "answer")["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    end = end_of(run)
    assert (end["type"], end["error"]) == ("turn_failed", "every goal was stopped")
    said = run.transcript()[-1]
    assert said["content"].startswith("t1 ") and said["failed"] is True
    (receipt,) = run.api.get(f"{run.path}/receipts")["receipts"]
    assert (receipt["goal_id"], receipt["call_id"], receipt["cause"]) == ("answer", None, "user")
    assert [(item["kind"], item["outcome"]) for item in receipt["receipt"]] == [
        ("model_call", "cancelled"), ("goal", "cancelled"),
    ]  # fmt: skip
    five_checks(run, models, key)


def test_receipts_of_goals_that_were_stopped_alone_are_kept_beside_that_of_their_turn(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(server.api(key), goal("a", _endless(key)), goal("b", _endless(key)))
    run.wait_event("text", goal_id="a")
    run.wait_event("text", goal_id="b")
    alone = cancel_goal(run, "a", wait_ms=30_000, reason="no need")["receipt"]
    assert run.api.get(f"{run.path}/receipts")["receipts"] == []  # the turn goes on
    whole = run.cancel(wait_ms=30_000)["receipt"]
    first, last = run.api.get(f"{run.path}/receipts")["receipts"]
    assert (first["goal_id"], first["reason"], first["receipt"]) == ("a", "no need", alone)
    assert (last["goal_id"], last["cause"], last["receipt"]) == (None, "user", whole)
    assert {item["goal_id"] for item in whole} == {"b"}
    assert first["turn_id"] == last["turn_id"] == run.first_turn
    five_checks(run, models, key)


def test_what_a_stopped_goal_had_said_is_in_the_next_request(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(server.api(key), goal("a", _endless(key)), goal("b", say_done(key)))
    run.wait_event("text", goal_id="a")
    run.wait_event("goal_status", goal_id="b", status="COMPLETED")
    cancel_goal(run, "a", wait_ms=30_000)
    run.wait_parked()
    said = run.transcript()[-1]["content"]
    five_checks(run, models, key)
    assert [message["content"] for message in models.calls(key=key)[-1].messages if message["role"] == "assistant"] == [
        said
    ]
    assert said.startswith("t1 ") and said.endswith("\n\nt1 t2 ")


def test_a_batch_run_goes_on_to_its_end_when_one_of_its_goals_is_stopped(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    plan = [goal("a", _endless(key)), goal("b", say_done(key))]
    run = start_plan(server.api(key), *plan, interactive=False)
    run.wait_event("text", goal_id="a")
    assert cancel_goal(run, "a")["stopped"] is True
    assert run.wait_parked() == "completed"
    five_checks(run, models, key, is_batch=True)


# -- asked again, and at once ----------------------------------------------------------------------------


def test_ten_stops_of_a_goal_at_once_are_one_with_one_receipt(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_plan(any_server.api(key), goal("a", _endless(f"{key}-a")), goal("b", _endless(f"{key}-b")))
    run.wait_event("text", goal_id="a")
    run.wait_event("text", goal_id="b")
    answers = in_threads(
        10, lambda _: cancel_goal(Run(Api(run.api.url, run.api.token), _about(run)), "a", wait_ms=30_000)
    )
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["stopped"] is True
    again = cancel_goal(run, "a")
    assert again == answers[0]
    run.cancel(wait_ms=30_000)
    assert part_stops(run) == [("a", None), (None, None)]
    five_checks(run, models, key)


def _about(run: Run) -> dict[str, Any]:
    return {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn}


def test_an_answer_that_does_not_wait_is_there_while_the_goal_still_unwinds(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PythonTool, "ends_within_s", PATIENCE_S)
    monkeypatch.setattr(scheduler, "ABANDON_AFTER_S", PATIENCE_S)
    switch = Switch()

    def slow(run: Any) -> ToolResult:
        switch.hold()
        return ToolResult("in time")

    give_tool(local, "slow", slow)
    run = start_plan(local.api(), goal("a", call_line(key, "slow")), goal("b", _endless(f"{key}-b")))
    switch.wait_reached()
    first = cancel_goal(run, "a")
    assert (first["stopped"], first["ended"], first["receipt"]) == (True, False, [])
    assert cancel_goal(run, "a", wait_ms=1) == first
    switch.open()
    last = cancel_goal(run, "a", wait_ms=30_000)
    assert (last["ended"], outcomes(last["receipt"])) == (True, [("tool", "aborted"), ("goal", "cancelled")])
    run.cancel(wait_ms=30_000)
    assert part_stops(run) == [("a", None), (None, None)]
    five_checks(run, models, key)


# -- what is not there to stop ---------------------------------------------------------------------------


def test_a_goal_that_has_ended_is_not_stopped(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_plan(server.api(key), goal("a", say_done(key)), goal("b", _endless(key)))
    run.wait_event("goal_status", goal_id="a", status="COMPLETED")
    answer = cancel_goal(run, "a", wait_ms=1000)
    assert (answer["stopped"], answer["ended"], answer["receipt"]) == (False, True, [])
    run.cancel(wait_ms=30_000)
    assert statuses(run)["a"] == DONE
    assert part_stops(run) == [(None, None)]
    five_checks(run, models, key)


def test_goals_that_are_not_there_or_not_the_callers_are_not_found(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(server.api(key), models, key)
    refused = cancel_goal(run, "nothing", expect=404)
    assert (refused["code"], f"GET {run.path}/plan shows its goals" in refused["detail"]) == ("not_found", True)
    foreign = Run(server.api(f"{key}-other"), _about(run))
    assert cancel_goal(foreign, "answer", expect=404) | {"instance": ""} == cancel_goal(
        Run(foreign.api, _about(run) | {"run_id": "r_none"}), "answer", expect=404
    ) | {"instance": ""}
    assert cancel_goal(run, "answer", expect=409, if_turn="t_other")["code"] == "turn_is_over"
    assert cancel_goal(run, "answer", expect=422, wait_ms=-1)["code"] == "invalid_request"
    assert cancel_goal(run, "answer", expect=422, inbox="drop")["code"] == "invalid_request"
    assert run.state == "running"
    run.cancel(wait_ms=30_000)
    assert part_stops(run) == [(None, None)]
    five_checks(run, models, key)


def test_a_goal_of_a_plan_in_the_making_is_not_found(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = server.api(key).start(script("silent", on="plan", key=key), planning="auto")
    models.wait_calls(1, key=key)
    for name in ("planning", "plan", "answer"):
        assert cancel_goal(run, name, expect=404)["code"] == "not_found"
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)


def test_the_goals_of_a_turn_that_is_over_cannot_be_stopped(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = server.api(key).start(say_done(key))
    run.wait_parked()
    assert cancel_goal(run, "answer", expect=409)["code"] == "turn_is_over"
    five_checks(run, models, key)
    run.terminate()
    assert cancel_goal(run, "answer", expect=409)["code"] == "run_is_over"


def test_a_token_that_may_only_stop_may_stop_a_goal_and_one_that_may_only_read_may_not(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(server.api(key), models, key)
    reader = Run(Api(server.url, make_token(key, scope="runs:read")), _about(run))
    assert cancel_goal(reader, "answer", expect=403)["code"] == "insufficient_scope"
    stopper = Run(Api(server.url, make_token(key, scope="runs:stop")), _about(run))
    assert cancel_goal(stopper, "answer", wait_ms=30_000)["ended"] is True
    five_checks(run, models, key)


def test_a_goal_that_is_stopped_before_the_plan_runs_is_not_begun(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("goal.before_children") as before:
        run = start_plan(
            local.api(),
            goal("a", say_done(f"{key}-a")),
            goal("b", say_done(f"{key}-b")),
            goal("c", say_done(f"{key}-a"), "a"),
        )
        before.wait_reached()
        assert cancel_goal(run, "a")["ended"] is True
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": BY_USER, "b": DONE, "c": FOLLOWS}
    assert models.calls(key=f"{key}-a") == []
    five_checks(run, models, key)
