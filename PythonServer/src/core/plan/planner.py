"""The planner: a model is asked for a plan through a tool call; whatever it answers, there is a plan."""

from __future__ import annotations

import json
from typing import Any, Final

from core.errors import InvalidPlan
from core.plan.plan_spec import PlanSpec, check_plan, spec_from_model
from core.surrogates import whole_text

#: A model that wants more is not planning.
MAX_PLANNED_GOALS: Final = 32

TOOL_NAME: Final = "make_plan"

INSTRUCTIONS: Final = (
    "You split a user's request into goals that can be worked on in parallel. Call make_plan once. "
    "Give each goal a short id, a title, and a prompt that can be answered on its own; name in depends_on the goals "
    "whose results it needs. Use as few goals as the request needs: a greeting or a simple question is one goal."
)

TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Hand in the plan for the user's request.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["goals"],
            "properties": {
                "goals": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_PLANNED_GOALS,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["id", "title", "prompt", "depends_on"],
                        "properties": {
                            "id": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"},
                            "title": {"type": "string"},
                            "prompt": {"type": "string"},
                            "depends_on": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                }
            },
        },
    },
}


def read_plan(arguments: str | None, message: str) -> tuple[PlanSpec, str | None]:
    """The model's plan, or one goal with the message as its prompt and a remark that says why."""
    try:
        return _parse(arguments), None
    except InvalidPlan as error:
        return PlanSpec.single(message), f"Working on this as one goal: {error.detail}."


def _parse(arguments: str | None) -> PlanSpec:
    if arguments is None:
        raise InvalidPlan("the model did not hand in a plan")
    try:
        data = whole_json(json.loads(arguments))
    except (ValueError, RecursionError):
        raise InvalidPlan("the model's plan is not JSON") from None
    spec = spec_from_model(data)
    check_plan(spec, MAX_PLANNED_GOALS, agents={})  # the tool offers no agents, so each one named is made up
    return spec


def whole_json(value: Any) -> Any:
    """The value with texts that can be kept: an escape in JSON may stand for a character that cannot."""
    if isinstance(value, dict):
        return {whole_text(name): whole_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole_json(each) for each in value]
    return whole_text(value) if isinstance(value, str) else value
