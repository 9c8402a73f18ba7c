"""A module of tools as a user of the server writes one, for tests that hold them: ``TOOL_MODULES`` names it.

Each call names a stage: there the test sees that it has begun, and lets it go on.
"""

from __future__ import annotations

import datetime
import threading
from collections import defaultdict
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from core.cancellation import Cause, Scope, current_scope
from core.tool.python_function import Progress, ToolFailed, tool
from tests.support.api_client import PATIENCE_S

#: What a deaf function says and returns when nobody listens any more.
LATE = "what came too late"


class Stage:
    """Where one call and the test meet."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()
        self.event: threading.Event | None = None
        self.scope: Scope | None = None
        #: Why it was stopped, as the function itself has seen it.
        self.cause: Cause | None = None

    def wait_begun(self) -> None:
        """For the test: until the function is at work."""
        assert self.begun.wait(PATIENCE_S), "the function never began"

    def wait_ended(self) -> None:
        """For the test: until the function is about to return."""
        assert self.ended.wait(PATIENCE_S), "the function does not end"


#: By name, made when first asked for.
stages: defaultdict[str, Stage] = defaultdict(Stage)


@tool
def asked(stage: str, cancel_event: threading.Event, scope: Scope, progress: Progress) -> str:
    """Works until it is stopped, and returns what it has by then.

    Args:
        stage: where the test looks on
    """
    at = stages[stage]
    at.event, at.scope = cancel_event, scope
    assert current_scope() is scope
    progress("begun\n")
    at.begun.set()
    is_stopped = cancel_event.wait(PATIENCE_S)
    at.cause = scope.cause
    at.ended.set()
    return "half of it" if is_stopped else "nobody stopped it"


@tool
def until_told(stage: str, cancel_event: threading.Event, scope: Scope) -> str:
    """Works until the test lets it go on, and says then whether it was stopped."""
    at = stages[stage]
    at.event, at.scope = cancel_event, scope
    at.begun.set()
    assert at.go.wait(PATIENCE_S)
    at.ended.set()
    return f"{stage} stopped" if cancel_event.is_set() else f"{stage} in peace"


@tool
def by_scope(stage: str, scope: Scope) -> None:
    """Waits on the scope of its call."""
    stages[stage].begun.set()
    try:
        scope.sleep(PATIENCE_S)
    finally:
        stages[stage].cause = scope.cause
        stages[stage].ended.set()


@tool
def deaf(stage: str, progress: Progress) -> str:
    """Never listens."""
    _work_deaf(stages[stage], progress)
    return LATE


@tool(timeout_ms=100)
def deaf_and_slow(stage: str, progress: Progress) -> str:
    """Never listens, and has a time limit of its own."""
    _work_deaf(stages[stage], progress)
    return LATE


def _work_deaf(at: Stage, progress: Progress) -> None:
    progress("begun\n")
    at.begun.set()
    at.go.wait()
    progress(LATE)
    at.ended.set()


@tool(timeout_ms=100)
def asked_and_slow(cancel_event: threading.Event) -> str:
    """Listens, and has a time limit of its own."""
    assert cancel_event.wait(PATIENCE_S)
    return "half of it"


class Seat(BaseModel):
    row: int
    letter: Literal["A", "B"] = "A"


@tool
def book(day: datetime.date, seats: Annotated[list[Seat], Field(min_length=1)], note: str | None = None) -> object:
    """Book seats."""
    return {"day": day, "seats": seats, "rows": sum(seat.row for seat in seats), "note": note}


@tool
def broken(how: Literal["told", "untold"]) -> None:
    """Fails."""
    if how == "told":
        raise ToolFailed("there is no paper left")
    raise ValueError("/etc/secret")
