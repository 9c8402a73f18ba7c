"""What an agent needs of the turn that it works for, and who asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from core.call import CallBook
from core.cancellation import Scope
from core.events import EventType
from core.provider.model_call import ModelCall
from core.tool.tool import Answered, Delegated, ToolRun


class Threads(Protocol):
    """The pool that runs goals and tools; see :class:`core.engine.call_pool.CallPool`."""

    def submit(self, jobs: Sequence[Callable[[], None]], first: bool = False) -> None:
        """Run each once, as places become free; ``first``: before what waits already."""

    #: Threads of calls that were left behind and have not ended.
    abandoned: int

    def current(self) -> object | None:
        """The handle of the calling pool thread."""

    def abandon(self, worker: object) -> None:
        """Give back the place of a thread that does not end."""

    def resting(self, scope: Scope) -> AbstractContextManager[None]:
        """Inside, the calling thread holds no place: it only waits."""


class TurnPort(Protocol):
    """The turn, as an agent sees it. ``owner`` is the goal."""

    calls: CallBook

    @property
    def workers(self) -> Threads:
        """The threads of the turn."""

    def begin_request(self, owner: Any, call: ModelCall) -> None:
        """Before each model request is built, repeated ones too: what the user has said meanwhile is in the goal's
        rounds when this returns. ``Cancelled`` if it must not be made.
        """

    def end_request(self, owner: Any, is_cut: bool) -> None:
        """That request is over; ``is_cut``: a message of the user cut it off, and it is made again."""

    def emit(
        self, event_type: EventType, data: dict[str, Any], goal_id: str | None = None, call_id: str | None = None
    ) -> None:
        """Append an event to the turn."""

    def note_call(self, owner: Any, call_id: str, name: str, arguments: str) -> None:
        """A tool is about to be called. ``Cancelled`` if the goal was stopped: then it is not."""

    def note_output(self, owner: Any, call_id: str, stream: str, text: str) -> None:
        """A piece of a tool's output; dropped once the goal is final."""

    def note_result(self, owner: Any, call_id: str, content: str, is_error: bool) -> None:
        """What a tool call came to; dropped once the goal is final."""


    def delegate(
        self, owner: Any, run: ToolRun, goals: list[dict[str, Any]], max_depth: int, max_goals: int
    ) -> list[Delegated]:
        """Have sub-agents work on ``goals`` for a tool call of ``owner``; see :class:`core.tool.tool.DelegatePort`."""

    def ask(
        self, owner: Any, run: ToolRun, question: str, options: list[str] | None, timeout_ms: int | None
    ) -> Answered:
        """Ask the user for a tool call of ``owner``; see :class:`core.tool.tool.AskPort`."""


@dataclass(slots=True)
class Asked:
    """Who asks: a goal (or the plan in the making), its scope, and where its text goes."""

    owner: object
    goal_id: str | None
    scope: Scope
    #: Takes a piece of text, and the scope of the call that it comes from; ``Cancelled`` once that is stopped.
    on_text: Callable[[str, Scope], None]
    #: From now on the agent's fallback model answers; a goal does not change its model back half way.
    has_fallen_back: bool = False
