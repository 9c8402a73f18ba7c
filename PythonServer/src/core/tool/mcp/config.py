"""The MCP servers that a deployment uses, read from MCP_SERVERS_FILE. Needs no SDK, and starts nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from core.config_file import read_config
from core.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: What HTTP can carry: a token, and visible characters with spaces between them.
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"([\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?)?")
#: They belong to the transport.
_HEADERS_NOT_OURS: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_HOST: Final = re.compile(rb"[A-Za-z0-9._:-]{1,253}")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a zero byte cannot be passed on")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character cannot be passed on") from None
    return text


def _check_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("the name of a variable has no '=', and is not empty")
    return _check_text(name)


def _check_header(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("this is no name of a header")
    if name.lower() in _HEADERS_NOT_OURS:
        raise ValueError("this header is not for a file to set")
    return name


def _check_url(url: str) -> str:
    import httpx2  # it takes a while to import, and only servers over HTTP need it

    try:
        parsed = httpx2.URL(_check_text(url))
        port = urlsplit(url).port
    except (httpx2.InvalidURL, ValueError):
        raise ValueError("this is no usable address") from None
    if parsed.scheme not in ("http", "https") or not _HOST.fullmatch(parsed.raw_host) or port == 0:
        raise ValueError("this is no usable address: it begins with http:// or https:// and a host")
    return url


def _check_folder(path: Path) -> Path:
    _check_text(str(path))
    return path


Text = Annotated[str, AfterValidator(_check_text)]
Variable = Annotated[str, AfterValidator(_check_variable)]
Header = Annotated[str, AfterValidator(_check_header)]
Url = Annotated[str, AfterValidator(_check_url)]
Folder = Annotated[Path, AfterValidator(_check_folder)]


class StdioEntry(BaseModel):
    """A server that is a program of its own, spoken to through its standard input and output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: Text = Field(min_length=1)
    args: tuple[Text, ...] = ()
    #: What it sees beside the variables that every tool sees.
    env: dict[Variable, Text] = Field(default_factory=dict, repr=False)
    #: The folder it runs in; None: the server's own.
    cwd: Folder | None = None
    type: Literal["stdio"] = "stdio"


class HttpEntry(BaseModel):
    """A server that is reached over streamable HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Url
    headers: dict[Header, str] = Field(default_factory=dict, repr=False)
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
        raise ConfigurationError(f"{where}: {_first_fault(error)}") from None
    given: dict[str, str] = getattr(checked, values)
    expanded = _expanded(given, f"{where}, {values}", variables)
    if isinstance(checked, HttpEntry):
        _check_header_values(expanded, f"{where}, headers")
    return checked.model_copy(update={values: expanded})


def _first_fault(error: ValidationError) -> str:
    """Where, and what; in one line whatever is in the file."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:160]
    return "".join(char if char.isprintable() else "?" for char in f"{place}: {first['msg']}")


def _check_header_values(headers: dict[str, str], where: str) -> None:
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(
                f"{where}: the value of {name} cannot be sent: give visible ASCII characters, and neither spaces nor "
                "line breaks at its ends"
            )


def _expanded(values: dict[str, str], where: str, variables: Mapping[str, str]) -> dict[str, str]:
    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            raise ConfigurationError(f"{where}: ${{{name}}} is not set in the server's environment: set it")
        return variables[name]

    return {key: _VARIABLE.sub(value_of, value) for key, value in values.items()}
