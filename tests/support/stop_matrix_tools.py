"""Rows of the stop matrix: tools whose work is done outside the server, by a process or by another server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from tests.support import mcp_kit
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import processes_of
from tests.support.going_back import of_type
from tests.support.http_kit import answers, requests_of, says
from tests.support.model_server import script
from tests.support.python_tools import call_line
from tests.support.raw_server import Peer, RawServer
from tests.support.servers import wait_until
from tests.support.stop_matrix import STOPPED, Expected, Kind, Phase, Stop, World
from tests.support.stop_matrix_stops import SHUTDOWN

EARLY, MID, LATE, DEAF = Phase.EARLY, Phase.MID, Phase.LATE, Phase.DEAF

UNBEGUN = Expected(("tool not_started: never began",), (STOPPED,))


def done(result: str) -> Expected:
    """After a stop in the phase late."""
    return Expected(("tool already_done: it had finished",), (result,))


def call(world: World, name: str, arguments: dict[str, Any]) -> str:
    """A message by which the model calls that tool once."""
    return call_line(world.key, name, arguments=[json.dumps(arguments, separators=(",", ":"))])


class Shell(Kind):
    """A command with children. The deaf one ignores TERM, and a grandchild outside its session holds its pipe."""

    name = "shell"
    tools = ("shell",)
    has_own_limit = True
    expected: ClassVar = {
        EARLY: UNBEGUN,
        MID: Expected(("tool killed: ended by TERM",), ("*begun*",)),
        LATE: done('*"stdout": "done*"exit_code": 0*'),
        DEAF: Expected(("tool killed: ended by KILL *",), ("*begun*",)),
    }
    _COMMANDS: ClassVar = {
        EARLY: "echo done",
        MID: "echo begun; sleep 600 & sleep 600",
        LATE: "echo done",
        DEAF: "trap '' TERM; setsid sleep 600 & sleep 600 & echo begun; while :; do sleep 600; done",
    }

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        return script("toolcall", arguments={"command": self._COMMANDS[phase]}, tokens=2, key=world.key)

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        output = run.wait_event("tool_output", text="begun\n")
        call = run.wait_event("tool_call", call_id=output["call_id"])
        wait_until(lambda: len(processes_of([call])) >= (4 if phase is DEAF else 3), "the command's processes")

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        assert processes_of(of_type(run, "tool_call")) == []
        said = "".join(event["text"] for event in of_type(run, "tool_output"))
        assert said == {EARLY: "", LATE: "done\n"}.get(phase, "begun\n")


class HttpRequest(Kind):
    """A request to a server that the test is. The deaf one does not even look whether anybody is still there."""

    name = "http request"
    tools = ("http_request",)
    has_own_limit = True
    _CUT = Expected(("tool aborted: socket shut",), ("*so far, *",))
    expected: ClassVar = {EARLY: UNBEGUN, MID: _CUT, LATE: done('*"body": "done"*'), DEAF: _CUT}
    _SO_FAR = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9999\r\n\r\nso far, "

    @contextmanager
    def peer(self, world: World, phase: Phase) -> Iterator[None]:
        """See :class:`Kind`."""
        scripts: dict[Phase, Callable[[Peer], None]] = {MID: says(self._SO_FAR), DEAF: self._never_look}
        with RawServer(scripts.get(phase, answers(b"done"))) as world.raw:
            yield

    def _never_look(self, peer: Peer) -> None:
        peer.read_request()
        peer.send(self._SO_FAR)
        peer.go_on.wait()  # set at the end of the cell, or with the server's
        peer.wait_hang_up()

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        assert world.raw is not None
        return call(world, "http_request", {"url": world.raw.url})

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        run.wait_event("tool_output", text="so far, ")

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        raw = world.raw
        assert raw is not None
        assert len(requests_of(raw)) == (0 if phase is EARLY else 1)
        if phase is DEAF:
            assert not raw.peer().hung_up.is_set()  # it has kept its side open all the while
            raw.peer().go_on.set()
        if phase in (MID, DEAF):
            assert raw.peer().hung_up.wait(PATIENCE_S), "the server never saw that the client hung up"


class McpCall(Kind):
    """A tool of an MCP server. The deaf one goes on whatever it is told."""

    name = "MCP call"
    tools = ("mcp",)
    has_own_limit = True
    _TOLD = Expected(("tool cancelled: cancel notice sent",), (STOPPED,))
    expected: ClassVar = {EARLY: UNBEGUN, MID: _TOLD, LATE: done("*done"), DEAF: _TOLD}
    _TOOLS: ClassVar = {EARLY: "echo", MID: "slow", LATE: "echo", DEAF: "deaf"}

    def line(self, world: World, phase: Phase) -> str:
        """See :class:`Kind`."""
        return mcp_kit.call_line(world.key, f"one__{self._TOOLS[phase]}", self._text(world))

    def _text(self, world: World) -> str:
        return f"{world.key}-done"

    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """See :class:`Kind`."""
        world.mcp.call_id(arguments={"text": self._text(world)})

    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """See :class:`Kind`."""
        calls = world.mcp.of("call", arguments={"text": self._text(world)})
        assert len(calls) == (0 if phase is EARLY else 1)
        for call in calls:
            if phase is LATE:
                assert world.mcp.of("cancelled", id=call["id"]) == []
            else:
                world.mcp.wait("cancelled", id=call["id"])
        if stop is SHUTDOWN:
            assert world.mcp.alive() == []


TOOL_KINDS: tuple[Kind, ...] = (Shell(), HttpRequest(), McpCall())
