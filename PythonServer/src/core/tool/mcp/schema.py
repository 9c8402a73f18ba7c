"""Schemas of arguments that somebody else wrote: which of them can be kept, sent on, and checked against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

#: Bytes of one schema as JSON; it goes to the model with each of its requests.
SCHEMA_BYTES: Final = 64 * 1024

#: Their values have a schema for each name, and the names are nobody's keywords.
_MAPS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
#: Their values are data.
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
#: Where a schema that allows more makes the whole allow less.
_TURNED: Final = frozenset({"not", "oneOf", "if", "contains"})
#: A regular expression of theirs may take for ever, and Python's ``re`` lets no other thread run meanwhile. An ``$id``
#: would give references another meaning than the one that is checked here.
_DROPPED: Final = frozenset({"pattern", "patternProperties", "$id"})


def checked_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The schema without regular expressions, and its bytes. ``ValueError`` says why it cannot be used."""
    if schema.get("type") != "object":
        raise ValueError("its schema is not that of an object")
    try:
        _check_size(schema)
        found = {"properties": {}, **without_patterns(schema)}
        Draft202012Validator.check_schema(found)
        _check_references(found)
    except SchemaError as error:
        raise ValueError(f"its schema is wrong: {error.message[:200]}") from None
    except Unresolvable as error:  # also a reference to another place: nothing is fetched for a server
        raise ValueError(f"its schema refers to {str(error.ref)[:200]!r}, which is not in it") from None
    except RecursionError:
        raise ValueError("its schema is nested too deep") from None
    return found, len(json.dumps(found, ensure_ascii=False).encode())


def _check_size(schema: dict[str, Any]) -> None:
    """Stops where it is too long, so that the check of a giant costs no more than that of the longest."""
    size = 0
    for piece in json.JSONEncoder(allow_nan=False, ensure_ascii=False).iterencode(schema):
        try:
            size += len(piece.encode())
        except UnicodeEncodeError:
            raise ValueError("its schema has half a character in it") from None
        if size > SCHEMA_BYTES:
            raise ValueError(f"its schema is longer than {SCHEMA_BYTES} bytes")


def without_patterns(schema: Any) -> Any:
    """What it allows, and what differs from it only in a regular expression. Names of properties stay."""
    if isinstance(schema, list):
        return [without_patterns(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DROPPED:
            continue
        if key in _MAPS and isinstance(value, dict):
            found[key] = {name: without_patterns(each) for name, each in value.items()}
        elif key in _DATA:
            found[key] = value
        else:
            loose = without_patterns(value)
            if key not in _TURNED or loose == value:
                found[key] = loose
    if "patternProperties" in schema:  # what they allowed is no "additional" property
        found.pop("additionalProperties", None)
        found.pop("unevaluatedProperties", None)
    return found


def _check_references(schema: dict[str, Any]) -> None:
    """Each leads to a place in it that is a schema without patterns, and not to data or to names of properties."""
    resolver: Any = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in set(_references(schema)):
        target = resolver.lookup(reference).contents
        if without_patterns(target) != target:
            raise ValueError(f"its schema refers to {reference[:200]!r}, which is no schema of its own")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (found for key in ("$ref", "$dynamicRef") if isinstance(found := schema.get(key), str))
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
