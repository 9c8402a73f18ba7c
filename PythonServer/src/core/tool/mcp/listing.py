"""What an MCP server lists, as tools of this server: names that a model may call, schemas that can be checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from core.tool.output import shorten

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH: Final = 64
_DIGEST_LENGTH: Final = 8
#: Bytes of a description that go to the model, for each of its requests.
DESCRIPTION_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as its server lists it."""

    name: str
    description: str
    parameters: dict[str, Any]


class Names:
    """Names for the tools of all servers: ``SERVER__tool``, each for one tool and for good."""

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


def listed(name: str, description: str | None, parameters: dict[str, Any]) -> Listed:
    """``ValueError`` says why arguments for it cannot be checked, so that it cannot be offered."""
    fault = fault_of(parameters)
    if fault is not None:
        raise ValueError(fault)
    return Listed(name, shorten(description or "", DESCRIPTION_BYTES), {"properties": {}, **parameters})


def fault_of(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema of arguments, or None."""
    if schema.get("type") != "object":
        return "its schema is not that of an object"
    try:
        Draft202012Validator.check_schema(schema)
        root = DRAFT202012.create_resource(schema)
        resolver: Any = Registry().with_resource("", root).resolver()
        for reference in _references(schema):
            resolver.lookup(reference)
    except SchemaError as error:
        return f"its schema is wrong: {error.message[:200]}"
    except Unresolvable as error:  # also a reference to another place: nothing is fetched for a server
        return f"its schema refers to {str(error.ref)[:200]!r}, which is not in it"
    except RecursionError:
        return "its schema is nested too deep"
    return None


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
