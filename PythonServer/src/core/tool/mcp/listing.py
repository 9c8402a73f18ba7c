"""What an MCP server lists, as tools of this server: names that a model may call, and so much that a model can bear."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from core.surrogates import whole_text
from core.tool.mcp.schema import checked_schema
from core.tool.output import shorten

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH: Final = 64
_DIGEST_LENGTH: Final = 8
#: Characters of a name as the server gives it.
REMOTE_NAME_LENGTH: Final = 128
#: Bytes of a description that go to the model, for each of its requests.
DESCRIPTION_BYTES: Final = 8 * 1024
#: Bytes of all that one server lists: descriptions and schemas.
LISTING_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]
    #: Bytes of it that go to the model.
    size: int


class Names:
    """Names for the tools of all servers: ``SERVER__tool``, each for one tool as long as that is listed."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, str]] = {}

    def give(self, server: str, tool: str) -> str:
        """At most 64 of ``[A-Za-z0-9_-]``. What does not fit, or is taken, ends in a digest of what it was."""
        plain = f"{server}__{tool}"
        name = _NOT_ALLOWED.sub("_", plain)
        owner = (server, tool)
        if name != plain or len(name) > _NAME_LENGTH or self._owners.get(name, owner) != owner:
            digest = hashlib.sha256(repr(owner).encode()).hexdigest()[:_DIGEST_LENGTH]
            name = f"{name[: _NAME_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"
        self._owners[name] = owner
        return name

    def keep(self, server: str, names: Collection[str]) -> None:
        """Of this server only these are still in use."""
        self._owners = {name: owner for name, owner in self._owners.items() if owner[0] != server or name in names}

    def __len__(self) -> int:
        return len(self._owners)


class Listing:
    """One list of tools, while it comes in."""

    def __init__(self) -> None:
        self.tools: list[Listed] = []
        #: What is left out, and why: a line each.
        self.left_out: list[str] = []
        self._room = LISTING_BYTES
        self._is_full = False

    def take(self, name: str, description: str | None, parameters: dict[str, Any]) -> None:
        """Takes tens of milliseconds for a long schema."""
        if self._is_full:
            return
        try:
            tool = listed(name, description, parameters)
        except ValueError as error:
            self.left_out.append(f"the tool {name[:80]!r} is left out: {error}")
            return
        self._room -= tool.size
        if self._room < 0:
            self._is_full = True
            self.left_out.append(f"the tools from {name[:80]!r} on are left out: all take over {LISTING_BYTES} bytes")
        else:
            self.tools.append(tool)


def listed(name: str, description: str | None, parameters: dict[str, Any]) -> Listed:
    """``ValueError`` says why it cannot be offered."""
    if len(name) > REMOTE_NAME_LENGTH:
        raise ValueError(f"its name is longer than {REMOTE_NAME_LENGTH} characters")
    schema, size = checked_schema(parameters)
    text = shorten(whole_text(description or ""), DESCRIPTION_BYTES)
    return Listed(name, text, schema, size + len(text.encode()))
