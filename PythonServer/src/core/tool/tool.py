"""The tool interface: run once, and say how it is stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from core.call import Call, CallKind, Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Registration, Scope
from core.clock import Alarm, alarm_clock
from core.errors import ServerError

#: Seconds after its stop at which a call that has not ended is left behind: so long before its turn is over (1.8) that
#: the goals around it come to their own end, also on a slow machine.
ABANDON_AFTER_S: Final = 1.5
#: So many threads of calls that were left behind, and no tool that may add to them is run any more.
MAX_ABANDONED: Final = 32


class Stops(StrEnum):
    """How a tool is stopped; each kind of call says so."""

    #: It is cut from outside, at once: a socket shut, a process killed.
    ABORTS = "aborts"
    #: It is told, and ends by itself.
    IS_ASKED = "is_asked"
    #: It does not listen; it is left behind, and its late result is dropped.
    IS_ABANDONED = "is_abandoned"


class ToolFailed(ServerError):
    """The tool could not do what was asked; the message is for the model and the user. It ends no goal."""

    code, status, title = "tool_failed", 502, "The tool failed"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call came to. ``content`` is what the model reads; it may be the partial output of a stopped call."""

    content: str
    is_error: bool = False


class OutputPort(Protocol):
    """Where a tool's progress goes."""

    def __call__(self, stream: str, text: str) -> None:
        """A piece of output, whole UTF-8; ``stream`` is ``stdout`` or ``stderr``."""


@dataclass(frozen=True, slots=True)
class Delegated:
    """What became of a goal that was delegated. ``name`` is the id that the delegating agent gave it."""

    name: str
    status: str
    text: str
    cause: str | None = None
    error: str | None = None


class DelegatePort(Protocol):
    """How a tool has others work for it."""

    def __call__(self, goals: list[dict[str, Any]], max_depth: int, max_goals: int) -> list[Delegated]:
        """Run these goals as a plan below the call; what became of each, in order, also after a stop.

        ``ToolFailed`` if they are no plan, or there are too many of them in the turn, or it would be too deep.
        """


def _nobody(goals: list[dict[str, Any]], max_depth: int, max_goals: int) -> list[Delegated]:
    raise ToolFailed("nobody is there to delegate to")


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a question to the user."""

    #: ``answered``, ``declined`` or ``expired``.
    disposition: str
    #: Only if it was answered.
    answer: str | None = None
    #: The user's further words, if there are any.
    comment: str | None = None


class AskPort(Protocol):
    """How a tool asks the user."""

    def __call__(self, question: str, options: list[str] | None, timeout_ms: int | None) -> Answered:
        """Ask, and wait for the answer, however long that takes; the calling thread rests meanwhile.

        ``Cancelled`` if a stop came before the answer. An answer that came before a stop is returned, and the call is
        settled as done. ``ToolFailed`` if it cannot be asked now.
        """


def _nobody_to_ask(question: str, options: list[str] | None, timeout_ms: int | None) -> Answered:
    raise ToolFailed("nobody is there to ask")


class ToolRun(Call):
    """One running tool call: its scope, its own limits, and its progress.

    A limit and a stop are one mechanism, the scope, with different causes.
    """

    def __init__(
        self, scope: Scope, goal_id: str | None, name: str, emit: OutputPort, call_id: str | None = None,
        kind: CallKind = CallKind.TOOL,
    ) -> None:  # fmt: skip
        super().__init__(kind, scope, goal_id, call_id)
        self.name = name
        self.emit = emit
        #: Leave the call behind: it is over, and what it may still do is dropped. Harmless once it has ended.
        self.leave_behind: Callable[[], None] = lambda: None
        #: How a tool has others work for it.
        self.delegate: DelegatePort = _nobody
        #: How a tool asks the user.
        self.ask: AskPort = _nobody_to_ask
        self._limit: Cause | None = None

    def add_abort(self, abort: Callable[[], None]) -> Registration:
        """As ``scope.add_abort``; who comes too late has never begun. Not ``scope.on_cancel``, which would turn what a
        stopped tool returns, such as its output so far, into an exception.
        """
        try:
            return self.scope.add_abort(abort)
        except Cancelled:
            self.settle(Outcome.NOT_STARTED, "never began")
            raise

    def limit_time(self, seconds: float) -> Alarm:
        """End the call with cause ``deadline`` after that time; call the alarm off when it has ended."""
        cause = Cause(CauseWord.DEADLINE, f"the tool took longer than {seconds:g} s")
        return alarm_clock.after(seconds, lambda: self.limit(cause))

    def limit(self, cause: Cause) -> None:
        """End the call for a reason of its own, such as too much output."""
        self._limit = self._limit or cause
        self.scope.cancel(self._limit)

    @property
    def limit_hit(self) -> CauseWord | None:
        """Which limit of its own ended the call; None while it runs, and if a stop came first."""
        return self._limit.word if self._limit is not None and self.scope.cause is self._limit else None


class Tool(ABC):
    """Something that an agent may call. What it does not say for itself is as here."""

    #: As the model calls it; ``[A-Za-z0-9_-]{1,64}``.
    name: str
    description: str
    #: JSON Schema of the arguments: an object.
    parameters: dict[str, Any]
    #: How a call is stopped.
    stops: Stops
    #: What a call is in the receipt.
    kind: CallKind = CallKind.TOOL
    #: Seconds after which a call is ended with cause ``deadline``; None: it has a limit of its own, or none.
    timeout_s: float | None = None
    #: The promise: a call has ended so many seconds after its stop. One that has not is left behind (``abandoned``).
    ends_within_s: float = ABANDON_AFTER_S

    @abstractmethod
    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """Do it. ``arguments`` fit ``parameters``. Blocks; stopped through ``run.scope``.

        On a stop: raise ``Cancelled``, or return what there is so far. Either way the call counts as stopped, so
        returning cannot hide the stop. ``ToolFailed`` becomes an error result for the model. ``run.settle`` says
        what the stop made of it; who does not say so was ``aborted``.
        """


def describe_promise(tool: Tool) -> dict[str, Any]:
    """A tool as the API shows it."""
    return {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters, "stops": tool.stops,
        "ends_within_ms": round(tool.ends_within_s * 1000),
        "timeout_ms": None if tool.timeout_s is None else round(tool.timeout_s * 1000),
    }  # fmt: skip
