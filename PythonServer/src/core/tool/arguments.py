"""Whether arguments fit a tool. Schemas may be somebody else's, so the check is bounded, whatever they say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry

from core.tool.output import shorten
from core.tool.tool import Tool

#: Of what a schema has against the arguments, the most that is told.
FAULT_BYTES: Final = 1000
#: Keywords looked at in one check, a reference as many: it costs as much, and references can make a small schema look
#: at its value without end.
MAX_STEPS: Final = 20_000
_REFERENCE_STEPS: Final = 20

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _TooLong(Exception):
    pass


_left = threading.local()


def _counted(name: str, keyword: Keyword) -> Keyword:
    steps = _REFERENCE_STEPS if name in {"$ref", "$dynamicRef"} else 1

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        _left.steps -= steps
        if _left.steps < 0:
            raise _TooLong
        return keyword(validator, value, instance, schema)

    return counted


def _unchecked(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """A pattern is told to the model and not checked: Python's expressions have no bound, and stop for nothing."""


_KEYWORDS: Final = {name: _counted(name, keyword) for name, keyword in Draft202012Validator.VALIDATORS.items()}


def _unless_patterns(keyword: Keyword) -> Keyword:
    """For keywords about the properties that no pattern has named."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        return None if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return checked


for _name in ("additionalProperties", "unevaluatedProperties"):
    _KEYWORDS[_name] = _unless_patterns(_KEYWORDS[_name])

_Validator: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {**_KEYWORDS, "pattern": _unchecked, "patternProperties": _unchecked}
)


def misfit(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """What the tool's schema has against them, in words for the model and the user; None if they fit."""
    _left.steps = MAX_STEPS
    # A registry of its own, and empty: no schema may have a reference fetched from somewhere.
    validator = _Validator(tool.parameters, registry=Registry())
    try:
        error = best_match(validator.iter_errors(arguments))
    except _TooLong:
        return "checking them takes too long"
    if error is None:
        return None
    where = "/".join(str(part) for part in error.absolute_path)
    return shorten(f"{where}: {error.message}" if where else error.message, FAULT_BYTES)  # it shows the value
