"""The tools of this server: those that ``TOOLS_ALLOWED`` names. None is on by itself."""

from __future__ import annotations

import logging
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, cast

from core.errors import ConfigurationError
from core.settings import Settings
from core.tool.ask_user import AskUser
from core.tool.delegate import Delegate
from core.tool.function.modules import load_functions, make_function
from core.tool.mcp.config import load_mcp_servers
from core.tool.mcp.servers import McpServers
from core.tool.shell import Shell
from core.tool.tool import Tool
from core.tool_settings import BUILT_IN

log = logging.getLogger(__name__)

Maker = Callable[[Settings], Tool]


class Toolbox:
    """Every allowed tool, by its name in the configuration. Start it, and close it."""

    def __init__(self, settings: Settings) -> None:
        """``ConfigurationError`` if a tool that is allowed does not exist, or cannot be set up. Starts nothing."""
        self._functions = load_functions(settings.tool_modules)
        self._mcp = _mcp_servers(settings) if any(map(_is_mcp, settings.tools_allowed)) else None
        self._tools = {name: self._make(name, settings) for name in settings.tools_allowed}
        for agent in settings.agents.values():
            self.of(agent.tools)
        self._remarks = list(_remarks(settings, self._functions))

    def _make(self, name: str, settings: Settings) -> Mapping[str, Tool]:
        if _is_mcp(name):
            return self._mcp_tools(name)
        maker = _MAKERS.get(name)
        if maker is not None:
            return {name: maker(settings)}
        if name in self._functions:
            return {name: make_function(self._functions, name, settings)}
        there_are = ", ".join([*BUILT_IN, *sorted(self._functions)])
        raise ConfigurationError(f"TOOLS_ALLOWED names {name[:80]!r}, which is no tool: give {there_are}")

    def of(self, names: Iterable[str] | None) -> Mapping[str, Tool]:
        """What an agent with these names in its list may call, in their order; None: everything that is allowed.

        The mapping follows changes: a server of tools may come and go.
        """
        wanted = [self._named(name) for name in (self._tools if names is None else names)]
        # A ChainMap is read from its last map to its first.
        return ChainMap({}, *(cast(MutableMapping[str, Tool], tools) for tools in reversed(wanted)))

    def _named(self, name: str) -> Mapping[str, Tool]:
        """Where every MCP server is allowed, an agent may name one."""
        if name not in self._tools and "mcp" in self._tools and _is_mcp(name):
            return self._mcp_tools(name)
        return self._tools[name]

    def _mcp_tools(self, name: str) -> Mapping[str, Tool]:
        assert self._mcp is not None
        try:
            return self._mcp.tools(None if name == "mcp" else name.removeprefix("mcp:"))
        except KeyError:
            there_are = ", ".join(f"mcp:{each['name']}" for each in self._mcp.status()) or "none"
            raise ConfigurationError(
                f"{name[:80]!r} is no server of MCP_SERVERS_FILE: add it there, or give another of {there_are}"
            ) from None

    @property
    def mcp_status(self) -> list[dict[str, Any]]:
        """``{name, state, tools, error?}`` of each MCP server."""
        return self._mcp.status() if self._mcp is not None else []

    def start(self) -> None:
        """Start what the tools need running. Does not wait for it."""
        for remark in self._remarks:
            log.warning(remark)
        if self._mcp is not None:
            self._mcp.start()

    def close(self) -> None:
        """End what the tools keep running. Bounded."""
        if self._mcp is not None:
            self._mcp.close()


def _remarks(settings: Settings, functions: Iterable[str]) -> Iterator[str]:
    """What is no fault, and may be a mistake."""
    unused = sorted(set(functions) - set(settings.tools_allowed))
    if unused:
        yield f"functions of TOOL_MODULES that TOOLS_ALLOWED does not name, so that no agent has them: {', '.join(unused)}"
    if settings.mcp_servers_file is not None and not any(map(_is_mcp, settings.tools_allowed)):
        yield "MCP_SERVERS_FILE is set, and TOOLS_ALLOWED names neither mcp nor mcp:NAME, so that no agent has its tools"


def _is_mcp(name: str) -> bool:
    return name == "mcp" or name.startswith("mcp:")


def _mcp_servers(settings: Settings) -> McpServers:
    assert settings.mcp_servers_file is not None  # checked with the settings
    entries = load_mcp_servers(settings.mcp_servers_file, os.environ)
    return McpServers(
        entries, _environment(settings), settings.tool_timeout_ms / 1000, settings.tool_output_bytes, settings.data_dir
    )


def _environment(settings: Settings) -> dict[str, str]:
    """What of the server's environment a process of a tool sees."""
    return {name: os.environ[name] for name in settings.shell_environment if name in os.environ}


def _shell(settings: Settings) -> Tool:
    work_dir = settings.shell_work_dir or settings.data_dir.resolve() / "work"
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"SHELL_WORK_DIR={str(work_dir)!r} cannot be made ({error.strerror}): give a folder that this user may "
            "write to"
        ) from None
    return Shell(
        work_dir, _environment(settings), settings.tool_output_bytes, default_timeout_ms=settings.tool_timeout_ms
    )


def _http_request(settings: Settings) -> Tool:
    from core.tool.http_request import HttpRequest  # its libraries take a while to import

    return HttpRequest(settings.http_private_networks, settings.tool_output_bytes, settings.tool_timeout_ms)


def _delegate(settings: Settings) -> Tool:
    return Delegate(settings.delegate_depth, settings.delegate_goals, list(settings.agents))


_MAKERS: Final[dict[str, Maker]] = {
    "ask_user": lambda _: AskUser(), "delegate": _delegate, "http_request": _http_request, "shell": _shell
}  # fmt: skip
