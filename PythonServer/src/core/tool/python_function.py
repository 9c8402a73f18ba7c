"""Python functions as tools: ``@tool`` on a plain function, listed in ``TOOL_MODULES`` and ``TOOLS_ALLOWED``.

A function runs on a thread, and nothing ends a thread from outside. So it is *asked*: it takes an event or the scope
of its call and ends when that says so. One that takes neither is deaf: it is left behind, and what it still brings is
dropped.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter

from core.call import Outcome
from core.cancellation import Cancelled
from core.surrogates import whole_text
from core.tool.function.progress import CappedProgress
from core.tool.function.schema import FunctionSchema, Injected, Progress
from core.tool.output import SHOWN_BYTES, shorten
from core.tool.tool import Stops, Tool, ToolFailed, ToolResult, ToolRun

__all__ = ["FunctionTool", "Progress", "Stops", "ToolFailed", "tool"]

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "__tool__"
_JSON: Final = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="constants"))
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Mark:
    """What ``@tool`` was told; None: as the function, or the settings, say."""

    name: str
    description: str | None
    timeout_ms: int | None
    stops: Stops | None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None,
    timeout_ms: int | None = None, stops: Stops | None = None,
) -> Callable[[F], F]: ...  # fmt: skip
def tool(
    function: F | None = None, /, *, name: str | None = None, description: str | None = None,
    timeout_ms: int | None = None, stops: Stops | None = None,
) -> F | Callable[[F], F]:  # fmt: skip
    """Let agents call this function. It stays what it was for whoever calls it from Python.

    ``TypeError`` for what is not a plain function, an ``async`` one too; ``ValueError`` for a name or a time limit that
    cannot be. ``stops``: only for one that listens in another way than by a parameter, such as ``current_scope()``.
    """

    def mark(function: F) -> F:
        _check_plain(function)
        said = Mark(name or function.__name__, description, timeout_ms, stops)
        if not _NAME.fullmatch(said.name):
            raise ValueError(f"a tool cannot be called {said.name!r}: give name= with 1 to 64 of A-Z a-z 0-9 _ -")
        if timeout_ms is not None and timeout_ms < 1:
            raise ValueError(f"the tool {said.name!r} has timeout_ms={timeout_ms}: give 1 or more")
        setattr(function, _MARK, said)
        return function

    return mark if function is None else mark(function)


def _check_plain(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise TypeError(f"@tool is for a function, not for {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"@tool cannot take the async function {function.__name__}: write one that is not")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"@tool cannot take the generator {function.__name__}: write a function that returns")


def mark_of(thing: object) -> Mark | None:
    """What ``@tool`` noted on it; None for everything else."""
    said = vars(thing).get(_MARK) if inspect.isfunction(thing) else None
    return said if isinstance(said, Mark) else None


class FunctionTool(Tool):
    """A function that was marked with ``@tool``, as agents call it."""

    def __init__(self, function: Callable[..., Any], output_cap: int, default_timeout_ms: int) -> None:
        """``UnfitFunction`` if the model could not be told its parameters. ``output_cap``: bytes of progress."""
        said = mark_of(function)
        assert said is not None, "only a function that was marked"
        self._function = function
        self._schema = FunctionSchema(function)
        self._output_cap = output_cap
        self.name = said.name
        self.description = said.description or self._schema.description or said.name
        self.parameters = self._schema.parameters
        self.timeout_s = (said.timeout_ms or default_timeout_ms) / 1000
        given = self._schema.injected.values()
        listens = Injected.EVENT in given or Injected.SCOPE in given
        self.stops = said.stops or (Stops.IS_ASKED if listens else Stops.IS_ABANDONED)

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """Call the function. What it returns is the result; see :func:`as_text`."""
        values = self._schema.read(arguments)
        stop, progress = threading.Event(), CappedProgress(run, self._output_cap)
        given = {Injected.EVENT: stop, Injected.SCOPE: run.scope, Injected.PROGRESS: progress}
        # Before the abort: a stop that came earlier is met there, and the function never begins.
        run.leave_behind = partial(_leave_behind, progress, run.leave_behind)
        abort = run.add_abort(stop.set)
        try:
            returned = self._function(**values, **{name: given[what] for name, what in self._schema.injected.items()})
            text = shorten(as_text(returned), min(SHOWN_BYTES, self._output_cap))
            self._note_end(run, "came to its end")
        except BaseException as error:
            self._note_end(run, "failed", error)
            if run.limit_hit is not None and isinstance(error, Exception):
                raise ToolFailed(self._result(_words(error, self.name), run).content) from error
            raise
        finally:
            run.scope.forget(abort)
            progress.close()
        return self._result(text, run)

    def _note_end(self, run: ToolRun, how: str, error: BaseException | None = None) -> None:
        """What a stop made of the call, if one comes or came. The first note stands."""
        if isinstance(error, Cancelled):
            run.settle(Outcome.CANCELLED, "it ended when asked")
        elif not run.scope.is_stopped:
            run.settle(Outcome.ALREADY_DONE, "it had finished")
        elif self.stops is Stops.IS_ASKED:
            run.settle(Outcome.CANCELLED, "it ended when asked")
        elif self.stops is Stops.IS_ABANDONED:  # it knew of nothing, so what it has done is the whole of it
            outcome = Outcome.ALREADY_DONE if error is None else Outcome.FAILED
            run.settle(outcome, f"it did not listen, and {how} by itself")

    def _result(self, text: str, run: ToolRun) -> ToolResult:
        """A limit of its own is told beside what it had so far; a stop is told by whoever runs the call."""
        cause = run.scope.cause
        if run.limit_hit is None or cause is None or run.outcome is Outcome.ALREADY_DONE:
            return ToolResult(text)
        return ToolResult(f"ended: {cause.reason or cause.word}\n{text}".rstrip("\n"), is_error=True)


def _leave_behind(progress: CappedProgress, leave: Callable[[], None]) -> None:
    progress.close()  # first: the call's result comes after all of its output
    leave()


def _words(error: Exception, name: str) -> str:
    """What the model may read of it: only ``ToolFailed`` is written for it."""
    if isinstance(error, ToolFailed):
        return error.detail
    log.error("tool %s failed", name, exc_info=error)
    return f"the tool failed: internal error ({type(error).__name__})"


def as_text(returned: object) -> str:
    """What the model reads: a text as it is, a model, dict or list as JSON, nothing for None, else ``str()``."""
    if returned is None:
        return ""
    if isinstance(returned, (BaseModel, dict, list)):
        plain = _JSON.dump_python(returned, mode="json", fallback=str)
        return whole_text(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    return whole_text(str(returned))
