"""MCP tools over HTTP: turns that are stopped while a server works, servers that die, and what is left of them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.mcp_kit import HttpStandIn, StandInLog, call_line, results_of, stdio_entry, wait_ready, write_config
from tests.support.model_server import ModelServer
from tests.support.plans import seen_at
from tests.support.servers import ServerProcess, wait_until

#: Makes a server of ours that uses these MCP servers.
Make = Callable[..., ServerProcess]


@pytest.fixture
def make(models: ModelServer, tmp_path: Path) -> Iterator[Make]:
    """The servers that it has made end with the test."""
    made: list[ServerProcess] = []

    def make_server(entries: dict[str, Any], **environment: str) -> ServerProcess:
        file = write_config(tmp_path / "mcp.json", **entries)
        variables = {"TOOLS_ALLOWED": "mcp", "MCP_SERVERS_FILE": str(file), **environment}
        made.append(ServerProcess(tmp_path, models.url, **variables).start())
        return made[-1]

    yield make_server
    for server in made:
        server.__exit__()


@pytest.fixture
def log(tmp_path: Path) -> StandInLog:
    """Of the stand-in MCP server."""
    return StandInLog(tmp_path / "mcp.log")


@pytest.fixture(params=["stdio", "http"])
def entry(request: pytest.FixtureRequest, log: StandInLog) -> Iterator[dict[str, Any]]:
    """The stand-in server over each transport."""
    if request.param == "stdio":
        yield stdio_entry(log, "child")
        return
    with HttpStandIn(log) as far:
        yield {"url": far.url}


def _start_slow(api: Api, log: StandInLog, key: str, tool: str = "slow") -> tuple[Run, Any]:
    """A run whose MCP call is at work, and the call's request id."""
    run = api.start(call_line(key, f"one__{tool}", key))
    return run, log.call_id(tool=tool, arguments={"text": key})


def _tool_item(run: Run) -> tuple[str, str]:
    (entry,) = run.api.get(f"{run.path}/receipts")["receipts"]
    (item,) = (item for item in entry["receipt"] if item["kind"] == "tool")
    return item["outcome"], item["how"]


def test_a_tool_of_a_server_answers_and_its_progress_is_seen(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str
) -> None:
    api = make({"one": entry}).api()
    wait_ready(api, key, log)
    run = api.start(call_line(key, "one__echo", "hallo"))
    run.wait_parked()
    assert results_of(run) == ["hallo"]
    assert "one__echo" in models.calls(key=key)[0].tools
    five_checks(run, models, key)
    slow, _ = _start_slow(api, log, f"{key}-2", "progress")
    assert "step 1" in slow.wait_event("tool_output", stream="stdout")["text"]
    slow.cancel()
    five_checks(slow, models, f"{key}-2")


@pytest.mark.spread(2)
@pytest.mark.parametrize("tool", ["slow", "late", "deaf"])
def test_a_stop_tells_the_server_which_request_is_cancelled_and_waits_for_no_answer(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str, tool: str
) -> None:
    api = make({"one": entry}).api()
    wait_ready(api, key, log)
    run, number = _start_slow(api, log, key, tool)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    log.wait("cancelled", id=number)
    assert _tool_item(run) == ("cancelled", "cancel notice sent")
    assert results_of(run) == ["cancelled by operator"]
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)
    again = api.start(call_line(f"{key}-2", "one__echo", "the session lives"))
    again.wait_parked()
    assert results_of(again) == ["the session lives"]


def test_a_terminated_run_tells_the_server_too(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str
) -> None:
    api = make({"one": entry}).api()
    wait_ready(api, key, log)
    run, number = _start_slow(api, log, key)
    run.terminate()
    assert run.wait_parked() == "cancelled"
    log.wait("cancelled", id=number)
    five_checks(run, models, key)


def test_a_time_limit_tells_the_server_too_and_the_loop_goes_on(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str
) -> None:
    api = make({"one": entry}, TOOL_TIMEOUT_MS="1500").api()
    wait_ready(api, key, log)
    run, number = _start_slow(api, log, key)
    assert run.wait_parked() == "awaiting_input"
    log.wait("cancelled", id=number)
    (result,) = of_type(run, "tool_result")
    assert result["is_error"] is True
    assert "took longer than 1.5 s" in result["content"]
    assert len(models.calls(key=key)) == 2
    five_checks(run, models, key)


def test_a_shutdown_tells_the_server_and_leaves_no_process(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str
) -> None:
    server = make({"one": entry})
    wait_ready(server.api(), key, log)
    run, number = _start_slow(server.api(), log, key)
    assert server.terminate() == 0
    log.wait("cancelled", id=number)
    if "command" in entry:
        assert log.alive() == []
    server.start()
    five_checks(seen_at(server, run), models, key)


def test_of_two_turns_on_one_session_a_stop_reaches_one(
    make: Make, models: ModelServer, log: StandInLog, entry: dict[str, Any], key: str
) -> None:
    api = make({"one": entry}).api()
    wait_ready(api, key, log)
    stopped, number = _start_slow(api, log, key)
    other, late = _start_slow(api, log, f"{key}-2", "late")
    stopped.cancel(wait_ms=30_000)
    log.wait("cancelled", id=number)
    assert log.of("cancelled", id=late) == []
    assert other.state == "running"
    five_checks(stopped, models, key)
    other.cancel(wait_ms=30_000)
    log.wait("cancelled", id=late)
    five_checks(other, models, f"{key}-2")


def test_a_server_that_dies_is_reported_to_the_model_and_the_next_message_has_another(
    make: Make, models: ModelServer, log: StandInLog, key: str
) -> None:
    api = make({"one": stdio_entry(log, "child")}).api()
    wait_ready(api, key, log)
    run = api.start(call_line(key, "one__die"))
    run.wait_parked()
    (result,) = of_type(run, "tool_result")
    assert result["is_error"] is True
    assert "'one' was lost while it worked" in result["content"]
    run.say(call_line(key, "one__echo", "another"))
    run.wait_event("turn_completed", after=run.view()["last_seq"])
    assert results_of(run)[-1] == "another"
    assert len(log.of("start")) == 2
    five_checks(run, models, key)


def test_a_server_that_hangs_in_the_handshake_delays_neither_the_start_nor_the_end(
    make: Make, models: ModelServer, log: StandInLog, tmp_path: Path, key: str
) -> None:
    began = time.monotonic()
    hanging = StandInLog(tmp_path / "hanging.log")
    server = make({"hangs": stdio_entry(hanging, "hang-initialize", "child"), "one": stdio_entry(log)})
    assert time.monotonic() - began < 25, "it waited for the handshake, whose bound is 30 s"
    hanging.wait("initialize")
    wait_ready(server.api(), key, log)
    run = server.api().start(call_line(key, "one__echo", "hallo"))
    five_checks(run, models, key)
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 10
    assert log.alive() == hanging.alive() == []


def test_nothing_of_the_servers_outlives_a_server_that_was_killed(
    make: Make, models: ModelServer, log: StandInLog, key: str
) -> None:
    server = make({"one": stdio_entry(log, "child")})
    wait_ready(server.api(), key, log)
    run, _ = _start_slow(server.api(), log, key)
    assert len(log.alive()) == 2
    server.kill()
    wait_until(lambda: log.alive() == [], "the end of the MCP server and of what it started")
    server.start()
    five_checks(seen_at(server, run), models, key)


def test_an_agent_has_the_servers_that_it_names(
    make: Make, models: ModelServer, log: StandInLog, tmp_path: Path, key: str
) -> None:
    agents = tmp_path / "agents.json"
    agents.write_text(json.dumps([{"name": "narrow", "tools": ["mcp:two"]}]), "utf-8")
    second = StandInLog(tmp_path / "second.log")
    entries = {"one": stdio_entry(log), "two": stdio_entry(second)}
    api = make(entries, AGENTS_FILE=str(agents)).api()
    wait_ready(api, key, log, second)
    wait_ready(api, key, server="two")
    run = api.start(call_line(key, "one__echo"), agent="narrow")
    run.wait_parked()
    assert "there is no tool 'one__echo'" in results_of(run)[0]
    assert {name.partition("__")[0] for name in models.calls(key=key)[0].tools} == {"two"}
    five_checks(run, models, key)


def test_a_wrong_file_ends_the_start_with_one_line(models: ModelServer, tmp_path: Path) -> None:
    file = write_config(tmp_path / "mcp.json", one={"command": "a", "env": {"KEY": "${NO_SUCH_VARIABLE}"}})
    server = ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="mcp", MCP_SERVERS_FILE=str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "api"], env=server.environment, cwd=tmp_path, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert "${NO_SUCH_VARIABLE} is not set" in line
