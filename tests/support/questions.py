"""Questions to the user over HTTP, and models that ask them."""

from __future__ import annotations

import json
from typing import Any

from tests.support.api_client import Api, Run
from tests.support.model_server import script

ASK = "ask_user"


def calls_line(key: str, *calls: tuple[str, dict[str, Any]], **options: Any) -> str:
    """A line by which the model calls these tools at the same time, and then says ``t1 t2``."""
    arguments = [json.dumps(each, separators=(",", ":")) for _, each in calls]
    fields = {"tokens": 2, "interval_ms": 0, "key": key, **options}
    return script("toolcall", name=[name for name, _ in calls], arguments=arguments, **fields)


def ask_line(key: str, *questions: str | dict[str, Any], **options: Any) -> str:
    """A line by which the model asks these at the same time, and then says ``t1 t2``."""
    asked = [{"question": each} if isinstance(each, str) else each for each in questions]
    return calls_line(key, *[(ASK, each) for each in asked], **options)


def ask_goal(goal_id: str, question: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    """A goal that is a question."""
    tool = {"name": ASK, "arguments": {"question": question, **more}}
    return {"id": goal_id, "tool": tool, "depends_on": list(depends_on)}


def wait_questions(run: Run, number: int = 1, after: int = 0) -> list[dict[str, Any]]:
    """The events of the first questions of a run behind ``after``; waits until there are so many."""
    seen: list[dict[str, Any]] = []

    def is_there(event: dict[str, Any]) -> bool:
        if event["type"] == "interruption_pending":
            seen.append(event)
        return len(seen) >= number

    run.events(is_there, after)
    return seen


def wait_question(run: Run, after: int = 0) -> str:
    """The id of the first question behind ``after``."""
    return str(wait_questions(run, after=after)[0]["interrupt_id"])


def interrupts(run: Run, status: str | None = None) -> list[dict[str, Any]]:
    """``GET …/interrupts``."""
    query = f"?status={status}" if status else ""
    return run.api.get(f"{run.path}/interrupts{query}")["interrupts"]  # type: ignore[no-any-return]


def resolve(run: Run, question_id: str, expect: int = 200, api: Api | None = None, **fields: Any) -> dict[str, Any]:
    """``POST …/interrupts/{id}/resolve``."""
    path = f"{run.path}/interrupts/{question_id}/resolve"
    return (api or run.api).post(path, fields, expect=expect)  # type: ignore[no-any-return]


def answer(run: Run, question_id: str, text: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """Answer it."""
    return resolve(run, question_id, expect, disposition="answered", answer=text, **fields)


def decline(run: Run, question_id: str, expect: int = 200, **fields: Any) -> dict[str, Any]:
    """Decline it."""
    return resolve(run, question_id, expect, disposition="declined", **fields)


def results(run: Run) -> list[str]:
    """The results of the tool calls in the transcript."""
    return [message["content"] for message in run.transcript() if message["role"] == "tool"]


def result_events(events: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Content and error mark of each tool result among these."""
    return [(event["content"], event["is_error"]) for event in events if event["type"] == "tool_result"]
