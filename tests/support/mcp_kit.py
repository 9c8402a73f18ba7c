"""What the tests of MCP share: the stand-in server's log, configuration files, and a call on a thread of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.cancellation import Cause, CauseWord, Level, Scope
from core.tool.mcp.config import load_mcp_servers
from core.tool.mcp.servers import McpServers
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.model_server import script
from tests.support.servers import wait_until

PROGRAM = Path(__file__).with_name("mcp_server.py")
STOP = Cause(CauseWord.USER, "the user pressed stop")
#: Bounds of 2 s, on a machine that is shared.
BOUND_S = 5.0


class StandInLog:
    """What a stand-in server has logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of that kind, and with those fields."""
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in found if each["event"] == event and fields.items() <= each.items()]

    def wait(self, event: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Until there are so many; all of them."""
        wait_until(lambda: len(self.of(event, **fields)) >= count, f"{count} of {event} {fields} in {self.path}")
        return self.of(event, **fields)

    def call_id(self, **fields: Any) -> Any:
        """The request id of the one call."""
        (call,) = self.wait("call", **fields)
        return call["id"]

    def pids(self) -> list[int]:
        """Every process that it has said of."""
        starts = [each["pid"] for each in self.of("start")]
        return starts + [each["child"] for each in self.of("child")]

    def alive(self) -> list[int]:
        """Those that live."""
        return [pid for pid in self.pids() if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state not in "ZX"


def stdio_entry(log: StandInLog, *modes: str, **fields: Any) -> dict[str, Any]:
    """The entry of a stand-in server over stdio."""
    return {"command": sys.executable, "args": [str(PROGRAM), str(log.path), *modes], **fields}


def write_config(path: Path, /, **servers: dict[str, Any]) -> Path:
    """The file that MCP_SERVERS_FILE names."""
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    return path


class HttpStandIn:
    """A stand-in server over HTTP, in a process of its own, that the test may end and start again."""

    def __init__(self, log: StandInLog, *modes: str) -> None:
        self.log = log
        self.modes = modes
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> HttpStandIn:
        """Start it, on the port that it had before."""
        port = [self.url.rpartition(":")[2].partition("/")[0]] if self.url else []
        command = [sys.executable, str(PROGRAM), str(self.log.path), "--http", *self.modes, *port]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the stand-in did not start"
        return self

    def kill(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def __enter__(self) -> HttpStandIn:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def mcp_servers(
    path: Path, /, timeout_s: float = PATIENCE_S, output_cap: int = 1024 * 1024, **servers: dict[str, Any]
) -> Iterator[McpServers]:
    """Started, and closed afterwards."""
    entries = load_mcp_servers(write_config(path / "mcp.json", **servers), os.environ)
    found = McpServers(entries, {"PATH": os.environ["PATH"]}, timeout_s, output_cap, path)
    found.start()
    try:
        yield found
    finally:
        found.close()


def wait_state(servers: McpServers, state: str, name: str | None = None) -> dict[str, Any]:
    """Until one server, or the first, is in that state; its status."""

    def status() -> dict[str, Any]:
        return next(each for each in servers.status() if name in (None, each["name"]))

    wait_until(lambda: status()["state"] == state, f"{name or 'the server'} {state}: {servers.status()}")
    return status()


class McpCall:
    """One call, running on a thread."""

    def __init__(self, servers: McpServers, tool: str, **arguments: Any) -> None:
        self.scope = Scope.root().open(Level.TURN, "turn").open(Level.CALL, tool)
        self.run = ToolRun(self.scope, "goal", tool, self._emit)
        self.said = ""
        self.result: ToolResult | None = None
        self.error: BaseException | None = None
        self._tool = servers.tools()[tool]
        self._arguments = arguments
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _emit(self, stream: str, text: str) -> None:
        assert stream == "stdout"
        self.said += text

    def _work(self) -> None:
        try:
            self.result = self._tool.run(self._arguments, self.run)
        except BaseException as error:
            self.error = error

    def stop(self, cause: Cause = STOP) -> McpCall:
        """Stop it, and wait until its thread is free again."""
        self.scope.cancel(cause)
        return self.wait()

    def wait(self) -> McpCall:
        """Until its thread is free."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call does not end"
        return self

    def content(self) -> str:
        """What it returned."""
        self.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result.content

    def receipt(self) -> tuple[Any, Any]:
        """``(outcome, how)``."""
        item = self.run.item(0.0)
        return item["outcome"], item["how"]


def call_line(key: str, tool: str, text: str = "", tokens: int = 2, **options: Any) -> str:
    """A message by which the model calls a tool of the stand-in."""
    arguments = json.dumps({"text": text}, separators=(",", ":"))
    return script("toolcall", name=tool, arguments=arguments, tokens=tokens, key=key, **options)


def results_of(run: Run) -> list[str]:
    """What the model read of its tools."""
    return [message["content"] for message in run.transcript() if message["role"] == "tool"]


def wait_ready(api: Api, key: str, *logs: StandInLog, server: str = "one") -> None:
    """Until the tools of a server are there, once all have been asked for theirs: they come by themselves."""
    for log in logs:
        log.wait("list")

    def answers() -> bool:
        run = api.start(call_line(f"{key}-ready", f"{server}__echo", "ready"))
        run.wait_parked()
        return results_of(run) == ["ready"]

    wait_until(answers, f"the MCP server {server}")
