"""The MCP servers that a deployment uses, read from MCP_SERVERS_FILE. Needs no SDK, and starts nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from core.config_file import read_config
from core.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a zero byte cannot be passed on")
    return text


Text = Annotated[str, AfterValidator(_check_text)]


class StdioEntry(BaseModel):
    """A server that is a program of its own, spoken to through its standard input and output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Text = Field(min_length=1)
    args: tuple[Text, ...] = ()
    #: What it sees beside the variables that every tool sees.
    env: dict[Text, Text] = Field(default_factory=dict, repr=False)
    #: The folder it runs in; None: the server's own.
    cwd: Path | None = None
    type: Literal["stdio"] = "stdio"


class HttpEntry(BaseModel):
    """A server that is reached over streamable HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https?://[^\s/]+")
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    type: Literal["http", "streamable-http", "streamableHttp", "streamable_http"] = "http"


Entry = StdioEntry | HttpEntry


def load_mcp_servers(path: Path, variables: Mapping[str, str]) -> dict[str, Entry]:
    """Name -> server, in the order of the file: ``{"mcpServers": {NAME: {"command": …} or {"url": …}}}``.

    ``${VAR}`` in a value of ``env`` or ``headers`` is what ``variables`` has. Raises ``ConfigurationError`` with one
    line that says where it is wrong; no value of ``env`` or ``headers`` is in it.
    """
    return {name: _entry(name, entry, path, variables) for name, entry in _entries(path).items()}


def _entries(path: Path) -> dict[str, Any]:
    content = read_config("MCP_SERVERS_FILE", path)
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise ConfigurationError(
            f'MCP_SERVERS_FILE {path} has the wrong shape: give {{"mcpServers": {{NAME: {{"command": …}}}}}}'
        )
    return entries


def _entry(name: str, entry: Any, path: Path, variables: Mapping[str, str]) -> Entry:
    where = f"MCP_SERVERS_FILE {path}, server {name[:80]!r}"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a name has 1 to 64 letters, digits, '_', '.' or '-'; rename it")
    if not isinstance(entry, dict) or ("command" in entry) == ("url" in entry):
        raise ConfigurationError(f"{where}: give either a command or a url")
    kind: type[Entry] = StdioEntry if "command" in entry else HttpEntry
    values = "env" if kind is StdioEntry else "headers"
    try:
        checked = kind.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where}: {place}: {first['msg']}") from None
    given: dict[str, str] = getattr(checked, values)
    return checked.model_copy(update={values: _expanded(given, f"{where}, {values}", variables)})


def _expanded(values: dict[str, str], where: str, variables: Mapping[str, str]) -> dict[str, str]:
    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            raise ConfigurationError(f"{where}: ${{{name}}} is not set in the server's environment: set it")
        return variables[name]

    return {key: _VARIABLE.sub(value_of, value) for key, value in values.items()}
