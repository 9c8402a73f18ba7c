"""The states of a goal and the moves between them."""

from enum import StrEnum
from typing import Final


class GoalStatus(StrEnum):
    """Where a goal stands. The last three are final."""

    NOT_STARTED = "NOT_STARTED"
    #: A leaf at work: it owns model calls and tools.
    IN_PROGRESS = "IN_PROGRESS"
    #: An inner goal whose children are at work; it owns nothing that could be asked to stop.
    CHILDREN_IN_PROGRESS = "CHILDREN_IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


FINAL: Final = frozenset({GoalStatus.COMPLETED, GoalStatus.FAILED, GoalStatus.CANCELLED})

#: From each state, where it may go. What is not here does not happen; a final state stands.
MOVES: Final[dict[GoalStatus, frozenset[GoalStatus]]] = {
    GoalStatus.NOT_STARTED: frozenset(
        {GoalStatus.IN_PROGRESS, GoalStatus.CHILDREN_IN_PROGRESS, GoalStatus.CANCELLED}
    ),
    GoalStatus.IN_PROGRESS: FINAL,
    GoalStatus.CHILDREN_IN_PROGRESS: FINAL,
    GoalStatus.COMPLETED: frozenset(),
    GoalStatus.FAILED: frozenset(),
    GoalStatus.CANCELLED: frozenset(),
}
