"""The shapes of requests and answers. An unknown field is an error: it would be a wish that nobody fulfils."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.plan.plan_spec import PlanSpec
from core.session.run_state import RunState

SessionId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:\-]+$")]
Reason = Annotated[str, Field(max_length=1000)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CreateRunBody(_Body):
    """``POST /v1/runs``."""

    input: str = Field(min_length=1, description="The user's message")
    session_id: SessionId | None = Field(default=None, description="Your own id, or a session of before")
    agent: str = "default"
    plan: PlanSpec | None = Field(default=None, description="The plan of the first turn")
    planning: Literal["auto", "none"] = Field(
        default="auto", description="none: one goal, the message itself"
    )
    interactive: bool = Field(default=True, description="Parks for input; a batch run ends with its turn")
    on_disconnect: Literal["continue", "stop"] = Field(
        default="continue", description="stop: with an event-stream answer, hanging up stops the turn"
    )
    on_server_lost: Literal["park"] = "park"
    busy_mode: Literal["queue"] = "queue"
    deadline_ms: int | None = Field(
        default=None, ge=1, le=7 * 24 * 3600 * 1000, description="Limit of a turn"
    )
    metadata: dict[str, Any] = Field(default_factory=dict)


class InputBody(_Body):
    """``POST /v1/runs/{id}/input``."""

    text: str = Field(min_length=1)
    mode: Literal["queue"] = "queue"
    if_turn: str | None = Field(default=None, max_length=40)
    client_message_id: str | None = Field(default=None, min_length=1, max_length=128)


class CancelBody(_Body):
    """``POST /v1/runs/{id}/cancel``."""

    reason: Reason | None = None
    if_turn: str | None = Field(default=None, max_length=40, description="Stop this turn only; else 409")
    wait_ms: int = Field(default=0, ge=0, le=30_000, description="Wait for the turn's end")
    inbox: Literal["keep", "return", "drop"] = "keep"


class TerminateBody(_Body):
    """``POST /v1/runs/{id}/terminate``."""

    reason: Reason | None = None
    wait_ms: int = Field(default=0, ge=0, le=30_000)


class EmptyBody(_Body):
    """``POST /stopplan``: an empty JSON object."""


class RunPath(BaseModel):
    """A run in the path."""

    run_id: str = Field(min_length=1, max_length=128)


class SessionPath(BaseModel):
    """A session in the path."""

    session_id: SessionId


class RunsQuery(_Body):
    """``GET /v1/runs``."""

    session_id: SessionId | None = None
    state: RunState | None = None
    cursor: str | None = Field(default=None, max_length=40)
    limit: int = Field(default=50, ge=1, le=200)


class PlanQuery(_Body):
    """``GET /v1/runs/{id}/plan``."""

    turn_id: str | None = Field(default=None, max_length=40)


class EventsQuery(_Body):
    """``GET /v1/runs/{id}/events``."""

    after: int | None = Field(default=None, ge=0, description="The id of the last event that you have")


# -- answers -----------------------------------------------------------------------------


class RunCreated(BaseModel):
    """201."""

    run_id: str
    session_id: str
    turn_id: str
    state: RunState


class ReceiptItem(BaseModel):
    """What a stop found, and what became of it."""

    kind: Literal["model_call", "tool", "process", "question", "wait", "goal", "sub_run"]
    id: str
    goal_id: str | None
    outcome: Literal["cancelled", "aborted", "killed", "already_done", "not_started", "abandoned", "failed"]
    how: str | None
    took_ms: int | None = Field(description="From the stop until this was known")
    detail: str | None = None


class StopAnswerBody(BaseModel):
    """What a stop came to."""

    run_id: str
    turn_id: str | None
    stopped: bool
    parked: bool
    state: RunState
    receipt: list[ReceiptItem]


class StopPlanAnswer(BaseModel):
    """The answer of ``/stopplan``; the ids and the receipt only if something was stopped."""

    message: Literal["Plan stopped successfully"]
    stopped: bool
    run_id: str | None = None
    turn_id: str | None = None
    receipt: list[ReceiptItem] | None = None


class InputAccepted(BaseModel):
    """202."""

    message_id: str
    turn_id: str | None = None
    disposition: Literal["started", "queued", "duplicate"]


class RunView(BaseModel):
    """One run."""

    run_id: str
    session_id: str
    turn_id: str | None
    state: RunState
    interactive: bool
    agent: str
    metadata: dict[str, Any]
    created_at: str
    ended_at: str | None


class OneRun(RunView):
    """One run, and how far its log goes."""

    last_seq: int


class RunsPage(BaseModel):
    """A page of runs, newest first."""

    runs: list[RunView]
    next_cursor: str | None


class Problem(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str


#: How the description shows a protected route: it needs a token, and what it answers besides are problem documents.
PROTECTED: dict[str, Any] = {
    "abp_security": [{"bearer": []}],
    "abp_responses": dict.fromkeys((400, 401, 403, 404, 409, 413, 422, 503), Problem),
}
