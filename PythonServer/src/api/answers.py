"""The shapes of answers, and which statuses a route has. For the API's description: nothing is checked at run time."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from core.call import CallKind, Outcome
from core.cancellation import CauseWord
from core.plan.goal_status import GoalStatus
from core.plan.plan_spec import ToolSpec
from core.session.run_state import RunState

#: UTC, ISO 8601.
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class RunCreated(BaseModel):
    """The run and its first turn."""

    run_id: str
    session_id: str
    turn_id: str
    state: RunState


class InputAccepted(BaseModel):
    """What became of a message; turn_id is the turn that it has started, goes into, or stops.

    A message that is steered or redirected and is not met by a request to a model any more starts the next turn.
    """

    message_id: str
    turn_id: str | None = None
    disposition: Literal["started", "queued", "steered", "redirected", "interrupted", "duplicate"]
    receipt: list["ReceiptItem"] | None = Field(
        default=None, description="What is known so far of what the interrupt has stopped"
    )


class Resumed(BaseModel):
    """A new turn, which takes over the finished goals of the one that it resumes."""

    run_id: str
    turn_id: str
    resumes: str


class Regenerated(BaseModel):
    """A new turn, which asks the message of the one that it replaces again."""

    run_id: str
    turn_id: str
    replaces: str


class RolledBack(BaseModel):
    """rolled_back is false if that turn had been rolled back before."""

    run_id: str
    turn_id: str
    rolled_back: bool


# -- stops -----------------------------------------------------------------------------------


class ReceiptItem(BaseModel):
    """What a stop found, and what became of it."""

    kind: CallKind
    id: str
    goal_id: str | None
    outcome: Outcome
    how: str | None = Field(description="In words, for people")
    took_ms: int | None = Field(
        description="From the stop until this was known; null for what an earlier server left"
    )
    detail: str | None = None


class StopInbox(BaseModel):
    """What a stop did with the messages that waited: ids, in the order of delivery."""

    policy: Literal["keep", "return", "drop"]
    kept: list[str]
    returned: list[str]
    withdrawn: list[str]


class StopAnswerBody(BaseModel):
    """What a stop came to. receipt is what is known so far, and final if wait_ms saw the turn's end.

    inbox is null if the run was over, or its turn ended while the stop was on its way.
    """

    run_id: str
    turn_id: str | None
    stopped: bool
    parked: bool
    state: RunState
    receipt: list[ReceiptItem]
    inbox: StopInbox | None


class PartStopAnswer(BaseModel):
    """What the stop of one goal, or of one tool call, came to. The turn goes on."""

    run_id: str
    turn_id: str
    goal_id: str | None
    call_id: str | None
    stopped: bool = Field(description="False: it had ended")
    ended: bool = Field(
        description="Whether it is over for the turn; what the receipt calls abandoned may still be at work"
    )
    receipt: list[ReceiptItem]


class StopPlanAnswer(BaseModel):
    """The message is the same whatever happened: stopped tells. The ids and the receipt only if it is true."""

    message: Literal["Plan stopped successfully"]
    stopped: bool
    run_id: str | None = None
    turn_id: str | None = None
    receipt: list[ReceiptItem] | None = None


class Receipt(BaseModel):
    """The final receipt of a stopped turn or, with a goal_id, of a goal or a call in it that was stopped alone."""

    turn_id: str
    goal_id: str | None
    call_id: str | None
    at: Time
    cause: CauseWord
    reason: str | None
    receipt: list[ReceiptItem]
    inbox: StopInbox | None = Field(description="Of a turn; null for a part of one, and where it is not known")


class Receipts(BaseModel):
    """Oldest first."""

    receipts: list[Receipt]


# -- runs ------------------------------------------------------------------------------------


class UsageSums(BaseModel):
    """Tokens of the turns that have ended; null where no call's number is known."""

    calls: int
    input_tokens: int | None
    output_tokens: int | None
    source: Literal["observed", "estimated", "mixed"]


class RunView(BaseModel):
    """One run. title is its session's, if the model made one."""

    run_id: str
    session_id: str
    title: str | None
    turn_id: str | None
    state: RunState
    interactive: bool
    agent: str
    metadata: dict[str, Any]
    created_at: Time
    ended_at: Time | None


class OneRun(RunView):
    """One run, how far its log goes, and what its turns used."""

    last_seq: int
    usage: UsageSums | None


class RunsPage(BaseModel):
    """Newest first; next_cursor is null on the last page."""

    runs: list[RunView]
    next_cursor: str | None


class GoalView(BaseModel):
    """A goal with the goals inside it."""

    id: str
    title: str
    prompt: str | None
    tool: ToolSpec | None
    agent: str | None
    depends_on: list[str]
    goals: list["GoalView"]
    call_id: str | None = Field(default=None, description="The delegate call that it works for; null in the turn's plan")
    delegated: list["GoalView"] = Field(default_factory=list, description="What its delegate calls have started")
    status: GoalStatus
    cause: CauseWord | None = Field(description="Why it is CANCELLED")
    error: str | None = Field(description="Why it is FAILED")
    result: str | None = Field(description="What it said, once it is COMPLETED")
    started_at: Time | None
    ended_at: Time | None


class PlanView(BaseModel):
    """The plan of a turn; goals is empty before there is one."""

    run_id: str
    turn_id: str
    goals: list[GoalView]
    note: str | None


class CalledFunction(BaseModel):
    """arguments is JSON text."""

    name: str
    arguments: str


class TranscriptToolCall(BaseModel):
    """A tool call of the model."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class TranscriptMessage(BaseModel):
    """A message; the members behind turn_id only where they apply. turn_id is null in what was handed in."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    turn_id: str | None
    tool_calls: list[TranscriptToolCall] | None = None
    tool_call_id: str | None = None
    is_error: Literal[True] | None = None
    stopped: Literal[True] | None = None
    cause: CauseWord | None = None
    failed: Literal[True] | None = None


class Transcript(BaseModel):
    """What was said in the run's session, oldest first."""

    run_id: str
    session_id: str
    messages: list[TranscriptMessage]


class Imported(BaseModel):
    """The session, and the run in which it goes on."""

    session_id: str
    run_id: str
    turns: int
    messages: int


# -- health ----------------------------------------------------------------------------------


class Well(BaseModel):
    """All is well."""

    status: Literal["ok"]


class NotReady(BaseModel):
    """It cannot serve now."""

    status: Literal["unavailable"]
    reason: str


# -- errors, and what is no JSON -------------------------------------------------------------


class Problem(BaseModel):
    """RFC 9457.

    Some have further members: cause, errors, field, receipt, run_id, session_id, settled, state, stopped, turn_id.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str


Declared = dict[str | int, Any]

_CODES: Final = {
    400: "bad_request, invalid_json",
    401: "unauthenticated",
    403: "insufficient_scope",
    404: "not_found",
    409: "session_is_busy, run_is_over, turn_is_over, not_interactive, run_is_busy, turn_not_stopped, session_exists, "
    "message_is_settled, redirect_limit, question_is_settled",
    410: "question_is_expired",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "invalid_request, invalid_plan, idempotency_key_reused",
    429: "queue_full",
    500: "internal_error",
    503: "store_unavailable, shutting_down, too_many_streams, turn_is_coming_back, key_server_unreachable",
}


def _problems(*statuses: int) -> Declared:
    return {status: _answer("application/problem+json", _ref("Problem"), _CODES[status]) for status in statuses}


def _answer(media_type: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


#: Of a route that takes nothing.
NO_PROBLEMS: Final = _problems(500)
#: Of a route that reads: ``LIST_PROBLEMS`` without, ``READ_PROBLEMS`` with the id of a run.
LIST_PROBLEMS: Final = _problems(401, 403, 422, 500, 503)
READ_PROBLEMS: Final = LIST_PROBLEMS | _problems(404)
#: Of the route that withdraws a message: it has no body.
WITHDRAW_PROBLEMS: Final = READ_PROBLEMS | _problems(409)
#: Of a route with a body.
WRITE_PROBLEMS: Final = READ_PROBLEMS | _problems(400, 409, 413, 415)
#: Of the route that answers a question.
RESOLVE_PROBLEMS: Final = WRITE_PROBLEMS | _problems(410)
_UNRECORDED: Final[Declared] = {
    500: _answer(
        "application/problem+json", _ref("Problem"),
        "internal_error, or stop_not_recorded: stopped, and the receipt is there, but the store did not take it",
    )
}  # fmt: skip
STOP_PROBLEMS: Final = WRITE_PROBLEMS | _UNRECORDED
#: Of the route that takes a message, which may interrupt a turn.
INPUT_PROBLEMS: Final = STOP_PROBLEMS | _problems(429)
#: Of the routes that never refuse a stop.
STOP_PLAN_PROBLEMS: Final = _problems(400, 401, 413, 415, 422, 503) | _UNRECORDED
STOP_SESSION_PROBLEMS: Final = STOP_PLAN_PROBLEMS | _problems(404)

TEXT: Final = _answer("text/plain", {"type": "string"}, "The text format of Prometheus")
JSON_LINES: Final = _answer("application/jsonl", {"type": "string"}, "The session, its turns and its waiting messages")
EVENT_STREAM: Final = _answer("text/event-stream", {"type": "string"}, "The events, as docs/events.md describes them")


def created_or_streamed() -> dict[str, Any]:
    """201 of ``POST /v1/runs``: what was made, or its events."""
    schema = RunCreated.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs")
    answer = _answer("application/json", schema, "The run; or its events, with Accept: text/event-stream")
    answer["content"] |= EVENT_STREAM["content"]
    return answer
