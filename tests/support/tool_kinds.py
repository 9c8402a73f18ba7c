"""Each kind of tool at work: rows of the stop matrix, in the one phase in which a stop must reach them."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from core import gates
from tests.support.api_client import PATIENCE_S, Api, EventReader, Run
from tests.support.five_checks import wait_no_process
from tests.support.going_back import of_type
from tests.support.launched import wait_until_gone
from tests.support.mcp_kit import StandInLog
from tests.support.model_server import ModelServer
from tests.support.servers import ServerProcess
from tests.support.stop_matrix import STOPPED, Expected, Kind, Phase, Stop, World
from tests.support.stop_matrix_functions import AskedFunction, DeafFunction, Delegate
from tests.support.stop_matrix_servers import settings
from tests.support.stop_matrix_tools import HttpRequest, McpCall, Shell

TOOLS = ("shell", "http_request", "mcp", "delegate", "asked", "until_told", "deaf")
MODULES = "tests.support.own_tools"
_ROOT = Path(__file__).parents[2]


class Turn(Run):
    """A later turn of a run: its events begin behind those of the turns before it."""

    def __init__(self, run: Run, text: str) -> None:
        self._after: int = run.view()["last_seq"]
        turn_id = run.say(text)["turn_id"]
        super().__init__(run.api, {"run_id": run.id, "session_id": run.session_id, "turn_id": turn_id})

    def stream(self, after: int = 0) -> EventReader:
        """See :class:`Run`."""
        return super().stream(max(after, self._after))


class Watched:
    """``POST /v1/runs`` whose answer is the run's events, by a client that hangs up."""

    def __init__(self, api: Api, on_disconnect: str) -> None:
        self._api = api
        self._on_disconnect = on_disconnect
        place = urlsplit(api.url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)

    def start(self, text: str) -> Run:
        """The run; nobody reads the events."""
        self._connection.connect()
        self._socket: socket.socket = self._connection.sock
        body = {"input": text, "planning": "none", "on_disconnect": self._on_disconnect}
        headers = {
            "Authorization": f"Bearer {self._api.token}", "Accept": "text/event-stream", "Content-Type": "application/json"
        }  # fmt: skip
        self._connection.request("POST", "/v1/runs", json.dumps(body), headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 201
        shown = self._api.get(self._answer.headers["Location"])
        return Run(self._api, shown)

    def hang_up(self) -> None:
        """Returns when the server has seen it and has done about it what it does: only then it closes its own side."""
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(65536):
            pass
        self._answer.close()
        self._connection.close()


@dataclass(frozen=True)
class ToolKind:
    """One kind of tool."""

    row: Kind
    #: In which it runs for as long as nobody stops it.
    phase: Phase = Phase.MID

    @property
    def expected(self) -> Expected:
        """What a stop leaves."""
        return self.row.expected[self.phase]

    @property
    def is_inside(self) -> bool:
        """Whether it runs on a thread of the server, where only a test in the same process can look at it."""
        return isinstance(self.row, AskedFunction | DeafFunction)

    @contextmanager
    def at_work(self, world: World, start: Callable[[str], Run] | None = None) -> Iterator[Run]:
        """A turn whose model has called the tool: it runs, as a witness has seen."""
        with self.row.peer(world, self.phase):
            run = (start or world.api.start)(self.row.line(world, self.phase))
            if self.is_inside:
                run.wait_event("tool_output", text="begun\n")
            else:
                self.row.wait_running(world, run, self.phase)
            yield run

    def check_ended(self, world: World, run: Run, stop: Stop, receipt: list[dict[str, Any]]) -> None:
        """The stop has reached whoever did the work, and the receipt and the call's one result say so."""
        found = [f"{item['kind']} {item['outcome']}: {item['how']}" for item in receipt]
        patterns = (*self.expected.receipt, "goal cancelled: stopped")
        assert len(found) == len(patterns), found
        assert all(any(fnmatchcase(each, pattern) for each in found) for pattern in patterns), found
        (result,) = of_type(run, "tool_result")
        words = "cancelled by operator" if stop.cause == "user" else f"cancelled: {stop.cause}"
        pattern = self.expected.results[0]
        assert result["content"].startswith(words)
        assert fnmatchcase(result["content"], words if pattern == STOPPED else pattern)
        if not self.is_inside or not isinstance(world.server, ServerProcess):
            self.row.check_world(world, run, self.phase, stop)

    def __str__(self) -> str:
        return self.row.name.replace(" ", "-")


KINDS = (
    ToolKind(Shell()), ToolKind(HttpRequest()), ToolKind(McpCall()), ToolKind(AskedFunction()),
    ToolKind(DeafFunction(), Phase.DEAF), ToolKind(Delegate()),
)  # fmt: skip


@contextmanager
def crowd(name: str, number: int, then: Callable[[], None]) -> Iterator[None]:
    """At the pause point ``name`` nobody waits; ``then`` runs when so many threads have come by."""
    comers = itertools.count(1)  # each draws a number of its own

    def count() -> None:
        if next(comers) == number:
            then()

    gates.installed[name] = count
    try:
        yield
    finally:
        gates.installed.pop(name, None)


def check_gone(world: World, run: Run, pids: list[int]) -> None:
    """Nothing of a killed server's tools is left: no process, no connection, no call of a model. ``pids``: of MCP."""
    wait_no_process(run)
    wait_until_gone(pids)
    for key in (world.key, world.sub_key):
        world.models.wait_open(0, key=key)
    if world.raw is not None:
        assert world.raw.peer().hung_up.wait(PATIENCE_S), "the killed server's connection is still there"


def process_with_tools(folder: Path, models: ModelServer) -> ServerProcess:
    """A server in a process of its own, with every kind of tool."""
    fields = settings(folder, models, "de2generator", TOOLS)
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return ServerProcess(
        folder, models.url, TOOLS_ALLOWED=",".join(TOOLS), TOOL_MODULES=MODULES, PYTHONPATH=path,
        MCP_SERVERS_FILE=str(fields["mcp_servers_file"]), HTTP_PRIVATE_NETWORKS="127.0.0.0/8",
    )  # fmt: skip


def world_of_process(server: ServerProcess, models: ModelServer, key: str) -> World:
    """A user of that server."""
    host: Any = server  # whoever uses such a world asks it over HTTP alone
    return World(host, models, key, server.api(key), StandInLog(server.data_dir / "mcp.log"))
