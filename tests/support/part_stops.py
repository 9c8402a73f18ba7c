"""Stops of one goal or one tool call over HTTP, and what is seen of them."""

from __future__ import annotations

from typing import Any

from tests.support.api_client import Run
from tests.support.plans import all_events


def cancel_goal(run: Run, goal_id: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """``POST …/goals/{goal_id}/cancel``."""
    return run.api.post(f"{run.path}/goals/{goal_id}/cancel", fields, expect=expect)  # type: ignore[no-any-return]


def cancel_call(run: Run, call_id: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """``POST …/calls/{call_id}/cancel``."""
    return run.api.post(f"{run.path}/calls/{call_id}/cancel", fields, expect=expect)  # type: ignore[no-any-return]


def outcomes(receipt: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kind and outcome of each item."""
    return [(item["kind"], item["outcome"]) for item in receipt]


def part_stops(run: Run) -> list[tuple[str | None, str | None]]:
    """Goal and call of each stop in the log of a run that waits or is over; of a turn's stop, neither."""
    asked = [event for event in all_events(run) if event["type"] == "stop_requested"]
    return [(event.get("goal_id"), event.get("call_id")) for event in asked]


def statuses(run: Run) -> dict[str, tuple[str, str | None]]:
    """Id -> status and cause of each goal of the plan."""
    return {name: (goal["status"], goal["cause"]) for name, goal in run.goals().items()}


def events_now(run: Run, kind: str, number: int = 1) -> list[dict[str, Any]]:
    """The first events of a type in a run that goes on; waits until there are so many."""
    seen: list[dict[str, Any]] = []

    def is_there(event: dict[str, Any]) -> bool:
        if event["type"] == kind:
            seen.append(event)
        return len(seen) >= number

    run.events(is_there)
    return seen


def end_of(run: Run) -> dict[str, Any]:
    """The event that ended the first turn."""
    return next(
        event for event in all_events(run) if event["type"] in ("turn_completed", "turn_failed", "turn_cancelled")
    )
