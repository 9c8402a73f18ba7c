"""One call to an MCP server, seen from two threads: the pool's, which waits, and the loop's, which talks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.tool.mcp.notice import Notice
from core.tool.tool import ToolFailed

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from core.tool.mcp.session import Connection


@dataclass(frozen=True, slots=True)
class Progress:
    """The server says how far it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The last letter: an answer, a failure, or neither if the call was cancelled."""

    answer: CallToolResult | None = None
    failure: ToolFailed | None = None
    #: Whether the server has heard of the call; and, if it was cancelled, also of that.
    was_sent: bool = True
    #: Why it could not be told that the call is cancelled.
    notice_fault: str | None = None


class StopAsked:
    """Somebody stops the call."""


Letter = Progress | Ended | StopAsked


class RemoteCall:
    """``tell`` gets its letters, on the loop's thread; it must not block."""

    def __init__(
        self, connection: Connection, tool: str, arguments: dict[str, Any], tell: Callable[[Letter], None]
    ) -> None:
        self._connection = connection
        self._tool = tool
        self._arguments = arguments
        self._tell = tell
        self._was_sent = False
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    # All on the loop's thread.

    def begin(self) -> asyncio.Task[None]:
        """Ask the server."""
        self._task = asyncio.get_running_loop().create_task(self._work())
        # One that is cancelled before its first step never comes to its own last letter.
        self._task.add_done_callback(lambda _: self.end(Ended(was_sent=self._was_sent)))
        return self._task

    def cancel(self) -> asyncio.Task[None] | None:
        """Tell the server that nobody waits any more, if it was asked at all. ``Ended`` says that it was told."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    def end(self, letter: Ended) -> None:
        """The first end stands."""
        if not self._is_over:
            self._is_over = True
            self._tell(letter)

    async def _work(self) -> None:
        notice = Notice()
        try:
            answer = await self._connection.call(self._tool, self._arguments, self._on_progress, self._mark_sent)
        except ToolFailed as failure:
            self.end(Ended(failure=failure, was_sent=self._was_sent))
        except asyncio.CancelledError:
            must_ask = self._was_sent and self._connection.sends_notices_apart
            self.end(Ended(was_sent=self._was_sent, notice_fault=await notice.fault() if must_ask else None))
        except Exception as error:
            self.end(Ended(failure=ToolFailed(f"the call failed: internal error ({type(error).__name__})")))
            raise
        else:
            self.end(Ended(answer=answer))

    def _mark_sent(self) -> None:
        self._was_sent = True

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self._tell(Progress(f"{done} {message}\n" if message else f"{done}\n"))
