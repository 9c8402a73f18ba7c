"""A turn in which nothing happens is stopped, with a cause of its own; one in which something happens is not."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.liveness_kit import LIMIT_MS
from tests.support.model_server import ModelServer, script
from tests.support.plans import all_events, goal, start_plan, start_silent, stop_causes
from tests.support.servers import ServerProcess

#: Between two signs of life, and as many of them as last for much longer than the limit.
GAP_MS, SIGNS = 150, 25


def _shell(key: str, command: str) -> str:
    arguments = json.dumps({"command": command}, separators=(",", ":"))
    return script("toolcall", name=["shell"], arguments=[arguments.replace(" ", "\\u0020")], tokens=2, key=key)


def _seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def _check_stopped(run: Run, limit_ms: int = LIMIT_MS) -> None:
    end = run.wait_event("turn_cancelled")
    assert (end["cause"], end["reason"]) == ("liveness", f"no progress for {limit_ms} ms")
    assert stop_causes(run) == ["liveness"]
    events = all_events(run)
    stop = next(event for event in events if event["type"] == "stop_requested")
    before = next(event for event in reversed(events) if event["seq"] < stop["seq"])
    assert _seconds(stop) - _seconds(before) >= limit_ms / 1000 - 0.1  # as it is told, to the millisecond and by hand


def _check_completed(run: Run, longer_than_ms: float = LIMIT_MS) -> None:
    """It came to its end, though it took longer than the limit: the test would tell nothing else."""
    assert run.wait_parked() == "awaiting_input"
    end = run.wait_event("turn_completed")
    assert stop_causes(run) == []
    assert _seconds(end) - _seconds(run.wait_event("turn_started")) > longer_than_ms / 1000


# -- silence ---------------------------------------------------------------------------------------------


def test_a_silent_model_is_stopped_with_its_own_cause_and_the_next_message_works(
    each_provider: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(each_provider.api(key), models, key, idle_limit_ms=LIMIT_MS)
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    assert run.goals()["answer"]["cause"] == "liveness"
    assert run.transcript()[-1]["content"] == "[stopped: liveness before any text]"
    five_checks(run, models, key)


@pytest.mark.parametrize("cancel", ["deaf", "refuse"])
def test_a_gateway_that_does_not_cancel_holds_the_watchdog_up_no_longer_than_any_stop(
    api: Api, models: ModelServer, key: str, cancel: str
) -> None:
    run = start_silent(api, models, key, cancel=cancel, idle_limit_ms=LIMIT_MS)
    run.wait_parked()
    _check_stopped(run)
    five_checks(run, models, key)


def test_a_model_that_falls_silent_in_its_answer_is_stopped_and_what_it_said_stays(
    each_provider: ServerProcess, models: ModelServer, key: str
) -> None:
    line = script("trickle", tokens=2, interval_ms=3_600_000, key=key)
    run = each_provider.api(key).start(line, idle_limit_ms=LIMIT_MS)
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    said = run.transcript()[-1]
    assert (said["content"], said["stopped"], said["cause"]) == ("t1 ", True, "liveness")
    five_checks(run, models, key)


def test_a_tool_without_output_is_stopped_and_its_processes_are_gone(
    shell_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = shell_server.api(key).start(_shell(key, "sleep 600"), idle_limit_ms=LIMIT_MS)
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    assert run.wait_event("tool_result")["content"].startswith("cancelled: liveness")
    five_checks(run, models, key)


def test_one_silent_goal_is_no_silent_turn_while_another_one_speaks(api: Api, models: ModelServer, key: str) -> None:
    speaking = script("trickle", tokens=SIGNS, interval_ms=GAP_MS, key=key)
    run = start_plan(
        api, goal("silent", script("silent", key=key)), goal("speaking", speaking), idle_limit_ms=LIMIT_MS
    )
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    goals = run.goals()
    assert (goals["speaking"]["status"], goals["silent"]["cause"]) == ("COMPLETED", "liveness")
    five_checks(run, models, key)


def test_a_batch_run_ends(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key, interactive=False, idle_limit_ms=LIMIT_MS)
    assert run.wait_parked() == "cancelled"
    assert [(event["type"], event["cause"]) for event in run.events()[-2:]] == [
        ("turn_cancelled", "liveness"), ("run_cancelled", "liveness"),
    ]  # fmt: skip
    assert stop_causes(run) == ["liveness"]
    five_checks(run, models, key, is_batch=True)


def test_a_silent_planner_is_stopped(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(script("silent", on="plan", key=key), planning="auto", idle_limit_ms=LIMIT_MS)
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    run.say(script("strict", on="any", key=key))
    run.wait_event("turn_completed")


def test_a_resumed_turn_is_watched_too(api: Api, models: ModelServer, key: str) -> None:
    run = start_silent(api, models, key, idle_limit_ms=LIMIT_MS)
    run.wait_parked()
    turn_id = api.post(f"{run.path}/resume", expect=202)["turn_id"]
    assert run.wait_event("turn_cancelled", turn_id=turn_id)["cause"] == "liveness"
    five_checks(run, models, key)


# -- signs of life -----------------------------------------------------------------------------------------


@pytest.mark.spread(2)
@pytest.mark.parametrize("thinks", [False, True], ids=["text", "thoughts"])
def test_a_model_that_trickles_is_never_stopped(
    each_provider: ServerProcess, models: ModelServer, key: str, thinks: bool
) -> None:
    amount = {"tokens": 1, "reasoning": SIGNS} if thinks else {"tokens": SIGNS}
    run = each_provider.api(key).start(
        script("trickle", interval_ms=GAP_MS, key=key, **amount), idle_limit_ms=LIMIT_MS
    )
    _check_completed(run)
    five_checks(run, models, key)


@pytest.mark.spread(2)
def test_a_plan_that_is_handed_in_piece_by_piece_counts_though_no_event_tells_of_it_yet(
    each_provider: ServerProcess, models: ModelServer, key: str
) -> None:
    line = script("plan", many=4, interval_ms=GAP_MS, prompt="hello", on="plan", key=key)
    run = each_provider.api(key).start(line, planning="auto", idle_limit_ms=LIMIT_MS)
    _check_completed(run)
    assert len(run.goals()) == 4
    five_checks(run, models, key)


def test_the_output_of_a_tool_counts(shell_server: ServerProcess, models: ModelServer, key: str) -> None:
    command = f"for i in $(seq {SIGNS}); do echo $i; sleep {GAP_MS / 1000}; done"
    run = shell_server.api(key).start(_shell(key, command), idle_limit_ms=LIMIT_MS)
    _check_completed(run)
    five_checks(run, models, key)


def test_an_announced_wait_for_a_retry_does_not_count(api: Api, models: ModelServer, key: str) -> None:
    run = api.start(script("busy", times=1, retry_after_s=4, tokens=2, key=key), idle_limit_ms=LIMIT_MS)
    _check_completed(run, longer_than_ms=4000)
    assert run.wait_event("retry")["wait_ms"] == 4000
    five_checks(run, models, key)


# -- the limit -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that is set up with a short limit."""
    with ServerProcess(tmp_path_factory.mktemp("short"), models.url, IDLE_LIMIT_MS=str(LIMIT_MS)) as process:
        yield process


def test_the_servers_limit_holds_for_runs_without_one(
    strict_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(strict_server.api(key), models, key)
    assert run.wait_parked() == "awaiting_input"
    _check_stopped(run)
    five_checks(run, models, key)


@pytest.mark.parametrize("limit_ms", [0, 60_000], ids=["off", "longer"])
def test_a_runs_own_limit_wins_over_the_servers(
    strict_server: ServerProcess, models: ModelServer, key: str, limit_ms: int
) -> None:
    line = script("prefill", delay_ms=2 * LIMIT_MS, tokens=2, key=key)
    run = strict_server.api(key).start(line, idle_limit_ms=limit_ms)
    _check_completed(run)
    five_checks(run, models, key)


def test_a_run_may_have_a_limit_where_the_server_has_none(models: ModelServer, key: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, models.url, IDLE_LIMIT_MS="0") as server:
        run = start_silent(server.api(), models, key, idle_limit_ms=LIMIT_MS)
        run.wait_parked()
        _check_stopped(run)
        five_checks(run, models, key)


@pytest.mark.parametrize("limit_ms", [0, 1, 604_800_000])
def test_the_edges_of_the_limit_are_taken(api: Api, key: str, limit_ms: int) -> None:
    run = api.start(script("trickle", tokens=1, interval_ms=0, key=key), idle_limit_ms=limit_ms)
    assert run.wait_parked() == "awaiting_input"


# -- a server that stood still ---------------------------------------------------------------------------------


def test_time_in_which_the_server_itself_stood_still_does_not_count(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    """The answer comes just after the server goes on: its alarm was due long ago, and must not be faster."""
    run = own.api().start(script("prefill", delay_ms=6000, tokens=2, key=key), idle_limit_ms=2500)
    models.wait_calls(1, key=key)
    assert own.process is not None
    worker = _child_of(own.process.pid)
    os.kill(worker, signal.SIGSTOP)
    try:
        threading.Event().wait(5)  # longer than the limit: that is what is tested
    finally:
        os.kill(worker, signal.SIGCONT)
    _check_completed(run, longer_than_ms=5000)
    five_checks(run, models, key)


def _child_of(pid: int) -> int:
    found = [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(found) == 1, found
    return found[0]
