"""Tools that are plain Python, for tests that hold them: put into the agent of a server in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.tool.tool import Stops, Tool, ToolResult, ToolRun
from tests.support.model_server import script
from tests.support.servers import LocalServer


class PythonTool(Tool):
    """A tool whose work is a function."""

    description = "does what the test says"
    stops = Stops.IS_ABANDONED

    def __init__(self, name: str, work: Callable[[ToolRun], ToolResult]) -> None:
        self.name = name
        self.parameters: dict[str, Any] = {"type": "object"}
        self._work = work

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """See :class:`core.tool.tool.Tool`."""
        return self._work(run)


def give_tool(server: LocalServer, name: str, work: Callable[[ToolRun], ToolResult]) -> None:
    """Let the default agent of that server call ``name``."""
    tools: Any = server.main.agents["default"].profile.tools
    tools[name] = PythonTool(name, work)


def call_line(key: str, *names: str, **options: Any) -> str:
    """A line by which the model calls these tools at the same time, and then says ``t1 t2``."""
    return script("toolcall", name=list(names), tokens=2, key=key, **options)
