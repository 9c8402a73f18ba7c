"""Tools inside the server that misbehave: that catch everything, never listen, raise, or wait for a place."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.tool.tool import ABANDON_AFTER_S, ToolFailed, ToolResult, ToolRun
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer
from tests.support.plans import all_events
from tests.support.python_tools import PythonTool, call_line, give_tool
from tests.support.race_kit import Switch, check_nothing_left
from tests.support.servers import LocalServer, wait_until

LATE = "what came too late"


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


def _results(run: Run) -> list[str]:
    return [message["content"] for message in run.transcript() if message["role"] == "tool"]


def _receipt(run: Run) -> list[tuple[str, str]]:
    (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
    return [(item["kind"], item["outcome"]) for item in entry["receipt"]]


def _check_goal(run: Run) -> None:
    """A goal ends when its tool is left behind; if the machine is so slow that its own bound comes first, without that."""
    assert _receipt(run)[-1] in (("goal", "cancelled"), ("goal", "abandoned"))


# -- tools that catch everything ------------------------------------------------------------


def _swallow(begun: threading.Event, at_stop: Callable[[], ToolResult]) -> Callable[[ToolRun], ToolResult]:
    def work(run: ToolRun) -> ToolResult:
        begun.set()
        swallowed = 0
        while swallowed < 3:
            try:
                run.scope.sleep(60)
            except BaseException:
                swallowed += 1
        return at_stop()

    return work


def _raise_other() -> ToolResult:
    raise RuntimeError("while cleaning up")


@pytest.mark.parametrize(
    ("at_stop", "result"),
    [
        (lambda: ToolResult("all is well"), "cancelled by operator\nall is well"),
        (lambda: ToolResult(""), "cancelled by operator"),
        (_raise_other, "cancelled by operator\nthe tool failed: internal error (RuntimeError)"),
    ],
    ids=["returns", "returns-nothing", "raises"],
)
def test_a_tool_that_catches_everything_does_not_keep_the_stop_from_ending_the_loop(
    local: LocalServer, models: ModelServer, key: str, at_stop: Callable[[], ToolResult], result: str
) -> None:
    begun = threading.Event()
    give_tool(local, "swallow", _swallow(begun, at_stop))
    run = local.api().start(call_line(key, "swallow"))
    assert begun.wait(30)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    assert len(models.calls(key=key)) == 1
    assert _results(run) == [result]
    assert _receipt(run) == [("tool", "aborted"), ("goal", "cancelled")]
    five_checks(run, models, key)


# -- tools that never listen ------------------------------------------------------------------


def _deaf(switch: Switch, late: list[str]) -> Callable[[ToolRun], ToolResult]:
    def work(run: ToolRun) -> ToolResult:
        run.emit("stdout", "begun\n")
        switch.hold()
        run.emit("stdout", LATE)
        late.append("ended")
        return ToolResult(LATE)

    return work


def test_a_deaf_tool_is_left_behind_in_two_seconds_and_its_late_result_is_dropped(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    switch, late = Switch(), list[str]()
    give_tool(one_place, "deaf", _deaf(switch, late))
    pool = one_place.main.engine.pool
    run = one_place.api().start(call_line(key, "deaf"))
    switch.wait_reached()
    stopped_at = time.monotonic()
    first = run.cancel()
    assert time.monotonic() - stopped_at < 1  # long before the tool is given up
    assert (first["stopped"], first["parked"], first["state"]) == (True, False, "stopping")
    assert run.wait_parked() == "awaiting_input"
    assert ABANDON_AFTER_S - 0.1 < time.monotonic() - stopped_at < ABANDON_AFTER_S + 1.5
    assert _receipt(run)[0] == ("tool", "abandoned")
    _check_goal(run)
    assert _results(run) == ["cancelled by operator"]
    wait_until(lambda: (pool.busy, pool.abandoned) == (0, 1), "the goal's thread to end without its tool")
    five_checks(run, models, key)  # while it is still at work, on the one place that there is
    before = all_events(run)
    switch.open()
    wait_until(lambda: pool.abandoned == 0, "the end of the abandoned thread")
    assert late == ["ended"]
    assert all_events(run) == before
    assert LATE not in str(before) + str(run.transcript())
    five_checks(run, models, key)


def test_a_deaf_tool_that_comes_back_in_time_is_not_left_behind(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    switch, late = Switch(), list[str]()
    give_tool(local, "deaf", _deaf(switch, late))
    run = local.api().start(call_line(key, "deaf"))
    switch.wait_reached()
    run.cancel()
    switch.open()
    assert run.wait_parked() == "awaiting_input"
    assert _receipt(run) == [("tool", "aborted"), ("goal", "cancelled")]
    assert _results(run) == [f"cancelled by operator\n{LATE}"]  # it was in time
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


def test_the_tools_beside_a_deaf_one_are_told_as_they_ended(local: LocalServer, models: ModelServer, key: str) -> None:
    switch, begun = Switch(), threading.Event()
    give_tool(local, "deaf", _deaf(switch, []))
    give_tool(local, "quick", lambda run: ToolResult("quick"))
    give_tool(local, "swallow", _swallow(begun, lambda: ToolResult("late but there")))
    run = local.api().start(call_line(key, "deaf", "quick", "swallow"))
    switch.wait_reached()
    assert begun.wait(30)
    run.wait_event("tool_result", content="quick")
    run.cancel(wait_ms=30_000)
    assert _results(run) == ["cancelled by operator", "quick", "cancelled by operator\nlate but there"]
    assert _receipt(run)[:2] == [("tool", "abandoned"), ("tool", "aborted")]
    _check_goal(run)
    switch.open()
    five_checks(run, models, key)


def test_twenty_stops_of_deaf_tools_use_up_no_place_and_a_shutdown_does_not_wait_for_them(
    models: ModelServer, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PythonTool, "ends_within_s", 0.02)
    switch = Switch()
    with LocalServer(tmp_path, models.url, call_threads=1) as server:
        give_tool(server, "deaf", _deaf(switch, []))
        pool = server.main.engine.pool
        run = server.api().start(call_line(key, "deaf"))
        for number in range(1, 21):
            run.wait_event("tool_output", after=run.wait_event("turn_started", number=number)["seq"])
            assert run.cancel(wait_ms=30_000)["parked"] is True
            wait_until(lambda number=number: (pool.busy, pool.abandoned) == (0, number), "the places")
            if number < 20:
                run.say(call_line(key, "deaf"))
        five_checks(run, models, key)
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 10
    assert pool.abandoned == 20
    switch.open()
    wait_until(lambda: pool.abandoned == 0, "the end of all of them")


# -- tools that fail --------------------------------------------------------------------------


def _raising(error: BaseException) -> Callable[[ToolRun], ToolResult]:
    def work(run: ToolRun) -> ToolResult:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ToolFailed("there is no paper left"), "there is no paper left"),
        (ValueError("/etc/secret"), "the tool failed: internal error (ValueError)"),
        (SystemExit(3), "the tool failed: internal error (SystemExit)"),
        (KeyboardInterrupt(), "the tool failed: internal error (KeyboardInterrupt)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_tool_that_raises_is_told_to_the_model_and_the_loop_goes_on(
    local: LocalServer, models: ModelServer, key: str, error: BaseException, words: str
) -> None:
    give_tool(local, "broken", _raising(error))
    run = local.api().start(call_line(key, "broken"))
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == [words]
    assert of_type(run, "tool_result")[0]["is_error"] is True
    assert run.transcript()[-1]["content"] == "t1 t2 "
    assert "secret" not in str(all_events(run))
    five_checks(run, models, key)


@pytest.mark.parametrize("nonsense", [None, "a text", 7, ToolResult(7)], ids=["none", "text", "number", "inside"])  # type: ignore[arg-type]
def test_a_tool_that_returns_no_result_has_failed_and_the_loop_goes_on(
    local: LocalServer, models: ModelServer, key: str, nonsense: Any
) -> None:
    give_tool(local, "odd", lambda run: nonsense)
    run = local.api().start(call_line(key, "odd"))
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == ["the tool failed: internal error (TypeError)"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


# -- places ------------------------------------------------------------------------------------


def test_tools_that_wait_for_a_place_run_one_after_the_other(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    at_work, most = [0], [0]
    lock = threading.Lock()

    def work(run: ToolRun) -> ToolResult:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        run.scope.sleep(0.02)
        with lock:
            at_work[0] -= 1
        return ToolResult("done")

    give_tool(one_place, "slow", work)
    run = one_place.api().start(call_line(key, *["slow"] * 5))
    assert run.wait_parked() == "awaiting_input"
    assert _results(run) == ["done"] * 5
    assert most == [1]
    five_checks(run, models, key)


def test_tools_that_wait_for_a_place_at_a_stop_never_begin(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    begun: list[str] = []
    first = threading.Event()

    def work(run: ToolRun) -> ToolResult:
        begun.append(run.id)
        first.set()
        run.scope.sleep(60)
        return ToolResult("done")

    give_tool(one_place, "slow", work)
    run = one_place.api().start(call_line(key, *["slow"] * 3))
    assert first.wait(30)
    asked_at = time.monotonic()
    assert run.cancel()["stopped"] is True
    assert time.monotonic() - asked_at < 2
    run.wait_parked()
    assert len(begun) == 1
    assert _results(run) == ["cancelled by operator"] * 3
    assert sorted(_receipt(run)) == [
        ("goal", "cancelled"), ("tool", "aborted"), ("tool", "not_started"), ("tool", "not_started")
    ]  # fmt: skip
    five_checks(run, models, key)


def test_a_plan_of_many_tools_needs_no_more_threads_than_there_are_places_and_stops_with_most_not_begun(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    held = Switch()
    before = _call_threads()  # of servers that earlier tests had
    most: list[int] = []

    def work(run: ToolRun) -> ToolResult:
        most.append(_call_threads() - before)
        if len(most) == 20:
            held.hold()
        return ToolResult("done")

    give_tool(one_place, "count", work)
    goals = [{"id": f"g{number}", "tool": {"name": "count", "arguments": {}}} for number in range(200)]
    run = one_place.api().start("many", plan={"goals": goals})
    held.wait_reached()
    run.cancel()
    held.open()
    run.wait_parked()
    assert len(most) == 20
    assert max(most) < 15  # the place, the goals that lent it and come back, and what is about to begin or end
    (end,) = of_type(run, "turn_cancelled")
    outcomes = [item["outcome"] for item in end["receipt"] if item["kind"] == "goal"]
    assert outcomes.count("not_started") >= 175
    five_checks(run, models, key)


def _call_threads() -> int:
    return sum(thread.name == "call" for thread in threading.enumerate())
