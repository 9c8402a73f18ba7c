"""MCP servers that are programs: sessions, calls, and stops of calls."""

import array
import asyncio
import fcntl
import os
import termios
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
from tests.support.mcp_kit import BOUND_S, McpCall, StandInLog, mcp_servers, stdio_entry, wait_state
from tests.support.servers import wait_until

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
