"""The words of the event log, and the shape of one event."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class EventType(StrEnum):
    """Every type that a reader of ``GET /v1/runs/{id}/events`` may meet."""

    RUN_STARTED = "run_started"
    TURN_STARTED = "turn_started"
    PLAN_UPDATED = "plan_updated"
    GOAL_STATUS = "goal_status"
    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_OUTPUT = "tool_output"
    TOOL_RESULT = "tool_result"
    USAGE = "usage"
    RETRY = "retry"
    STOP_REQUESTED = "stop_requested"
    TURN_COMPLETED = "turn_completed"
    TURN_CANCELLED = "turn_cancelled"
    TURN_FAILED = "turn_failed"
    AWAITING_INPUT = "awaiting_input"
    MESSAGE_QUEUED = "message_queued"
    MESSAGE_DELIVERED = "message_delivered"
    MESSAGE_RETURNED = "message_returned"
    MESSAGE_WITHDRAWN = "message_withdrawn"
    MESSAGE_MOVED = "message_moved"
    TURN_RESUMED = "turn_resumed"
    TURN_ROLLED_BACK = "turn_rolled_back"
    INTERRUPTION_PENDING = "interruption_pending"
    INTERRUPTION_RESOLVED = "interruption_resolved"
    COMPACTION = "compaction"
    RUN_COMPLETED = "run_completed"
    RUN_CANCELLED = "run_cancelled"
    RUN_FAILED = "run_failed"


#: A stream of events closes after one of these, and only then.
RUN_ENDS = frozenset({EventType.RUN_COMPLETED, EventType.RUN_CANCELLED, EventType.RUN_FAILED})

#: Exactly one of these ends each turn.
TURN_ENDS = frozenset({EventType.TURN_COMPLETED, EventType.TURN_CANCELLED, EventType.TURN_FAILED})


@dataclass(slots=True)
class Event:
    """One row of the log. ``seq`` is 0 until the writer has committed it."""

    run_id: str
    type: EventType
    data: dict[str, Any] = field(default_factory=dict)
    turn_id: str | None = None
    goal_id: str | None = None
    call_id: str | None = None
    #: Seconds since the epoch.
    at: float = 0.0
    seq: int = 0
