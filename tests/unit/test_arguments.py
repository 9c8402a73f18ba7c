"""The check of arguments against a tool's schema: what it tells, and that no schema can make it run without end."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from core.tool.arguments import misfit


def _misfit(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    return misfit(SimpleNamespace(parameters=schema), arguments)  # type: ignore[arg-type]


def _doubling(levels: int) -> dict[str, Any]:
    """A small schema that looks at one value 2^levels times."""
    found: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels + 1):
        found[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"properties": {"text": {"$ref": f"#/$defs/d{levels}"}}, "$defs": found}


@pytest.mark.parametrize(
    ("schema", "arguments", "fault"),
    [
        ({"properties": {"n": {"type": "integer"}}}, {"n": 1}, None),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "x"}, "n: 'x' is not of type 'integer'"),
        ({"required": ["n"]}, {}, "'n' is a required property"),
        ({"properties": {}, "additionalProperties": False}, {"m": 1}, "Additional properties are not allowed"),
        (_doubling(3), {"text": "x"}, None),
        (_doubling(3), {"text": 1}, "text: 1 is not of type 'string'"),
        ({"properties": {"list": {"items": {"type": "integer"}}}}, {"list": list(range(5000))}, None),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(
    schema: dict[str, Any], arguments: dict[str, Any], fault: str | None
) -> None:
    found = _misfit(schema, arguments)
    assert found is None if fault is None else found is not None and found.startswith(fault)


def test_a_schema_that_would_be_checked_for_ever_is_not() -> None:
    began = time.monotonic()
    assert _misfit(_doubling(40), {"text": "x"}) == "checking them takes too long"
    assert time.monotonic() - began < 30


def test_a_pattern_that_python_would_never_finish_is_told_and_not_checked() -> None:
    schema: dict[str, Any] = {"properties": {"text": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}}
    schema["additionalProperties"] = False
    began = time.monotonic()
    assert _misfit(schema, {"text": "a" * 60 + "!", "b" * 60 + "!": 1}) is None
    assert time.monotonic() - began < 30
