"""The tools of this server: those that ``TOOLS_ALLOWED`` names. None is on by itself."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Final, cast

from core.errors import ConfigurationError
from core.settings import Settings
from core.tool.delegate import Delegate
from core.tool.function_modules import load_functions, make_function
from core.tool.shell import Shell
from core.tool.tool import Tool

Maker = Callable[[Settings], Tool]


class Toolbox:
    """Every allowed tool, by its name in the configuration. Start it, and close it."""

    def __init__(self, settings: Settings) -> None:
        """``ConfigurationError`` if a tool that is allowed does not exist, or cannot be set up. Starts nothing."""
        self._functions = load_functions(settings.tool_modules)
        self._tools = {name: self._make(name, settings) for name in settings.tools_allowed}

    def _make(self, name: str, settings: Settings) -> Mapping[str, Tool]:
        maker = _MAKERS.get(name)
        if maker is not None:
            return {name: maker(settings)}
        if name in self._functions:
            return {name: make_function(self._functions, name, settings)}
        there_are = ", ".join([*_MAKERS, *sorted(self._functions)])
        raise ConfigurationError(f"TOOLS_ALLOWED names {name[:80]!r}, which is no tool: give {there_are}")

    def of(self, names: Iterable[str] | None) -> Mapping[str, Tool]:
        """What an agent with these names in its list may call, in their order; None: everything that is allowed.

        The mapping follows changes: a server of tools may come and go.
        """
        wanted = [self._tools[name] for name in (self._tools if names is None else names)]
        # A ChainMap is read from its last map to its first.
        return ChainMap({}, *(cast(MutableMapping[str, Tool], tools) for tools in reversed(wanted)))

    def start(self) -> None:
        """Start what the tools need running. Does not wait for it."""

    def close(self) -> None:
        """End what the tools keep running."""


def _shell(settings: Settings) -> Tool:
    work_dir = settings.shell_work_dir or settings.data_dir.resolve() / "work"
    work_dir.mkdir(parents=True, exist_ok=True)
    environment = {name: os.environ[name] for name in settings.shell_environment if name in os.environ}
    return Shell(
        work_dir, environment, settings.tool_output_bytes, default_timeout_ms=settings.tool_timeout_ms
    )


def _delegate(settings: Settings) -> Tool:
    return Delegate(settings.delegate_depth, settings.delegate_goals)


_MAKERS: Final[dict[str, Maker]] = {"delegate": _delegate, "shell": _shell}
