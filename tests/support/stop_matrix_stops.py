"""The columns of the stop matrix: whatever ends a turn, or a call."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass

from core.clock import alarm_clock
from tests.support.api_client import Run
from tests.support.servers import wait_until
from tests.support.stop_matrix import Expected, Kind, Phase, Stop, World

#: Limits that no test waits for: :func:`bring_forward` makes them due. Their lengths tell them apart.
DEADLINE_MS, LIMIT_MS = 432_100, 543_210


@dataclass(frozen=True)
class Cell:
    """One square of the matrix."""

    kind: Kind
    phase: Phase
    stop: Stop

    @property
    def is_own_limit(self) -> bool:
        """Whether the limit is the call's own, which ends the call and not the turn. It counts while the call runs."""
        return self.stop is LIMIT and self.kind.has_own_limit and self.phase in (Phase.MID, Phase.DEAF)

    @property
    def expected(self) -> Expected:
        """What must be there afterwards."""
        return self.kind.expected[self.phase]

    @property
    def place(self) -> tuple[str, str, str]:
        """Row, phase, column."""
        return self.kind.name, self.phase.value, self.stop.name

    def __str__(self) -> str:
        return "-".join(self.place)


def bring_forward(limit_ms: int) -> None:
    """The one alarm that was set for so long from now, a moment ago, is due at once. The rest is the clock's own work."""
    with alarm_clock._changed:
        seconds, now = limit_ms / 1000, time.monotonic()
        found = [
            entry
            for entry in alarm_clock._due
            if entry[2].action is not None and seconds - 50 < entry[0] - now <= seconds
        ]
        (entry,) = found
        alarm_clock._due[alarm_clock._due.index(entry)] = (now, *entry[1:])
        heapq.heapify(alarm_clock._due)
        alarm_clock._changed.notify()


def _wait_stopped(world: World, run: Run, stop: Callable[[], None]) -> None:
    turn = world.server.main.engine.live_turn(run.id)
    assert turn is not None
    stop()
    wait_until(lambda: turn.scope.is_stopped, "the stop of the turn")


def _cancel(world: World, run: Run) -> None:
    assert run.cancel()["stopped"] is True


def _terminate(world: World, run: Run) -> None:
    assert run.terminate()["stopped"] is True


def _reach_deadline(world: World, run: Run) -> None:
    _wait_stopped(world, run, lambda: bring_forward(DEADLINE_MS))


def _shut_down(world: World, run: Run) -> None:
    _wait_stopped(world, run, world.server.runtime.begin_shutdown)


STOP = Stop("stop", "user", "awaiting_input", _cancel, {})
TERMINATE = Stop("terminate", "user", "cancelled", _terminate, {})
LIMIT = Stop("limit", "deadline", "awaiting_input", _reach_deadline, {"deadline_ms": DEADLINE_MS})
SHUTDOWN = Stop("shutdown", "shutdown", "awaiting_input", _shut_down, {})
STOPS = (STOP, TERMINATE, LIMIT, SHUTDOWN)
