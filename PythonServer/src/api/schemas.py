"""The shapes of requests. An unknown field is an error: it would be a wish that nobody fulfils."""

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from core.plan.plan_spec import PlanSpec
from core.session.run_state import RunState

SessionId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:\-]+$")]
Reason = Annotated[str, Field(max_length=1000)]

#: How the description says that a route needs a token.
BEARER: list[dict[str, list[str]]] = [{"bearer": []}]


def _refuse_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


NotBlank = Annotated[str, AfterValidator(_refuse_blank)]


class _Body(BaseModel):
    # Strict: "5000", true or "yes" where a number or a truth value is meant is a mistake, and not ours to guess at.
    model_config = ConfigDict(extra="forbid", strict=True)


class _Asked(BaseModel):
    """The framework asks for the schema of what is no body with every request: it is made once."""

    @classmethod
    def model_json_schema(cls, *how: Any, **options: Any) -> dict[str, Any]:
        """As pydantic makes it."""
        return super().model_json_schema(*how, **options) if how or options else _plain_schema(cls)


@cache
def _plain_schema(model: type[_Asked]) -> dict[str, Any]:
    return super(_Asked, model).model_json_schema()


class _Query(_Asked):
    model_config = ConfigDict(extra="forbid")


def _example(**fields: Any) -> ConfigDict:
    """What the try-out page fills in; its own filling, a value for every field, would mostly be refused."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class CreateRunBody(_Body):
    """A new run."""

    model_config = _example(input="Compare three ways to store an event log")

    input: NotBlank = Field(min_length=1, description="The user's message")
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
    on_server_lost: Literal["park", "resume"] = Field(
        default="park", description="resume: a turn that a lost server left is taken up again by the next one"
    )
    busy_mode: Literal["queue", "steer", "redirect", "interrupt", "reject"] = Field(
        default="queue", description="What a message without a mode means while a turn is open; reject: 409 run_is_busy"
    )
    deadline_ms: int | None = Field(
        default=None, ge=1, le=7 * 24 * 3600 * 1000, description="Limit of a turn"
    )
    idle_limit_ms: int | None = Field(
        default=None, ge=0, le=7 * 24 * 3600 * 1000,
        description="A turn without progress for so long is stopped; 0: never. By default as the server is set up",
    )  # fmt: skip
    messages: list[Any] | None = Field(
        default=None,
        description="An earlier conversation, in the form of OpenAI's or Anthropic's messages; what is broken is repaired",
    )
    metadata: dict[str, Any] = Field(default_factory=dict)


class CreateRunHeaders(_Asked):
    """What may come with a new run."""

    idempotency_key: str | None = Field(
        default=None, alias="Idempotency-Key", min_length=1, max_length=255,
        description="A repetition with the same key and body gets the first answer",
    )  # fmt: skip


class InputBody(_Body):
    """A message."""

    model_config = _example(text="Only two ways, please")

    text: NotBlank = Field(min_length=1)
    mode: Literal["queue", "steer", "redirect", "interrupt"] | None = Field(
        default=None, description="What it means while a turn is open; by default the run's busy_mode"
    )
    goal_id: str | None = Field(
        default=None, max_length=128, description="Of a steer or redirect: for this goal only; by default for all"
    )
    if_turn: str | None = Field(default=None, max_length=40)
    client_message_id: str | None = Field(default=None, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _check_goal(self) -> Self:
        if self.goal_id is not None and self.mode in ("queue", "interrupt"):
            raise ValueError("goal_id is for a steer or a redirect")
        return self


class CancelBody(_Body):
    """A stop of the turn."""

    model_config = _example(wait_ms=2000)

    reason: Reason | None = None
    if_turn: str | None = Field(default=None, max_length=40, description="Stop this turn only; else 409")
    wait_ms: int = Field(default=0, ge=0, le=30_000, description="Wait for the turn's end")
    inbox: Literal["keep", "return", "drop"] = "keep"
    continue_with: NotBlank | None = Field(
        default=None, min_length=1, description="For a batch run: the prompt with which it goes on after this turn"
    )


class CancelPartBody(_Body):
    """A stop of one goal, or of one tool call."""

    model_config = _example(wait_ms=2000)

    reason: Reason | None = None
    if_turn: str | None = Field(default=None, max_length=40, description="Only if this is the current turn; else 409")
    wait_ms: int = Field(default=0, ge=0, le=30_000, description="Wait until it has ended")


class GoBackBody(_Body):
    """What is done with the newest turn of a parked run."""

    model_config = _example()

    if_turn: str | None = Field(default=None, max_length=40, description="Only if this is the newest turn; else 409")


class MoveMessageBody(_Body):
    """Another place for a message that waits."""

    model_config = _example(position=0)

    position: int = Field(ge=0, description="Among the messages that wait; 0 is the next one, beyond the end the last")


class CompactBody(_Body):
    """A compaction of the history, or the undoing of the newest one."""

    model_config = _example()

    if_turn: str | None = Field(default=None, max_length=40, description="Only if this is the newest turn; else 409")
    undo: bool = Field(default=False, description="Take the newest compaction back; the one before is in force again")


class ResolveBody(_Body):
    """The user's word on a question."""

    model_config = _example(disposition="answered", answer="the second one")

    disposition: Literal["answered", "declined"]
    answer: NotBlank | None = Field(
        default=None, min_length=1, max_length=100_000, description="One of the options, if there are any"
    )
    comment: NotBlank | None = Field(
        default=None, min_length=1, max_length=100_000, description="Further words for the model"
    )


class TerminateBody(_Body):
    """The end of the run."""

    model_config = _example(wait_ms=2000)

    reason: Reason | None = None
    wait_ms: int = Field(default=0, ge=0, le=30_000)


class ImportBody(_Body):
    """The lines of an export; as JSON Lines (Content-Type: application/jsonl) they are the whole body."""

    lines: list[dict[str, Any]]


class ImportQuery(_Query):
    """Under which id; by default that of the export."""

    session_id: SessionId | None = None


class EmptyBody(_Body):
    """An empty JSON object, or no body."""


class RunPath(BaseModel):
    """A run in the path."""

    run_id: str


class MessagePath(RunPath):
    """A message of the run in the path."""

    message_id: str


class GoalPath(RunPath):
    """A goal of the run's current turn in the path."""

    goal_id: str


class CallPath(RunPath):
    """A tool call of the run's current turn in the path."""

    call_id: str


class InterruptPath(RunPath):
    """A question of the run in the path."""

    interrupt_id: str


class SessionPath(BaseModel):
    """A session in the path."""

    session_id: SessionId


class RunsQuery(_Query):
    """Which runs."""

    session_id: SessionId | None = None
    state: RunState | None = None
    cursor: str | None = Field(default=None, pattern=r"^r_[0-9A-Z]{26}$", description="next_cursor of the page before")
    limit: int = Field(default=50, ge=1, le=200)


class InterruptsQuery(_Query):
    """Which questions; by default all."""

    status: Literal["pending", "answered", "declined", "cancelled", "expired"] | None = None


class PlanQuery(_Query):
    """Of which turn; by default the newest."""

    turn_id: str | None = Field(default=None, max_length=40)


class EventsQuery(_Query):
    """Which events; by default all."""

    after: int | None = Field(default=None, ge=0, lt=10**18, description="The id of the last event that you have")


class EventsHeaders(_Asked):
    """What a browser sends by itself when it connects again."""

    last_event_id: str | None = Field(
        default=None, alias="Last-Event-ID", description="The id of the last event that you have; wins over after"
    )
