"""MCP servers over streamable HTTP: calls, stops, and servers that go away or do not listen."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.cancellation import Cancelled
from core.tool.tool import ToolFailed
from tests.support.mcp_kit import BOUND_S, HttpStandIn, McpCall, StandInLog, mcp_servers, wait_state
from tests.support.servers import wait_until


@pytest.fixture
def far(log: StandInLog) -> Iterator[HttpStandIn]:
    """The stand-in server."""
    with HttpStandIn(log) as server:
        yield server


def _entry(server: HttpStandIn, **fields: Any) -> dict[str, Any]:
    return {"url": server.url, **fields}


def test_tools_answer_and_the_headers_of_the_file_are_sent(
    tmp_path: Path, far: HttpStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITS_KEY", "the-key")
    with mcp_servers(tmp_path, far=_entry(far, headers={"X-Secret": "${ITS_KEY}"})) as servers:
        wait_state(servers, "ready")
        assert McpCall(servers, "far__echo", text="hallo").content() == "hallo"
    posts = far.log.of("post")
    assert {post["secret"] for post in posts} == {"the-key"}
    assert far.log.of("closed"), "its session was not ended"


def test_progress_comes_before_the_answer_and_a_stop_reaches_the_server(tmp_path: Path, far: HttpStandIn) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        for tool in ("progress", "slow", "deaf"):
            call = McpCall(servers, f"far__{tool}")
            number = far.log.call_id(tool=tool)
            began = time.monotonic()
            call.stop()
            assert time.monotonic() - began < BOUND_S
            assert isinstance(call.error, Cancelled)
            assert call.receipt() == ("cancelled", "cancel notice sent")
            far.log.wait("cancelled", id=number)
        assert McpCall(servers, "far__echo", text="next").content() == "next"
        assert len([post for post in far.log.of("post") if post["method"] == "initialize"]) == 1


def test_of_two_calls_on_one_session_a_stop_ends_one(tmp_path: Path, far: HttpStandIn) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        other = McpCall(servers, "far__late", text="the other")
        call = McpCall(servers, "far__slow")
        number = far.log.call_id(tool="slow")
        call.stop()
        far.log.wait("cancelled", id=number)
        assert len(far.log.of("cancelled")) == 1
        late = far.log.call_id(tool="late")
        other.stop()
        far.log.wait("cancelled", id=late)
        far.log.wait("answer", id=late)
        assert McpCall(servers, "far__echo", text="next").content() == "next"


def test_a_server_that_answers_no_notice_holds_up_neither_the_stop_nor_the_next_call(
    tmp_path: Path, log: StandInLog
) -> None:
    with HttpStandIn(log, "deaf-notices") as far, mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "far__slow")
        number = log.call_id(tool="slow")
        began = time.monotonic()
        call.stop()
        assert time.monotonic() - began < BOUND_S
        assert call.receipt() == ("cancelled", "cancel notice sent"), "it has left, though nobody answers it"
        log.wait("cancelled", id=number)
        assert McpCall(servers, "far__echo", text="next").content() == "next"
        assert len([post for post in log.of("post") if post["method"] == "initialize"]) == 1


@pytest.mark.parametrize(
    ("mode", "words"), [("shut-door", "the server cannot be reached"), ("refuse-notices", "status 500")]
)
def test_a_cancel_notice_that_the_server_does_not_take_is_not_called_sent(
    tmp_path: Path, log: StandInLog, mode: str, words: str
) -> None:
    with HttpStandIn(log, mode) as far, mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "far__slow")
        log.call_id(tool="slow")
        began = time.monotonic()
        call.stop()
        assert time.monotonic() - began < BOUND_S
        assert isinstance(call.error, Cancelled)
        outcome, how = call.receipt()
        assert outcome == "abandoned"
        assert "the cancel notice could not be sent" in how
        assert words in how


def test_in_the_newest_protocol_the_end_of_the_request_is_the_notice(tmp_path: Path, log: StandInLog) -> None:
    with HttpStandIn(log, "newest") as far, mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        call = McpCall(servers, "far__slow")
        log.call_id(tool="slow")
        call.stop()
        assert call.receipt() == ("cancelled", "cancel notice sent")


@pytest.mark.parametrize("mode", [(), ("json",)], ids=["stream", "json"])
def test_no_answer_is_asked_for_compressed_and_one_that_is_all_the_same_is_refused(
    tmp_path: Path, log: StandInLog, mode: tuple[str, ...]
) -> None:
    with HttpStandIn(log, "encoded", *mode) as far, mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        with pytest.raises(ToolFailed, match=r"its answer is encoded .'gzip'.; none may be"):
            McpCall(servers, "far__echo", text="x").content()
        assert {post["encoding"] for post in log.of("post")} == {"identity"}
        assert wait_state(servers, "ready")


def test_a_server_that_was_started_anew_is_given_a_new_session_within_the_call(
    tmp_path: Path, far: HttpStandIn
) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        far.kill()
        far.start()
        assert McpCall(servers, "far__echo", text="again").content() == "again"
        assert len(far.log.of("call", tool="echo")) == 1


def test_a_server_that_is_gone_is_reported_and_used_again_when_it_is_back(tmp_path: Path, far: HttpStandIn) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        far.kill()
        with pytest.raises(ToolFailed, match="'far' is not there"):
            McpCall(servers, "far__echo").content()
        assert "cannot be reached" in wait_state(servers, "failed")["error"]
        far.start()
        assert McpCall(servers, "far__echo", text="again").content() == "again"


def test_a_server_that_dies_during_a_call_is_reported(tmp_path: Path, far: HttpStandIn) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        with pytest.raises(ToolFailed, match="'far' was lost while it worked"):
            McpCall(servers, "far__die").content()
        far.kill()
        far.start()
        assert McpCall(servers, "far__echo", text="again").content() == "again"


def test_a_close_is_bounded_though_a_call_runs_and_its_server_never_answers(tmp_path: Path, log: StandInLog) -> None:
    with HttpStandIn(log, "deaf-notices") as far:
        with mcp_servers(tmp_path, far=_entry(far)) as servers:
            wait_state(servers, "ready")
            call = McpCall(servers, "far__deaf")
            number = log.call_id(tool="deaf")
            began = time.monotonic()
            servers.close()
            assert time.monotonic() - began < BOUND_S
            call.wait()
        log.wait("cancelled", id=number)


@pytest.mark.parametrize("mode", [(), ("json",)], ids=["stream", "json"])
def test_an_answer_without_end_fails_its_call_and_no_other(
    tmp_path: Path, log: StandInLog, mode: tuple[str, ...]
) -> None:
    with HttpStandIn(log, *mode) as far, mcp_servers(tmp_path, output_cap=1024, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        other = McpCall(servers, "far__late", text="the other")
        number = log.call_id(tool="late")
        with pytest.raises(ToolFailed):
            McpCall(servers, "far__enormous").content()
        assert McpCall(servers, "far__echo", text="next").content() == "next"
        assert len([post for post in log.of("post") if post["method"] == "initialize"]) == 1
        other.stop()
        log.wait("cancelled", id=number)


def test_tools_that_are_new_show_by_themselves(tmp_path: Path, far: HttpStandIn) -> None:
    with mcp_servers(tmp_path, far=_entry(far)) as servers:
        wait_state(servers, "ready")
        tools = servers.tools("far")
        McpCall(servers, "far__more", text="fun").content()
        wait_until(lambda: "far__more_fun" in tools, "the new tool")
