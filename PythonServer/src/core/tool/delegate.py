"""The delegate tool: sub-agents work on a plan of their own, and what they come to is the call's result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from core.call import CallKind, Outcome
from core.tool.output import SHOWN_BYTES, shorten
from core.tool.tool import Delegated, Stops, Tool, ToolResult, ToolRun

#: The least that is shown of each goal's text, however many there are.
_LEAST_BYTES: Final = 1024

_TEXT: Final = {"type": "string", "minLength": 1}


class Delegate(Tool):
    """Runs a nested plan. It is stopped like any plan: a stop reaches every goal, also one that is born during it.

    It holds no place of CALL_THREADS while its goals work.
    """

    name = "delegate"
    description = (
        "Give parts of the work to sub-agents, who work at the same time and know nothing but the prompt that you give "
        "them. Returns what became of each goal as JSON."
    )
    kind = CallKind.SUB_RUN
    stops = Stops.IS_ASKED
    #: A plan is over 1.8 s after its stop, whatever its goals do.
    ends_within_s = 2.5

    def __init__(self, max_depth: int, max_goals: int, agents: Sequence[str] = ()) -> None:
        """``max_goals`` is for a turn in all; ``agents``: those that the model may name, if it may name any."""
        self._max_depth = max_depth
        self._max_goals = max_goals
        goal: dict[str, Any] = {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$", "description": "short, unique here"},
                "title": {"type": "string"},
                "prompt": _TEXT | {"description": "all that the sub-agent is told"},
                "depends_on": {
                    "type": "array", "items": {"type": "string"}, "description": "ids of goals whose results it needs"
                },
            },
            "required": ["id", "prompt"],
            "additionalProperties": False,
        }  # fmt: skip
        if len(agents) > 1:
            who = {"enum": list(agents), "description": "who works on it; by default an agent like you"}
            goal["properties"]["agent"] = who
        self.parameters: dict[str, Any] = {
            "type": "object",
            "properties": {"goals": {"type": "array", "minItems": 1, "maxItems": max_goals, "items": goal}},
            "required": ["goals"],
            "additionalProperties": False,
        }

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """``content`` is ``{"goals": [{id, status, result? | partial?, cause?, error?}]}``.

        An error result if no goal was completed. A stop returns what there is so far.
        """
        goals = run.delegate(arguments["goals"], self._max_depth, self._max_goals)
        if run.scope.is_stopped:
            run.settle(Outcome.CANCELLED, "its goals were stopped")
        room = max(_LEAST_BYTES, SHOWN_BYTES // len(goals))
        content = json.dumps({"goals": [_shown(goal, room) for goal in goals]}, ensure_ascii=False)
        return ToolResult(content, is_error=not any(goal.status == "COMPLETED" for goal in goals))


def _shown(goal: Delegated, room: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": goal.name, "status": goal.status}
    if goal.text:
        shown["result" if goal.status == "COMPLETED" else "partial"] = shorten(goal.text, room)
    if goal.cause is not None:
        shown["cause"] = goal.cause
    if goal.error is not None:
        shown["error"] = goal.error
    return shown
