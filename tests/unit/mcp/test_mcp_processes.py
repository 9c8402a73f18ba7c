"""The processes of MCP servers: what they see, servers that misbehave, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.cancellation import Cancelled
from core.tool.mcp import session as mcp_session
from core.tool.tool import ToolFailed
from tests.support.api_client import PATIENCE_S
from tests.support.mcp_kit import BOUND_S, PROGRAM, McpCall, StandInLog, is_alive, mcp_servers, stdio_entry, wait_state
from tests.support.servers import wait_until
from tests.support.shell_kit import children, leaves_nothing


def test_a_server_sees_the_allowed_variables_and_its_own_and_no_other(
    tmp_path: Path, log: StandInLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTH_JWT_SECRET", "a-secret-of-the-server")
    monkeypatch.setenv("ITS_KEY", "a-secret-of-its-own")
    with mcp_servers(tmp_path, one=stdio_entry(log, env={"KEY": "${ITS_KEY}"})) as servers:
        wait_state(servers, "ready")
        words = McpCall(servers, "one__environment").content().split()
    assert "KEY=a-secret-of-its-own" in words
    assert f"PATH={os.environ['PATH']}" in words
    names = {word.partition("=")[0] for word in words}
    # The last four are not ours: two marks, and what Python and the shell set for themselves.
    assert names <= {"KEY", "PATH", "SHELL_CALL_ID", "MCP_SERVER_OF", "LC_CTYPE", "PWD"}


# -- servers that misbehave --------------------------------------------------------------------


def test_a_server_that_dies_during_a_call_is_reported_and_the_next_call_has_another(
    tmp_path: Path, log: StandInLog
) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "child")) as servers:
        wait_state(servers, "ready")
        with pytest.raises(ToolFailed, match="'one' was lost while it worked"):
            McpCall(servers, "one__die").content()
        assert McpCall(servers, "one__echo", text="again").content() == "again"
        first, second = log.of("start")
        assert set(log.alive()) == {second["pid"], log.of("child")[1]["child"]}, "the first one's child is left"
        assert first["pid"] != second["pid"]


def test_a_server_that_exits_at_once_is_reported_and_so_is_a_command_that_is_not_there(
    tmp_path: Path, log: StandInLog
) -> None:
    entries = {"fails": stdio_entry(log, "fail"), "none": {"command": "no-such-command-here"}, "good": stdio_entry(log)}
    entries["folder"] = stdio_entry(log, cwd=str(tmp_path / "no-such-folder"))
    with mcp_servers(tmp_path, **entries) as servers:
        assert "exit code 7" in wait_state(servers, "failed", "fails")["error"]
        assert "the command was not found" in wait_state(servers, "failed", "none")["error"]
        assert "No such file or directory" in wait_state(servers, "failed", "folder")["error"]
        wait_state(servers, "ready", "good")
        log.wait("start", 4)  # it is tried again, with pauses in between
        assert McpCall(servers, "good__echo", text="good").content() == "good"


def test_a_server_that_hangs_in_the_handshake_is_given_up_and_ended(
    tmp_path: Path, log: StandInLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_session, "HANDSHAKE_S", 3.0)
    began = time.monotonic()
    with mcp_servers(
        tmp_path, hangs=stdio_entry(log, "hang-initialize"), good=stdio_entry(StandInLog(tmp_path / "2"))
    ) as servers:
        assert time.monotonic() - began < BOUND_S
        wait_state(servers, "ready", "good")
        assert "did not answer the handshake" in wait_state(servers, "failed", "hangs")["error"]
        log.wait("start", 2)
        wait_until(lambda: len(log.alive()) <= 1, "the end of the first one")
        began = time.monotonic()
    assert time.monotonic() - began < BOUND_S
    assert log.alive() == []


def test_a_call_to_a_server_that_does_not_come_back_fails_in_time_and_a_stop_ends_the_wait(
    tmp_path: Path, log: StandInLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_session, "WAIT_READY_S", 3.0)
    mark = tmp_path / "mark"
    entry = stdio_entry(log)
    program = f"test -e {mark} && exec sleep 7777; exec " + json.dumps(entry["command"]) + " " + " ".join(entry["args"])
    with mcp_servers(tmp_path, one={"command": "/bin/sh", "args": ["-c", program]}) as servers:
        wait_state(servers, "ready")
        mark.touch()
        with pytest.raises(ToolFailed):
            McpCall(servers, "one__die").content()
        call = McpCall(servers, "one__echo", text="never")
        wait_state(servers, "connecting")
        call.stop()
        assert call.receipt() == ("not_started", "never began")
        assert isinstance(call.error, Cancelled)
        with pytest.raises(ToolFailed, match="'one' is not there"):
            McpCall(servers, "one__echo", text="never").content()


def test_a_list_of_the_wrong_shape_fails_its_server_and_a_wrong_schema_only_its_tool(
    tmp_path: Path, log: StandInLog
) -> None:
    with mcp_servers(tmp_path, list=stdio_entry(log, "wrong-list"), schema=stdio_entry(log, "wrong-schema")) as servers:
        assert "validation error" in wait_state(servers, "failed", "list")["error"]
        wait_state(servers, "ready", "schema")
        assert "schema__wrong" not in servers.tools()
        assert "schema__echo" in servers.tools()


# -- the end -----------------------------------------------------------------------------------


def test_a_close_is_bounded_and_tells_what_runs(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "child")) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__slow")
        number = log.call_id(tool="slow")
        began = time.monotonic()
        servers.close()
        assert time.monotonic() - began < BOUND_S
        call.wait()
        assert isinstance(call.error, ToolFailed)
        with pytest.raises(ToolFailed, match="closed"):
            McpCall(servers, "one__echo").content()
        servers.close()
    log.wait("cancelled", id=number)
    assert log.alive() == []
    assert "mcp-servers" not in [thread.name for thread in threading.enumerate()]


def test_a_close_while_a_session_is_being_ended_leaves_nothing(tmp_path: Path, log: StandInLog) -> None:
    others = children()
    with leaves_nothing(), mcp_servers(tmp_path, output_cap=1024, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        # Suspended, it does not end the server: so the end of the broken session takes its whole bound.
        (supervisor,) = children() - others
        os.kill(supervisor, signal.SIGSTOP)
        with pytest.raises(ToolFailed, match="was lost while it worked"):
            McpCall(servers, "one__enormous").content()
        servers.close()
    assert log.alive() == []


def test_sessions_that_come_and_go_leave_no_descriptor_and_no_child(tmp_path: Path, log: StandInLog) -> None:
    with leaves_nothing(), mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        for number in range(3):
            with pytest.raises(ToolFailed):
                McpCall(servers, "one__die").content()
            assert McpCall(servers, "one__echo", text=str(number)).content() == str(number)


def test_servers_that_were_never_started_can_be_closed(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path) as servers:
        assert servers.status() == []
    began = time.monotonic()
    servers.close()
    assert time.monotonic() - began < PATIENCE_S


def test_what_a_killed_server_of_ours_has_left_is_ended_by_the_next_start(tmp_path: Path, log: StandInLog) -> None:
    run = f"exec {sys.executable} {PROGRAM} {log.path} child"
    entry = {"command": "/bin/sh", "args": ["-c", f"kill -STOP $PPID; {run}"]}
    code = (
        "import json, pathlib, sys, threading; from tests.support.mcp_kit import BOUND_S, mcp_servers\n"
        "with mcp_servers(pathlib.Path(sys.argv[1]), one=json.loads(sys.argv[2])): threading.Event().wait()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ours = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), json.dumps(entry)], env=environment)
    try:
        (start,), (child,) = log.wait("start"), log.wait("child")
    finally:
        ours.kill()
        ours.wait(PATIENCE_S)
    left = [start["parent"], child["child"]]
    assert all(map(is_alive, left)), "the supervisor is suspended, and has not noticed"
    try:
        another = tmp_path / "another"
        another.mkdir()
        with mcp_servers(another, two=stdio_entry(StandInLog(tmp_path / "log2"))) as servers:
            wait_state(servers, "ready")
            assert all(map(is_alive, left)), "they belong to another DATA_DIR"
        with mcp_servers(tmp_path, two=stdio_entry(StandInLog(tmp_path / "log3"))) as servers:
            wait_state(servers, "ready")
            assert not any(map(is_alive, left))
            assert log.alive() == []
    finally:
        for pid in filter(is_alive, left):
            os.kill(pid, signal.SIGKILL)


def test_the_words_of_a_server_do_not_come_into_our_log_by_way_of_the_sdk() -> None:
    code = (
        "import logging; from core.logs import configure_logs; configure_logs('info')\n"
        "import core.tool.mcp.session\n"
        "for name in ('mcp.client.streamable_http', 'client', 'httpx2'): logging.getLogger(name).error('its words')\n"
        "logging.getLogger('core').warning('ours')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ours" in done.stderr
    assert "its words" not in done.stderr
