"""A call: the smallest thing that a stop can reach, and what became of it."""

import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from core.cancellation import Level, Scope
from core.ids import new_id


class CallKind(StrEnum):
    """What a receipt item is about."""

    MODEL_CALL = "model_call"
    TOOL = "tool"
    PROCESS = "process"
    QUESTION = "question"
    WAIT = "wait"
    GOAL = "goal"
    SUB_RUN = "sub_run"


class Outcome(StrEnum):
    """What a stop made of an item."""

    #: It was asked and agreed, or it was a wait and woke.
    CANCELLED = "cancelled"
    #: We cut it.
    ABORTED = "aborted"
    KILLED = "killed"
    ALREADY_DONE = "already_done"
    NOT_STARTED = "not_started"
    #: It did not end in time; its late result is dropped.
    ABANDONED = "abandoned"
    FAILED = "failed"


class Call:
    """One running call. Its scope is the handle by which it is stopped; its outcome is set once.

    ``took_ms`` in the receipt counts from the stop to the moment at which the outcome was known.
    """

    def __init__(self, kind: CallKind, scope: Scope, goal_id: str | None, call_id: str | None = None) -> None:
        self.kind = kind
        self.id = call_id or new_id("c")
        self.goal_id = goal_id
        self.scope = scope
        #: Says that something has come of it which no event tells (yet); set by the book in which it stands.
        self.note_progress: Callable[[], None] = lambda: None
        #: Set when the code that runs the call has left it, however.
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._how: str | None = None
        self._detail: str | None = None
        self._settled_at = 0.0

    @property
    def outcome(self) -> Outcome | None:
        """What the stop made of it, or None while that is open."""
        return self._outcome

    def settle(self, outcome: Outcome, how: str, detail: str | None = None) -> bool:
        """Note what became of it. The first note stands; True if this was it."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome, self._how, self._detail = outcome, how, detail
            self._settled_at = time.monotonic()
            return True

    def item(self, stopped_at: float) -> dict[str, Any]:
        """The receipt item; ``stopped_at`` is the stop's ``time.monotonic()``."""
        item: dict[str, Any] = {
            "kind": self.kind,
            "id": self.id,
            "goal_id": self.goal_id,
            "outcome": self._outcome,
            "how": self._how,
            "took_ms": max(0, round((self._settled_at - stopped_at) * 1000)) if self._outcome else None,
        }
        if self._detail:
            item["detail"] = self._detail
        return item


class CallBook:
    """The open calls of one turn, so that a stop can say what it found."""

    def __init__(self, note_progress: Callable[[], None] = lambda: None) -> None:
        """``note_progress``: the turn's; called often."""
        self._note_progress = note_progress
        self._lock = threading.Lock()
        self._open: dict[str, Call] = {}
        # Calls that met the stop of the turn by themselves: they may leave before the stop has looked into the book.
        self._stopped: list[Call] = []

    def add(self, call: Call) -> None:
        """Before the call does anything that a stop would have to undo."""
        call.note_progress = self._note_progress
        with self._lock:
            self._open[call.id] = call

    def remove(self, call: Call) -> None:
        """The call has ended, however."""
        turn = call.scope.enclosing(Level.TURN)
        with self._lock:
            if self._open.pop(call.id, None) is not None and turn is not None and turn.is_stopped:
                self._stopped.append(call)
        call.ended.set()

    def snapshot(self) -> list[Call]:
        """The calls that are open now, oldest first, behind those that a stop of the turn has ended."""
        with self._lock:
            return [*self._stopped, *self._open.values()]

    def __len__(self) -> int:
        return len(self._open)
