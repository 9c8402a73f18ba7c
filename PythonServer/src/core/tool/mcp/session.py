"""One MCP server: its session, kept up while this process runs. Everything here runs on the loop of the servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import anyio
from mcp import types
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from core.tool.mcp.config import Entry, StdioEntry
from core.tool.mcp.errors import first_of, has_not_begun, is_closed, text_of, words_for
from core.tool.mcp.http import http_streams
from core.tool.mcp.listing import Listed, Listing
from core.tool.mcp.stdio import StdioServer
from core.tool.tool import ToolFailed

log = logging.getLogger(__name__)

#: Seconds for the handshake and the list of tools: some servers are fetched when they are started.
HANDSHAKE_S: Final = 30.0
#: Seconds that a call waits for them.
WAIT_READY_S: Final = 12.0
#: Seconds until the next attempt: doubled each time, up to the most. A session that held so long was a good one.
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_GOOD_SESSION_S: Final = 30.0
#: A server that lists more is not believed.
_MOST_TOOLS: Final = 1000
_MOST_PAGES: Final = 100
#: Seconds between two lists, for a server that changes its own all the time: doubled each time, up to the most.
_LISTING_PAUSE_S: Final = 0.5
_LONGEST_LISTING_PAUSE_S: Final = 30.0
#: Lines about tools that are left out, for each server.
_MOST_REMARKS: Final = 50


class State(StrEnum):
    """How a server stands."""

    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server: seconds of silence of an HTTP answer, bytes of a message."""

    read_s: float
    message_bytes: int


class _Session(ClientSession):
    """Of the SDK, without its checks of what a tool answers: a schema of the server's own could hold up the loop."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        """The model reads the answer as it is."""

    def forget_others(self, names: set[str]) -> None:
        """Keep nothing of tools that are not listed any more."""
        self._tool_output_schemas.clear()
        self._x_mcp_header_maps = {name: each for name, each in self._x_mcp_header_maps.items() if name in names}


class Connection:
    """Connects, again and again while that fails; calls tools. ``on_tools`` gets each new list of tools."""

    def __init__(
        self, name: str, entry: Entry, environment: Mapping[str, str], limits: Limits,
        on_tools: Callable[[list[Listed]], None],
    ) -> None:  # fmt: skip
        self.name = name
        self._state = State.CONNECTING
        self.error: str | None = None
        self._entry = entry
        self._environment = environment
        self._limits = limits
        self._on_tools = on_tools
        self._session: _Session | None = None
        self._lost = asyncio.Event()
        self._wanted = asyncio.Event()
        self._has_changed = self._is_listing = False
        self._reason = ""
        self._remarks: set[str] = set()
        #: Done when the attempt to connect that runs now, or comes next, is over.
        self._attempt: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def state(self) -> State:
        """How it stands now; from any thread."""
        is_lost = self._state is State.READY and self._session is None
        return State.CONNECTING if is_lost else self._state

    @property
    def sends_notices_apart(self) -> bool:
        """Over HTTP a cancel notice is a request of its own, which may fail; in the newest protocol there is none."""
        version = self._session.protocol_version if self._session is not None else None
        return not isinstance(self._entry, StdioEntry) and version not in MODERN_PROTOCOL_VERSIONS

    # -- connecting ------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Never returns; cancel it."""
        pause = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._note(State.CONNECTING)
            try:
                ending = await self._live()
            except Exception as error:
                ending = text_of(error)
            self._session = None
            self._note(State.FAILED, ending)
            if loop.time() - began > _GOOD_SESSION_S:
                pause = _FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _note(self, state: State, error: str | None = None) -> None:
        was_connecting = self._state is State.CONNECTING
        self._state, self.error = state, error
        if state is State.CONNECTING:
            self._lost.clear()
            self._wanted.clear()
            if self._attempt.done():
                self._attempt = asyncio.get_running_loop().create_future()
            return
        if error:
            log.warning("MCP server %s: %s", self.name, error)
        # Else a session has ended that had begun well: who waits, waits for the attempt that comes next.
        if was_connecting and not self._attempt.done():
            self._attempt.set_result(None)

    async def _live(self) -> str:
        """From the start of a session to its end; what ended it."""
        if not isinstance(self._entry, StdioEntry):
            async with http_streams(self._entry, self._limits.read_s, self._limits.message_bytes) as streams:
                await self._serve(*streams)
            return self._reason
        server = StdioServer(self.name, self._entry, self._environment, self._limits.message_bytes, self._lose)
        try:
            async with server.streams() as streams:
                await self._serve(*streams)
        except Exception as error:
            cause = first_of(error)
            if not isinstance(cause, MCPError) or cause.code != types.CONNECTION_CLOSED:
                raise
        return server.ending  # which says more than the SDK can

    async def _serve(self, incoming: Any, outgoing: Any) -> None:
        info = types.Implementation(name="pythonserver", version="0")
        session = _Session(incoming, outgoing, message_handler=self._hear, client_info=info)
        async with session:
            try:
                with anyio.fail_after(HANDSHAKE_S):
                    await _shake_hands(session)
                    await self._list(session)
            except TimeoutError:
                raise ToolFailed(f"it did not answer the handshake within {HANDSHAKE_S:g} s") from None
            self._session = session
            self._note(State.READY)
            await self._lost.wait()

    def _lose(self, reason: str = "it ended") -> None:
        """The session is over: no call begins on it any more."""
        self._session = None
        self._reason = reason
        self._lost.set()

    # -- the list of tools -----------------------------------------------------------------------

    async def _list(self, session: _Session) -> None:
        listing = Listing()
        cursor: str | None = None
        names: set[str] = set()
        for _ in range(_MOST_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
            for tool in page.tools[: _MOST_TOOLS - len(names)]:
                names.add(tool.name)
                # In a thread: the loop is that of all servers.
                await asyncio.to_thread(listing.take, tool.name, tool.description or tool.title, tool.input_schema)
            cursor = page.next_cursor
            if not cursor or len(names) >= _MOST_TOOLS:
                break
        session.forget_others(names)
        self._on_tools(listing.tools)
        self._say(listing.left_out)

    def _say(self, lines: list[str]) -> None:
        """Each line once, and not without limit."""
        for line in lines:
            if line not in self._remarks and len(self._remarks) < _MOST_REMARKS:
                self._remarks.add(line)
                log.warning("MCP server %s: %s", self.name, line)

    async def _hear(self, message: object) -> None:
        session = self._session
        if session is None or not isinstance(message, types.ToolListChangedNotification):
            return
        self._has_changed = True
        if self._is_listing:
            return  # who lists now, lists once more
        self._is_listing = True
        pause = _LISTING_PAUSE_S
        try:
            while self._has_changed:
                self._has_changed = False
                with anyio.move_on_after(HANDSHAKE_S):
                    await self._list(session)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_LISTING_PAUSE_S)
        finally:
            self._is_listing = False

    # -- calls -----------------------------------------------------------------------------------

    async def call(
        self, tool: str, arguments: dict[str, Any], on_progress: ProgressFnT, mark_sent: Callable[[], None]
    ) -> types.CallToolResult:
        """Cancel the task, and the SDK sends the cancel notice with the request's id; a late answer is dropped.

        ``mark_sent`` is called when a notice is needed from then on. ``ToolFailed`` for whatever goes wrong.
        """
        for is_last in (False, True):
            session = await self._ready()
            mark_sent()
            try:
                return await session.call_tool(tool, arguments, progress_callback=on_progress)
            except MCPError as error:
                if (has_not_begun(error) or is_closed(error)) and self._session is session:
                    self._lose(error.message)
                if is_last or not has_not_begun(error):
                    raise ToolFailed(words_for(self.name, error)) from error
            except Exception as error:  # such as an answer that does not fit the tool's own schema
                raise ToolFailed(f"the MCP server {self.name!r} failed: {text_of(error)}") from error
        raise AssertionError("the last attempt returns or raises")

    async def _ready(self) -> _Session:
        """The session; if there is none, the next attempt is made now, and waited for."""
        if self._session is None:
            if self._attempt.done():
                self._attempt = asyncio.get_running_loop().create_future()
            if self._state is not State.CONNECTING:
                self._wanted.set()
            await asyncio.wait([self._attempt], timeout=WAIT_READY_S)
        if self._session is None:
            raise ToolFailed(f"the MCP server {self.name!r} is not there: {self.error or 'it does not answer'}")
        return self._session


async def _shake_hands(session: ClientSession) -> None:
    """The handshake that all servers know; those of the newest protocol alone are asked in their own way."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
            raise
        await session.discover()
