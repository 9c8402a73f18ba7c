"""The ask_user tool: a question to the user, whose answer is the call's result."""

from __future__ import annotations

from typing import Any, Final

from core.call import CallKind
from core.tool.tool import Answered, Stops, Tool, ToolFailed, ToolResult, ToolRun

#: Milliseconds that a question may wait at most, if it is to expire: a week.
MAX_TIMEOUT_MS: Final = 7 * 24 * 3600 * 1000

MAX_OPTIONS: Final = 20

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "maxLength": 10_000},
        "options": {
            "type": "array", "minItems": 1, "maxItems": MAX_OPTIONS,
            "items": {"type": "string", "minLength": 1, "maxLength": 1000},
            "description": "the possible answers, if there are only these",
        },
        "timeout_ms": {
            "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS,
            "description": "after so many milliseconds the question expires; by default it never does",
        },
    },
    "required": ["question"],
    "additionalProperties": False,
}  # fmt: skip


class AskUser(Tool):
    """Asks, and waits for the answer. The wait holds no place of CALL_THREADS, and no general limit ends it.

    It survives a restart of the server: the question stays, and the turn goes on with its answer.
    """

    name = "ask_user"
    description = (
        "Ask the user a question and wait for the answer. Use it only for what you cannot find out or decide yourself. "
        "The user may choose to skip it."
    )
    kind = CallKind.QUESTION
    stops = Stops.IS_ASKED
    parameters = _PARAMETERS

    def run(self, arguments: dict[str, Any], run: ToolRun) -> ToolResult:
        """``content`` is the answer, or says that there is none. An error result if the question expired."""
        question = arguments["question"]
        if not question.strip():
            raise ToolFailed("the question is blank")
        options = arguments.get("options")
        timeout_ms = arguments.get("timeout_ms")
        # "integer" takes 5.0 as well.
        return result_of(run.ask(question, options, None if timeout_ms is None else int(timeout_ms)))


def result_of(answered: Answered) -> ToolResult:
    """What the model reads of what became of its question."""
    if answered.disposition == "expired":
        return ToolResult("nobody answered in time: the question has expired", is_error=True)
    said = answered.answer if answered.answer is not None else "the user chose to skip this question"
    return ToolResult(f"{said}\n\nThe user's comment: {answered.comment}" if answered.comment else said)
