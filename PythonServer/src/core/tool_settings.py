"""The settings of the tools: which are allowed, and within which limits. A part of :mod:`core.settings`."""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode

CommaList = Annotated[tuple[str, ...], NoDecode]

#: The tools that come with the server; beside them there are functions (``TOOL_MODULES``) and ``mcp:NAME``.
BUILT_IN: Final = ("shell", "http_request", "delegate", "ask_user", "mcp")


class ToolSettings(BaseSettings):
    """One field a variable."""

    #: Names that agents may use; none is on by itself. ``mcp`` is every MCP server, ``mcp:NAME`` one of them.
    tools_allowed: CommaList = ()
    #: Python modules whose functions marked with ``@tool`` may be allowed by their names.
    tool_modules: CommaList = ()
    #: ``{"mcpServers": {NAME: {"command": …, "args": […], "env": {…}} or {"url": …, "headers": {…}}}}``.
    mcp_servers_file: Path | None = None

    #: The limit of a tool call; a shell call may ask for another.
    tool_timeout_ms: int = Field(default=120_000, ge=1, le=3_600_000)
    #: Bytes of output at which a call is ended.
    tool_output_bytes: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)

    #: Where commands run; None means ``work`` in DATA_DIR.
    shell_work_dir: Path | None = None
    #: The variables of the server's environment that a command sees.
    shell_environment: CommaList = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR")
    #: Private, loopback and link-local networks that http_request may reach all the same, such as 10.1.0.0/16.
    http_private_networks: CommaList = ()
    #: How deep sub-agents may delegate again, and the goals that one turn may delegate in all.
    delegate_depth: int = Field(default=2, ge=1, le=10)
    delegate_goals: int = Field(default=32, ge=1, le=1000)

    @field_validator(
        "tools_allowed", "tool_modules", "shell_environment", "http_private_networks", mode="before"
    )
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        return split_list(value)


def split_list(value: Any) -> Any:
    """A comma list as a tuple; what is none is left to the type's own check."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value
