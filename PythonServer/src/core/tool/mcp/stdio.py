"""The transport to an MCP server that is a program: JSON lines through its pipes, under a supervisor.

The SDK has a transport of its own, which ends the server's process group. This one ends *everything* that the server
has started, also when our own process is killed: see :mod:`core.tool.supervisor`, the program that it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.shared.message import SessionMessage

from core.surrogates import whole_text
from core.tool import supervisor
from core.tool.marked import kill_marked
from core.tool.mcp.config import StdioEntry
from core.tool.supervised import MARK

log = logging.getLogger(__name__)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]

#: Seconds that a server gets to end by itself when its input ends; then until KILL; then its supervisor itself.
#: Together with the sweep below the bound of a close: below 2 s.
_INPUT_ENDS_S: Final = 0.3
_GRACE_S: Final = 0.5
_STOP_BOUND_S: Final = 0.5
_SWEEP_S: Final = 0.2
#: What a server says beside its answers: bytes of one line in our log.
_STDERR_BYTES: Final = 2000
#: What a shell exits with.
_WORDS: Final = {126: "the command cannot be run", 127: "the command was not found"}


class StdioServer:
    """One life of a server's process. Use :meth:`streams` once."""

    def __init__(
        self, name: str, entry: StdioEntry, environment: Mapping[str, str], line_bytes: int,
        on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        """``environment`` is all that it sees beside the entry's own; ``on_end`` is called when it says no more."""
        self._name = name
        self._entry = entry
        self._line_bytes = line_bytes
        self._on_end = on_end
        self._mark = f"mcp-{name}-{secrets.token_hex(8)}"
        command = "exec " + shlex.join([entry.command, *entry.args])
        own = {MARK: self._mark, supervisor.COMMAND.decode(): command}
        self._environment = {**environment, **entry.env, **own}
        self._report = b""
        self._fault: str | None = None

    @property
    def ending(self) -> str:
        """How it ended, for the user."""
        if self._fault is not None:
            return self._fault
        for line in self._report.decode().splitlines():
            word, status, *how = line.split()
            if word == supervisor.OVER or how != [supervisor.FAILED]:
                code = os.waitstatus_to_exitcode(int(status))
                meaning = _WORDS.get(code)
                return f"it ended (exit code {code}{f': {meaning}' if meaning else ''}); LOG_LEVEL=debug shows its words"
            return f"it could not be started: {os.strerror(int(status))}"
        return "it ended"

    @contextlib.asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Incoming, Outgoing]]:
        """Start it. Afterwards nothing of it is left. ``OSError`` if it cannot be started."""
        near, far = socket.socketpair()
        near.setblocking(False)
        with near:
            with far:
                process = self._start(far.fileno())
            gone = asyncio.create_task(self._read_report(near))
            to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception]()
            to_server, from_session = anyio.create_memory_object_stream[SessionMessage]()
            pipes = [
                asyncio.create_task(self._read(process, to_session)),
                asyncio.create_task(self._write(process, from_session, gone)),
                asyncio.create_task(self._read_stderr(process)),
            ]
            try:
                yield from_server, to_server
            finally:
                # First of all the SDK's side lets go: then the server's input ends, once everything is written.
                for stream in (from_server, to_server):
                    stream.close()
                await _undisturbed(self._end(process, near, gone, pipes))
                for end in (to_session, from_session, process.stdin, process.stdout, process.stderr):
                    if end is not None:
                        end.close()  # closed already, unless its task had not come so far

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        # Not asyncio's own: in Python 3.11 that has a thread for each process, which outlives the loop.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(control), str(_GRACE_S)],
            env=self._environment, cwd=self._entry.cwd, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            close_fds=True, pass_fds=[control], start_new_session=True,
        )  # fmt: skip

    # -- the pipes -------------------------------------------------------------------------------

    async def _read(
        self, process: subprocess.Popen[bytes], to_session: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        try:
            async with _reading(process.stdout, self._line_bytes) as stdout:
                while line := await stdout.readline():
                    message = self._parse(line)
                    if message is not None:
                        await to_session.send(SessionMessage(message))
        except ValueError:
            self._fault = f"it wrote a line of more than {self._line_bytes} bytes"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the session is gone
        finally:
            self._on_end()  # before the session tells those who wait: so they find it ended
            to_session.close()

    def _parse(self, line: bytes) -> types.JSONRPCMessage | None:
        """None if it is no message: some servers print other things as well."""
        try:
            try:
                return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:  # perhaps for half a character in a text
                text = whole_text(json.dumps(json.loads(line), ensure_ascii=False))
                return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
        except (ValueError, RecursionError):
            log.debug("MCP server %s wrote what is no message: %r", self._name, line[:_STDERR_BYTES])
            return None

    async def _write(
        self,
        process: subprocess.Popen[bytes],
        from_session: MemoryObjectReceiveStream[SessionMessage],
        gone: asyncio.Task[None],
    ) -> None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
        stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            with from_session, contextlib.suppress(OSError):  # if it reads no more, its end tells those who wait
                async for item in from_session:
                    line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    stdin.write(line.encode() + b"\n")
                    await stdin.drain()
            stdin.close()
            await asyncio.wait([gone])
        finally:
            transport.abort()

    async def _read_stderr(self, process: subprocess.Popen[bytes]) -> None:
        """Always read, so that the server never blocks on it; only its beginning is kept, at debug level."""
        async with _reading(process.stderr) as stderr:
            while data := await stderr.read(64 * 1024):
                log.debug("MCP server %s says: %s", self._name, data[:_STDERR_BYTES].decode(errors="replace").rstrip())

    # -- the end ---------------------------------------------------------------------------------

    async def _read_report(self, control: socket.socket) -> None:
        """Returns when the supervisor is gone, and everything with it."""
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.get_running_loop().sock_recv(control, 4096):
                self._report += data

    async def _end(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        gone: asyncio.Task[None],
        pipes: list[asyncio.Task[None]],
    ) -> None:
        """Bounded, each step."""
        await asyncio.wait([gone], timeout=_INPUT_ENDS_S)
        with contextlib.suppress(OSError):
            control.shutdown(socket.SHUT_WR)
        await asyncio.wait([gone], timeout=_GRACE_S + _STOP_BOUND_S)
        if f"\n{supervisor.GONE} ".encode() not in b"\n" + self._report:  # it was killed itself, or is stuck
            process.kill()
            await asyncio.to_thread(kill_marked, [f"{MARK}={self._mark}"], _SWEEP_S)
        process.wait()  # it has exited, or is killed
        for task in (*pipes, gone):
            task.cancel()
        await asyncio.gather(*pipes, gone, return_exceptions=True)


async def _undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, and only then heed that we are cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@contextlib.asynccontextmanager
async def _reading(pipe: object, limit: int = 64 * 1024) -> AsyncIterator[asyncio.StreamReader]:
    """Read a pipe on the loop; it is closed afterwards, whatever is still in it."""
    reader = asyncio.StreamReader(limit)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()
