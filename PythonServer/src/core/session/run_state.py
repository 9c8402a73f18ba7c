"""The turn state machine: the states of a run and the moves between them. There is no other."""

from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """Where a run stands. The last three are terminal; ``awaiting_input`` is *parked*."""

    #: A message was accepted; its turn has not begun.
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_ANSWER = "awaiting_answer"
    #: A stop was accepted; its turn unwinds.
    STOPPING = "stopping"
    AWAITING_INPUT = "awaiting_input"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


TERMINAL: Final = frozenset({RunState.COMPLETED, RunState.CANCELLED, RunState.FAILED})

#: A turn is open: somebody, or something that was lost with a server, works on it.
OPEN: Final = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.AWAITING_ANSWER, RunState.STOPPING})

_ENDS_OF_A_TURN: Final = frozenset({RunState.QUEUED, RunState.AWAITING_INPUT}) | TERMINAL

#: From each state, where it may go. ``queued`` at the end of a turn: the next message was waiting.
MOVES: Final[dict[RunState, frozenset[RunState]]] = {
    # A turn may end before it was recorded that it began: the store took no writes just then.
    RunState.QUEUED: _ENDS_OF_A_TURN | {RunState.RUNNING, RunState.STOPPING},
    RunState.RUNNING: _ENDS_OF_A_TURN | {RunState.AWAITING_ANSWER, RunState.STOPPING},
    RunState.AWAITING_ANSWER: frozenset({RunState.RUNNING, RunState.STOPPING}),
    RunState.STOPPING: _ENDS_OF_A_TURN,
    RunState.AWAITING_INPUT: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.FAILED: frozenset(),
}


def may_move(old: str, new: RunState) -> bool:
    """Whether the table has that move."""
    return new in MOVES[RunState(old)]
