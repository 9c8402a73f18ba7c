"""MCP servers that are programs: calls, stops, servers that misbehave, and what is left of them."""

import array
import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from core.cancellation import Cancelled, Cause, CauseWord
from core.tool.mcp import session as mcp_session
from core.tool.mcp.call import Ended, RemoteCall
from core.tool.output import SHOWN_BYTES
from core.tool.tool import ToolFailed
from tests.support.api_client import PATIENCE_S
from tests.support.mcp_kit import PROGRAM, McpCall, StandInLog, is_alive, mcp_servers, stdio_entry, wait_state
from tests.support.servers import wait_until
from tests.support.shell_kit import children, leaves_nothing

#: Bounds of 2 s, on a machine that is shared.
BOUND_S = 5.0


@pytest.fixture
def log(tmp_path: Path) -> StandInLog:
    """Of the stand-in server."""
    return StandInLog(tmp_path / "log")


# -- calls -------------------------------------------------------------------------------------


def test_a_servers_tools_are_listed_with_their_schemas_and_answer(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        status = wait_state(servers, "ready")
        tools = servers.tools("one")
        assert status == {"name": "one", "state": "ready", "tools": len(tools)}
        assert tools["one__echo"].description == "answers with its text"
        assert tools["one__echo"].parameters["properties"] == {"text": {"type": "string"}}
        assert McpCall(servers, "one__echo", text="hallo").content() == "hallo"
        with pytest.raises(KeyError):
            servers.tools("another")
    assert log.alive() == []
    assert log.of("closed"), "it was not given the time to end by itself"


@pytest.mark.parametrize(
    ("tool", "content"),
    [
        ("structured", '{"answer": 42}'),
        ("half", "half \ufffd, pair \U0001f600"),
        (
            "kinds",
            "words\n[an image, image/png, 3 bytes]\n[a resource: notes, file:///notes]\n"
            "[a file, file:///b, application/zip, 2 bytes]\ninside",
        ),
    ],
)
def test_answers_of_each_kind_become_text(tmp_path: Path, log: StandInLog, tool: str, content: str) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        assert McpCall(servers, f"one__{tool}").content() == content


def test_an_error_of_the_tool_is_an_error_result_and_one_of_the_protocol_says_so(
    tmp_path: Path, log: StandInLog
) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__fail").wait()
        assert call.result is not None
        assert (call.result.content, call.result.is_error) == ("it did not work", True)
        with pytest.raises(ToolFailed, match="answered with an error: not like that"):
            McpCall(servers, "one__refuse").content()


def test_a_long_answer_is_shortened(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        content = McpCall(servers, "one__huge").content()
        assert len(content.encode()) <= SHOWN_BYTES
        assert content.startswith("begin")
        assert content.endswith("end")


def test_a_line_without_end_breaks_the_session_and_the_next_call_has_another(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, output_cap=1024, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        with pytest.raises(ToolFailed, match="was lost while it worked"):
            McpCall(servers, "one__enormous").content()
        assert McpCall(servers, "one__echo", text="again").content() == "again"


def test_progress_notifications_become_output(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__progress")
        wait_until(lambda: call.said.count("\n") == 3, "the three steps")
        assert call.said == "1/3 step 1\n2/3 step 2\n3/3 step 3\n"
        call.stop()


def test_too_much_progress_ends_the_call_and_the_server_is_told(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, output_cap=4096, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__flood")
        assert "longer than 4096 bytes" in call.content()
        assert call.run.limit_hit is CauseWord.OUTPUT_LIMIT
        assert len(call.said) <= 4096
        log.wait("cancelled", id=log.call_id(tool="flood"))


def test_a_server_that_writes_noise_is_still_understood(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "noisy")) as servers:
        wait_state(servers, "ready")
        assert McpCall(servers, "one__echo", text="clear").content() == "clear"


def test_tools_that_are_new_show_in_a_mapping_that_was_taken_before(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        tools = servers.tools()
        wait_state(servers, "ready")
        assert "one__more_fun" not in tools
        McpCall(servers, "one__more", text="fun").content()
        wait_until(lambda: "one__more_fun" in tools, "the new tool")
        assert len(tools) == len(list(tools)) == servers.status()[0]["tools"]


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


def test_a_server_of_the_newest_protocol_alone_is_asked_in_its_own_way(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "newest")) as servers:
        wait_state(servers, "ready")
        assert log.of("discover")
        assert McpCall(servers, "one__echo", text="hallo").content() == "hallo"
        call = McpCall(servers, "one__slow")
        number = log.call_id(tool="slow")
        call.stop()
        log.wait("cancelled", id=number)


def test_what_a_tool_answers_is_not_checked_against_a_schema_of_its_server(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "wrong-output")) as servers:
        wait_state(servers, "ready")
        assert McpCall(servers, "one__structured").content() == '{"answer": 42}'


def test_a_list_that_changes_all_the_time_is_asked_for_with_pauses_and_grows_nothing(
    tmp_path: Path, log: StandInLog
) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "storm")) as servers:
        wait_state(servers, "ready")
        began, so_far = time.monotonic(), len(log.of("list"))
        log.wait("list", so_far + 4)
        # The first may come at once. Before the others there are pauses, each twice as long as the one before it.
        assert time.monotonic() - began > 4 * mcp_session._LISTING_PAUSE_S
        assert McpCall(servers, "one__echo", text="meanwhile").content() == "meanwhile"
        assert len(servers._names) <= len(servers.tools()) + 1  # one list may be coming in


# -- stops -------------------------------------------------------------------------------------


def test_a_stop_sends_the_cancel_notice_with_the_requests_id_and_frees_the_thread(
    tmp_path: Path, log: StandInLog
) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        for tool in ("slow", "deaf"):
            call = McpCall(servers, f"one__{tool}")
            number = log.call_id(tool=tool)
            began = time.monotonic()
            call.stop()
            assert time.monotonic() - began < BOUND_S
            assert isinstance(call.error, Cancelled)
            assert call.receipt() == ("cancelled", "cancel notice sent")
            log.wait("cancelled", id=number)
        assert McpCall(servers, "one__echo", text="next").content() == "next"
        assert len(log.of("start")) == 1, "the session was lost"


def test_an_answer_that_comes_after_the_cancel_notice_is_dropped(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__late", text="too late")
        number = log.call_id(tool="late")
        call.stop()
        log.wait("answer", id=number)
        assert McpCall(servers, "one__echo", text="next").content() == "next"
        assert call.result is None
        assert len(log.of("start")) == 1


def test_of_two_calls_on_one_session_a_stop_ends_one(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        other = McpCall(servers, "one__late", text="the other")
        call = McpCall(servers, "one__slow")
        number = log.call_id(tool="slow")
        call.stop()
        log.wait("cancelled", id=number)
        assert log.of("cancelled", id=log.call_id(tool="late")) == []
        other.stop()
        assert len(log.wait("cancelled", 2)) == 2


def test_a_time_limit_sends_the_notice_too(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "one__slow")
        number = log.call_id(tool="slow")
        call.run.limit(Cause(CauseWord.DEADLINE, "the tool took longer than 1 s"))
        call.wait()
        assert call.result is not None
        assert call.result.is_error
        assert "the tool took longer than 1 s" in call.result.content
        assert call.receipt() == ("cancelled", "cancel notice sent")
        log.wait("cancelled", id=number)


def test_a_call_whose_scope_is_stopped_already_is_never_sent(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log)) as servers:
        wait_state(servers, "ready")
        tool = servers.tools()["one__echo"]
        call = McpCall(servers, "one__slow")
        log.call_id(tool="slow")
        call.stop()
        with pytest.raises(Cancelled):
            tool.run({}, call.run)
        assert log.of("call", tool="echo") == []


def test_a_call_that_is_cancelled_before_its_first_step_says_so() -> None:
    letters: list[Any] = []

    async def cancel_at_once() -> None:
        call = RemoteCall(cast(Any, None), "tool", {}, letters.append)
        task = call.begin()
        call.cancel()
        await asyncio.wait([task])

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop of the browser's tests
        thread.submit(lambda: asyncio.run(cancel_at_once())).result()
    assert letters == [Ended(was_sent=False)]


def test_a_server_that_reads_nothing_does_not_hold_up_a_stop(tmp_path: Path, log: StandInLog) -> None:
    with mcp_servers(tmp_path, one=stdio_entry(log, "deaf-reader")) as servers:
        wait_state(servers, "ready")
        # More than the pipe takes, so that the notice cannot leave either.
        calls = [McpCall(servers, "one__echo", text="x" * 1_000_000) for _ in range(3)]
        _wait_full(log.of("start")[0]["pid"])
        began = time.monotonic()
        for call in calls:
            call.scope.cancel(Cause(CauseWord.USER))
        for call in calls:
            call.wait()
        assert time.monotonic() - began < BOUND_S
        outcomes = [call.receipt() for call in calls]
        assert outcomes[0] == ("abandoned", "the cancel notice could not be sent in time")
        assert set(outcomes[1:]) <= {outcomes[0], ("not_started", "never began")}
        began = time.monotonic()
    assert time.monotonic() - began < BOUND_S
    assert log.alive() == []


def _wait_full(pid: int) -> None:
    """Until the input of a process takes no more."""
    pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        size = array.array("i", [0])
        wait_until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, size) == 0 and size[0] >= capacity, "a full pipe")
    finally:
        os.close(pipe)


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
        "import json, pathlib, sys, threading; from tests.support.mcp_kit import mcp_servers\n"
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
