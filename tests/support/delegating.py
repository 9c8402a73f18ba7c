"""Lines by which the stand-in model delegates to sub-agents, and what is seen of them."""

import json
from typing import Any

from tests.support.api_client import Run
from tests.support.model_server import script

#: Options of a sub-agent's line that streams for longer than any test.
ENDLESS: dict[str, Any] = {"tokens": 4000, "interval_ms": 20}


def sub_goal(goal_id: str, prompt: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    """A goal for a sub-agent."""
    return {"id": goal_id, "prompt": prompt, **({"depends_on": list(depends_on)} if depends_on else {}), **fields}


def delegate_line(key: str, *goals: dict[str, Any], **options: Any) -> str:
    """A line by which the model delegates these goals, and then says ``t1 t2``."""
    return script("toolcall", name="delegate", arguments={"goals": list(goals)}, tokens=2, key=key, **options)


def delegated(run: Run, goal_id: str = "answer") -> dict[str, dict[str, Any]]:
    """Title -> goal of a sub-agent that works for a goal of the plan."""
    return {goal["title"]: goal for goal in run.goals()[goal_id]["delegated"]}


def result_of(run: Run) -> dict[str, Any]:
    """What the one delegate call of the session came to."""
    (message,) = [each for each in run.transcript() if each["role"] == "tool"]
    return json.loads(message["content"].partition("\n")[2] or message["content"])  # type: ignore[no-any-return]
