"""The MCP servers of this process: one thread with one loop for all, and their tools as a mapping that follows them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.tool.marked import kill_marked
from core.tool.mcp.call import Ended, Letter, RemoteCall
from core.tool.mcp.config import Entry
from core.tool.mcp.listing import Listed, Names
from core.tool.mcp.tool import McpTool
from core.tool.tool import Tool, ToolFailed, ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from core.tool.mcp.session import Connection

log = logging.getLogger(__name__)

#: Seconds that a close waits for the servers; what is left then ends with this process.
CLOSE_S: Final = 2.0
#: Bytes of one message: a text of the most output, every character of it escaped; never less than this.
_ESCAPED: Final = 6
_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: Seconds of silence after which an answer over HTTP is given up, beyond the time limit of a call.
_SILENCE_S: Final = 5.0
#: Seconds of a close for the cancel notices of calls that still run.
_NOTICES_S: Final = 0.3
#: The variable that says whose a server's processes are, and the seconds for ending those of an earlier life of ours.
OWNER: Final = "MCP_SERVER_OF"
_SWEEP_S: Final = 0.2


def owner_of(data_dir: Path) -> str:
    """What the processes of the servers of this DATA_DIR have in ``OWNER``."""
    return hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]


class McpServers:
    """Start it, and close it. Until it is started, and while a server does not answer, its tools are not there."""

    def __init__(
        self, entries: Mapping[str, Entry], environment: Mapping[str, str], timeout_s: float, output_cap: int,
        data_dir: Path,
    ) -> None:  # fmt: skip
        """``environment``: the variables that the servers' processes see. ``timeout_s``: the limit of a call.

        Nobody else uses the ``data_dir``: processes of servers that were started for it before are ended.
        """
        self._entries = dict(entries)
        self._owner = owner_of(data_dir)
        self._environment = {**environment, OWNER: self._owner}
        self._timeout_s = timeout_s
        self._output_cap = output_cap
        self._names = Names()
        self._tools: dict[str, dict[str, Tool]] = {name: {} for name in entries}
        self._connections: dict[str, Connection] = {}
        self._calls: dict[int, RemoteCall] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = asyncio.Event()

    # -- asking, from any thread -----------------------------------------------------------------

    def tools(self, server: str | None = None) -> Mapping[str, Tool]:
        """Of one server, or of all. It shows what there is at the moment of each look. ``KeyError``: no such server."""
        if server is not None and server not in self._tools:
            raise KeyError(server)
        return _View(self._tools, list(self._tools) if server is None else [server])

    def status(self) -> list[dict[str, Any]]:
        """``{name, state, tools, error?}`` of each; ``state`` is ``connecting``, ``ready`` or ``failed``."""
        return [self._status(name) for name in self._entries]

    def _status(self, name: str) -> dict[str, Any]:
        connection = self._connections.get(name)
        status: dict[str, Any] = {
            "name": name,
            "state": str(connection.state) if connection is not None else "connecting",
            "tools": len(self._tools[name]),
        }
        error = connection.error if connection is not None else None
        return {**status, "error": error} if error else status

    # -- starting and ending ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect to all; does not wait for it."""
        with self._lock:
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="mcp-servers", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End all sessions, and the servers' processes with them. Bounded, whatever the servers do."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with contextlib.suppress(RuntimeError):  # closed before
            loop.call_soon_threadsafe(self._closing.set)
        thread.join(CLOSE_S)
        if thread.is_alive():
            log.warning("MCP servers did not end in time; what is left of them ends with this process")
        for call in list(self._calls.values()):
            call.end(Ended())

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # A supervisor that was itself stopped (SIGSTOP) when we were killed is still there, and all that it watches.
        if not kill_marked([f"{OWNER}={self._owner}"], _SWEEP_S):
            log.warning("processes of MCP servers that an earlier start has left could not be ended in time")
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        from core.tool.mcp.session import Connection, Limits  # it needs the SDK, which takes a second to load

        limits = Limits(self._timeout_s + _SILENCE_S, max(_ESCAPED * self._output_cap, _MESSAGE_BYTES))
        for name, entry in self._entries.items():
            take = partial(self._take_tools, name)
            self._connections[name] = Connection(name, entry, self._environment, limits, take)
        keepers = [asyncio.create_task(each.keep(), name=each.name) for each in self._connections.values()]
        await self._closing.wait()
        tasks = [task for call in list(self._calls.values()) if (task := call.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_NOTICES_S)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    def _take_tools(self, server: str, tools: list[Listed]) -> None:
        made: dict[str, Tool] = {}
        for listed in tools:
            name = self._names.give(server, listed.name)
            made[name] = McpTool(name, listed, server, self, self._timeout_s, self._output_cap)
        self._names.keep(server, made)
        self._tools[server] = made  # in one step: others look at it at this moment

    # -- calls, from the threads that wait for them ----------------------------------------------

    def begin_call(self, server: str, tool: str, arguments: dict[str, Any], tell: Callable[[Letter], None]) -> int:
        """Begin it on the loop; its number. ``tell`` gets its letters there, ``Ended`` the last of them."""
        number = next(self._numbers)

        def begin() -> None:
            call = RemoteCall(self._connections[server], tool, arguments, tell)
            self._calls[number] = call
            call.begin().add_done_callback(lambda _: self._calls.pop(number, None))

        self._on_loop(begin)
        return number

    def cancel_call(self, number: int) -> None:
        """Have the server told; ``Ended`` comes when it was."""

        def cancel() -> None:
            call = self._calls.get(number)
            if call is not None:
                call.cancel()

        self._on_loop(cancel)

    def result_of(self, answer: CallToolResult) -> ToolResult:
        """As text for the model."""
        from core.tool.mcp.result import result_of

        return result_of(answer)

    def _on_loop(self, action: Callable[[], None]) -> None:
        assert self._loop is not None  # there are no tools before
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            raise ToolFailed("the MCP servers are closed") from None


class _View(Mapping[str, Tool]):
    """The tools of some servers, as they are at each look."""

    def __init__(self, tools: Mapping[str, Mapping[str, Tool]], servers: list[str]) -> None:
        self._tools = tools
        self._servers = servers

    def __getitem__(self, name: str) -> Tool:
        for server in self._servers:
            tool = self._tools[server].get(name)
            if tool is not None:
                return tool
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for server in self._servers:
            yield from self._tools[server]

    def __len__(self) -> int:
        return sum(len(self._tools[server]) for server in self._servers)
