"""The functions of ``TOOL_MODULES`` that are marked with ``@tool``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from core.errors import ConfigurationError
from core.settings import Settings
from core.tool.function.schema import UnfitFunction
from core.tool.python_function import FunctionTool, mark_of
from core.tool.tool import Tool
from core.tool_settings import BUILT_IN

#: Said of a module that is not there: ``python -m api`` has the folder in which it is started on its path.
_PLACES: Final = (
    "; looked for in the folder in which the server is started, in those of PYTHONPATH, "
    "and among the installed packages"
)
#: Of what a module's import says when it fails, the most that is shown.
SHOWN_CHARS: Final = 300


def load_functions(modules: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """The marked functions that these modules hold, by the names of the tools; also what a module has imported.

    ``ConfigurationError`` for a module that cannot be imported, for two functions of one name, and for one that has the
    name of a tool of the server.
    """
    found: dict[str, Callable[..., Any]] = {}
    for module in modules:
        for thing in list(vars(_import(module)).values()):
            said = mark_of(thing)
            if said is None:
                continue
            if said.name in BUILT_IN:
                raise ConfigurationError(
                    f"TOOL_MODULES: {_place(thing)} has the name of the server's own tool {said.name!r}: give it another"
                )
            if found.setdefault(said.name, thing) is not thing:
                raise ConfigurationError(
                    f"TOOL_MODULES: {_place(found[said.name])} and {_place(thing)} are both the tool {said.name!r}: "
                    "give one of them another name"
                )
    return found


def make_function(functions: Mapping[str, Callable[..., Any]], name: str, settings: Settings) -> Tool:
    """The tool of one of the loaded functions; ``ConfigurationError`` if the model could not be told its parameters."""
    function = functions[name]
    try:
        return FunctionTool(function, settings.tool_output_bytes, settings.tool_timeout_ms)
    except UnfitFunction as error:
        raise ConfigurationError(f"TOOL_MODULES: {_place(function)} cannot be a tool: {error}") from None


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN_CHARS]
        places = _PLACES if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigurationError(
            f"TOOL_MODULES names {module[:80]!r}, which cannot be imported: {fault}{places}"
        ) from error


def _place(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"
