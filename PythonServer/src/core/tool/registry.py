"""The tools of this server: those that ``TOOLS_ALLOWED`` names. None is on by itself."""

from collections.abc import Iterable
from pathlib import Path

from core.tool.shell import Shell
from core.tool.tool import Tool


def make_tools(allowed: Iterable[str], data_dir: Path) -> dict[str, Tool]:
    """Name -> tool, for names that :mod:`core.settings` has checked."""
    tools: dict[str, Tool] = {}
    for name in allowed:
        if name == "shell":
            work_dir = data_dir.resolve() / "work"
            work_dir.mkdir(parents=True, exist_ok=True)
            tools[name] = Shell(work_dir)
    return tools
