"""Whether arguments fit a tool."""

from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry

from core.tool.output import shorten
from core.tool.tool import Tool

#: Of what a schema has against the arguments, the most that is told.
FAULT_BYTES: Final = 1000


def misfit(tool: Tool, arguments: dict[str, Any]) -> str | None:
    """What the tool's schema has against them, in words for the model and the user; None if they fit."""
    # A registry of its own, and empty: no schema may have a reference fetched from somewhere.
    validator = Draft202012Validator(tool.parameters, registry=Registry())
    error = best_match(validator.iter_errors(arguments))
    if error is None:
        return None
    where = "/".join(str(part) for part in error.absolute_path)
    return shorten(f"{where}: {error.message}" if where else error.message, FAULT_BYTES)  # it shows the value
