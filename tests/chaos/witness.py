"""What clients were told. Only what was received whole counts: an answer that a kill cut off promises nothing."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

RUN_ENDS = ("run_completed", "run_cancelled", "run_failed")
TURN_ENDS = ("turn_completed", "turn_cancelled", "turn_failed")


@dataclass(slots=True, eq=False)
class Start:
    """A ``POST /v1/runs``, to be repeated word for word if its answer was lost."""

    key: str
    body: dict[str, Any]


@dataclass(slots=True, eq=False)
class Message:
    """A ``POST …/input``; ``message_id`` is None while its answer has not come."""

    text: str
    client_message_id: str
    message_id: str | None = None


@dataclass(slots=True, eq=False)
class Witness:
    """All that its user was told about one run."""

    run_id: str
    session_id: str
    user: str
    start: Start
    first_turn: str
    messages: list[Message] = field(default_factory=list)
    #: Turns whose stop was answered with ``stopped: true``.
    stopped_turns: set[str] = field(default_factory=set)
    #: A terminate was answered with 200.
    is_terminated: bool = False
    #: Seen, or told, that the run is over: nothing is to be sent any more.
    is_over: bool = False
    #: seq -> the ``data:`` of its frame, as readers saw it.
    seen: dict[int, bytes] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Of its routes."""
        return f"/v1/runs/{self.run_id}"

    @property
    def is_batch(self) -> bool:
        """Whether it ends with its turn."""
        return not self.start.body["interactive"]

    @property
    def resumes(self) -> bool:
        """Whether the next server takes a lost turn up again."""
        return self.start.body.get("on_server_lost") == "resume"

    def see(self, seq: int, data: bytes) -> str | None:
        """Note an event that a reader got; what is wrong with it, if anything."""
        known = self.seen.setdefault(seq, data)
        if known != data:
            return f"{self.run_id}: event {seq} was {known!r} and became {data!r}"
        if json.loads(data)["type"] in RUN_ENDS:
            self.is_over = True
        return None


class Kill:
    """What the load has to know of the end of its server."""

    def __init__(self) -> None:
        #: It may be gone from now on, and with it any connection.
        self.is_due = threading.Event()
        #: It is gone.
        self.is_done = threading.Event()


class Ledger:
    """Counts, and what was found wrong. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._told = 0

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[name] += number

    def accuse(self, violation: str) -> None:
        """Something that must not be."""
        with self._lock:
            self.violations.append(violation)

    def fresh(self) -> list[str]:
        """The violations since the last time that this was asked."""
        with self._lock:
            new = self.violations[self._told :]
            self._told = len(self.violations)
        return new
