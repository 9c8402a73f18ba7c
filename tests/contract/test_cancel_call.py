"""``POST …/calls/{call_id}/cancel``: one tool call ends; the model is told, and goes on."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import Api, Run, in_threads
from tests.support.five_checks import five_checks, processes_of
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, end_of, events_now, outcomes, part_stops, statuses
from tests.support.plans import goal, say_done, start_plan
from tests.support.python_tools import call_line, give_tool
from tests.support.race_kit import Switch, check_nothing_left
from tests.support.servers import LocalServer, ServerProcess, gate, wait_until

LONG = {"command": "echo begun; sleep 600 & sleep 600"}


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url) as server:
        yield server
        check_nothing_left(server)


@pytest.fixture
def one_place(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server that runs one call at a time."""
    with LocalServer(tmp_path, models.url, call_threads=1) as server:
        yield server
        check_nothing_left(server)


def _shell(key: str, *commands: dict[str, Any]) -> str:
    return script(
        "toolcall", name=["shell"] * len(commands), arguments=list(map(_escaped, commands)), tokens=2, key=key
    )


def _escaped(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, separators=(",", ":"))


def _results(run: Run) -> list[str]:
    return [message["content"] for message in run.transcript() if message["role"] == "tool"]


def _seen_by(run: Run) -> Run:
    """The same over connections of its own."""
    about = {"run_id": run.id, "session_id": run.session_id, "turn_id": run.first_turn}
    return Run(Api(run.api.url, run.api.token), about)


# -- a command -----------------------------------------------------------------------------------------


def test_a_command_that_is_stopped_alone_is_dead_and_the_model_reads_what_it_had_printed(
    shell_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = shell_server.api(key).start(_shell(key, LONG))
    output = run.wait_event("tool_output", text="begun\n")
    (call,) = events_now(run, "tool_call")
    wait_until(lambda: len(processes_of([call])) >= 3, "the command's processes")
    answer = cancel_call(run, output["call_id"], reason="too slow", if_turn=run.first_turn, wait_ms=30_000)
    assert processes_of([call]) == []
    assert (answer["goal_id"], answer["call_id"]) == ("answer", call["call_id"])
    assert (answer["stopped"], answer["ended"], outcomes(answer["receipt"])) == (True, True, [("tool", "killed")])
    assert run.wait_parked() == "awaiting_input"
    assert end_of(run)["type"] == "turn_completed"
    (result,) = _results(run)
    words, _, details = result.partition("\n")
    assert words == "cancelled by operator"
    shown = {"stdout": "begun\n", "exit_code": -1, "success": False, "interrupted": True}
    assert shown.items() <= json.loads(details).items()
    (told,) = [message for message in models.calls(key=key)[-1].messages if message["role"] == "tool"]
    assert told["content"] == result
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert "stopped" not in run.transcript()[-1]
    assert part_stops(run) == [("answer", call["call_id"])]
    assert of_type(run, "stop_requested")[0]["reason"] == "too slow"
    five_checks(run, models, key)


def test_one_of_three_commands_is_stopped_and_the_others_go_on_with_their_results_in_order(
    shell_server: ServerProcess, models: ModelServer, key: str, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    wait = {"command": f"until [ -e {flag} ]; do sleep 0.05; done; echo went on"}
    run = shell_server.api(key).start(_shell(key, wait, LONG, wait))
    output = run.wait_event("tool_output", text="begun\n")
    calls = events_now(run, "tool_call", 3)
    assert calls[1]["call_id"] == output["call_id"]
    assert cancel_call(run, output["call_id"], wait_ms=30_000)["ended"] is True
    assert run.state == "running"
    flag.touch()
    assert run.wait_parked() == "awaiting_input"
    results = _results(run)
    assert [result.startswith("cancelled by operator\n") for result in results] == [False, True, False]
    assert "went on" in results[0] and "went on" in results[2]
    request = models.calls(key=key)[-1].messages
    asked = [call["id"] for message in request for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in request if message["role"] == "tool"] == asked
    assert asked == [call["call_id"] for call in calls]
    five_checks(run, models, key)


def test_ten_stops_of_a_call_at_once_are_one_with_one_receipt(
    shell_server: ServerProcess, models: ModelServer, key: str, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    wait = {"command": f"until [ -e {flag} ]; do sleep 0.05; done"}  # the turn is not over before all were answered
    run = shell_server.api(key).start(_shell(key, LONG, wait))
    call_id = run.wait_event("tool_output", text="begun\n")["call_id"]
    answers = in_threads(10, lambda _: cancel_call(_seen_by(run), call_id, wait_ms=30_000))
    flag.touch()
    assert all(answer == answers[0] for answer in answers)
    assert (answers[0]["stopped"], answers[0]["ended"]) == (True, True)
    assert run.wait_parked() == "awaiting_input"
    assert part_stops(run) == [("answer", call_id)]
    five_checks(run, models, key)


def test_a_goal_that_is_a_tool_is_cancelled_with_its_call_and_its_dependents_follow(
    shell_server: ServerProcess, models: ModelServer, key: str
) -> None:
    tool = {"id": "a", "tool": {"name": "shell", "arguments": LONG}}
    run = start_plan(shell_server.api(key), tool, goal("b", say_done(f"{key}-b"), "a"), goal("c", say_done(key)))
    call_id = run.wait_event("tool_output", text="begun\n")["call_id"]
    assert cancel_call(run, call_id, wait_ms=30_000)["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert statuses(run) == {"a": ("CANCELLED", "user"), "b": ("CANCELLED", "dependency"), "c": ("COMPLETED", None)}
    assert models.calls(key=f"{key}-b") == []
    (result,) = of_type(run, "tool_result")
    assert result["content"].startswith("cancelled by operator\n")
    five_checks(run, models, key)


# -- a call that has not begun, has ended, or does not listen ---------------------------------------------


def test_a_call_that_waits_for_a_place_is_over_at_once_and_never_begins(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    switch, begun = Switch(), list[str]()

    def work(run: ToolRun) -> ToolResult:
        begun.append(run.id)
        if len(begun) == 1:
            switch.hold()
        return ToolResult("done")

    give_tool(one_place, "slow", work)
    run = one_place.api().start(call_line(key, *["slow"] * 3))
    switch.wait_reached()
    calls = [event["call_id"] for event in events_now(run, "tool_call", 3)]
    answer = cancel_call(run, calls[1], wait_ms=30_000)
    assert (answer["stopped"], answer["ended"], outcomes(answer["receipt"])) == (True, True, [("tool", "not_started")])
    run.wait_event("tool_result", call_id=calls[1])
    switch.open()
    assert run.wait_parked() == "awaiting_input"
    assert begun == [calls[0], calls[2]]
    assert _results(run) == ["done", "cancelled by operator", "done"]
    five_checks(run, models, key)


def test_a_call_that_waits_for_a_place_is_stopped_and_then_its_goal_as_well(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    begun = threading.Event()

    def work(run: ToolRun) -> ToolResult:
        begun.set()
        run.scope.sleep(60)
        return ToolResult("done")

    give_tool(one_place, "slow", work)
    run = one_place.api().start(call_line(key, *["slow"] * 3))
    assert begun.wait(30)
    calls = [event["call_id"] for event in events_now(run, "tool_call", 3)]
    assert cancel_call(run, calls[2])["ended"] is True
    run.cancel(wait_ms=30_000)
    assert _results(run) == ["cancelled by operator"] * 3
    assert part_stops(run) == [("answer", calls[2]), (None, None)]
    five_checks(run, models, key)


def test_a_call_that_was_just_claimed_and_has_not_begun_is_not_begun_after_its_stop(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    begun = list[str]()

    def work(run: ToolRun) -> ToolResult:
        begun.append(run.id)
        return ToolResult("done")

    give_tool(local, "quick", work)
    with gate("tool_batch.before_tools") as before:
        run = local.api().start(call_line(key, "quick", "quick"))
        before.wait_reached()
        calls = [event["call_id"] for event in events_now(run, "tool_call", 2)]
        assert outcomes(cancel_call(run, calls[0])["receipt"]) == [("tool", "not_started")]
    assert run.wait_parked() == "awaiting_input"
    assert begun == [calls[1]]
    assert _results(run) == ["cancelled by operator", "done"]
    five_checks(run, models, key)


def test_a_call_that_has_ended_is_not_stopped(local: LocalServer, models: ModelServer, key: str) -> None:
    switch = Switch()

    def slow(run: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("slow")

    give_tool(local, "slow", slow)
    give_tool(local, "quick", lambda run: ToolResult("quick"))
    run = local.api().start(call_line(key, "slow", "quick"))
    switch.wait_reached()
    call_id = run.wait_event("tool_result", content="quick")["call_id"]
    wait_until(lambda: cancel_call(run, call_id)["ended"], "the end of the call")
    answer = cancel_call(run, call_id, wait_ms=1000)
    assert (answer["goal_id"], answer["stopped"], answer["receipt"]) == ("answer", False, [])
    switch.open()
    assert run.wait_parked() == "awaiting_input"
    assert (_results(run), part_stops(run)) == (["slow", "quick"], [])
    assert cancel_call(run, call_id, expect=409)["code"] == "turn_is_over"
    five_checks(run, models, key)


def test_a_stop_that_comes_between_the_end_of_a_tool_and_its_result_comes_too_late(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    give_tool(local, "quick", lambda run: ToolResult("quick"))
    with gate("tool_batch.before_result") as before:
        run = local.api().start(call_line(key, "quick"))
        before.wait_reached()
        (call,) = events_now(run, "tool_call")
        answer = cancel_call(run, call["call_id"])
        assert (answer["stopped"], answer["ended"], answer["receipt"]) == (False, False, [])
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == ["quick"]
    assert len(models.calls(key=key)) == 2
    five_checks(run, models, key)


def test_a_call_that_ended_while_its_stop_was_on_the_way_is_not_stopped_and_nothing_is_recorded(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    switch = Switch()

    def slow(run: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("slow")

    give_tool(local, "slow", slow)
    run = local.api().start(call_line(key, "slow"))
    switch.wait_reached()
    (call,) = events_now(run, "tool_call")
    with gate("parts.before_call_is_stopped") as stopping:
        other = _seen_by(run)
        answers: list[dict[str, Any]] = []
        stop = threading.Thread(target=lambda: answers.append(cancel_call(other, call["call_id"])))
        stop.start()
        stopping.wait_reached()
        switch.open()
        assert run.wait_parked() == "awaiting_input"
    stop.join(30)
    assert (answers[0]["stopped"], answers[0]["ended"], answers[0]["receipt"]) == (False, True, [])
    assert (_results(run), part_stops(run)) == (["slow"], [])
    five_checks(run, models, key)


def test_a_deaf_call_is_left_behind_and_the_model_goes_on_without_it(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    switch = Switch()

    def deaf(run: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("LATE")

    give_tool(local, "deaf", deaf)
    give_tool(local, "quick", lambda run: ToolResult("quick"))
    run = local.api().start(call_line(key, "deaf", "quick"))
    switch.wait_reached()
    calls = events_now(run, "tool_call", 2)
    asked_at = time.monotonic()
    answer = cancel_call(run, calls[0]["call_id"], wait_ms=30_000)
    assert time.monotonic() - asked_at < 3.5  # 1.5 s is what a tool has
    assert (answer["ended"], outcomes(answer["receipt"])) == (True, [("tool", "abandoned")])
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == ["cancelled by operator", "quick"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)
    switch.open()
    wait_until(lambda: not local.main.engine.pool.abandoned, "the end of the thread that was left behind")
    assert "LATE" not in str(five_checks(run, models, key))


def test_calls_that_are_not_there_are_not_found(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_plan(local.api(), goal("a", script("silent", key=key)))
    models.wait_calls(1, key=key)
    assert cancel_call(run, "c_none", expect=404)["code"] == "not_found"
    assert cancel_call(run, "a", expect=404)["code"] == "not_found"  # a goal is no call
    (model_call,) = [call.id for turn in local.main.engine.live_turns() for call in turn.calls.snapshot()]
    assert cancel_call(run, model_call, expect=404)["code"] == "not_found"
    foreign = Run(local.api(f"{key}-other"), {"run_id": run.id, "session_id": "", "turn_id": ""})
    assert cancel_call(foreign, "c_none", expect=404)["code"] == "not_found"
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)
