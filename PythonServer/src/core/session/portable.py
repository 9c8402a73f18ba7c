"""A session as JSON Lines, for another server or for keeping: the shapes of the lines, and how they are written.

The first line is the session, then one a turn, oldest first, then one a waiting message. Deltas of text are not in
it: what a turn said stands in its ``messages``, what it did in ``goals``, ``receipt`` and ``usage``.
"""

from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from sqlalchemy import Connection, RowMapping, select

from core.call import CallKind, Outcome
from core.cancellation import CauseWord
from core.clock import iso
from core.errors import InvalidPlan, InvalidRequest
from core.plan.goal_status import GoalStatus
from core.plan.plan_spec import GoalId, GoalSpec, PlanSpec, ToolSpec, check_plan
from core.session.foreign import MAX_CALL_ID
from core.session.inbox import MAX_WAITING
from core.session.queries import inbox, live_run_of_session, read_event_data, read_plan
from core.session.turns import kind_of
from core.store.tables import turns

FORMAT: Final = 1

#: More in one session is not taken in: their rows are made in one transaction, and everybody's stops wait for it.
MAX_TURNS: Final = 10_000
#: The same for what users said to turns at work.
MAX_TOLD: Final = 10_000


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _utc(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or not MINYEAR < at.year < MAXYEAR:  # an offset of hours leads out of neither end
        raise ValueError(f"{text[:40]!r} is no time in ISO 8601")
    return iso(at.replace(tzinfo=at.tzinfo or UTC).timestamp())


#: A time in ISO 8601, made UTC; without an offset it is taken as UTC.
Time = Annotated[str, AfterValidator(_utc)]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


#: What a user says is never blank, here as where it is sent.
NotBlank = Annotated[str, AfterValidator(_not_blank)]


class CalledFunction(_Line):
    name: str
    arguments: str


class PastToolCall(_Line):
    #: One that was handed in; the repair may have put a number behind it.
    id: str = Field(min_length=1, max_length=MAX_CALL_ID + 20)
    type: Literal["function"]
    function: CalledFunction


class PastMessage(_Line):
    """A message of a turn, or of a history that was handed in."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: list[PastToolCall] | None = None
    tool_call_id: str | None = None
    is_error: Literal[True] | None = None
    stopped: Literal[True] | None = None
    cause: CauseWord | None = None
    failed: Literal[True] | None = None

    @model_validator(mode="after")
    def _has_a_whole_mark(self) -> Self:
        if (self.stopped is None) != (self.cause is None):
            raise ValueError("stopped and cause stand together")
        return self


class PastGoal(_Line):
    """A goal as ``GET …/plan`` shows it."""

    id: GoalId
    title: str
    prompt: str | None
    tool: ToolSpec | None = None
    agent: str | None = None
    depends_on: list[GoalId]
    goals: list["PastGoal"]
    call_id: str | None = None
    delegated: list["PastGoal"] = Field(default_factory=list)
    status: GoalStatus
    cause: CauseWord | None
    error: str | None
    result: str | None
    started_at: Time | None
    ended_at: Time | None


class PastItem(_Line):
    """An item of a receipt."""

    kind: CallKind
    id: str
    goal_id: str | None
    outcome: Outcome
    how: str | None
    took_ms: int | None
    detail: str | None = None


class PastUsage(_Line):
    """The sums of a turn."""

    calls: int = Field(ge=0)
    input_tokens: int | None = Field(ge=0)
    output_tokens: int | None = Field(ge=0)
    source: Literal["observed", "estimated", "mixed"]


class HandedIn(_Line):
    """The history that came with a run, before the turn at which it stands."""

    system: list[str] = Field(default_factory=list)
    messages: list[PastMessage]


class SessionLine(_Line):
    """The first line."""

    type: Literal["session"]
    format: Literal[1]
    session_id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:\-]+$")
    title: str | None = Field(max_length=200)
    created_at: Time


class TurnLine(_Line):
    """One turn. One that was still open is exported without an end, and arrives as stopped."""

    type: Literal["turn"]
    turn_id: str
    run_id: str
    state: Literal["open", "completed", "cancelled", "failed"]
    input: NotBlank
    messages: list[PastMessage]
    cause: CauseWord | None
    reason: str | None
    error: str | None
    receipt: list[PastItem] | None
    usage: PastUsage | None
    goals: list[PastGoal]
    note: str | None
    history: HandedIn | None
    left_out: Literal["rolled_back", "resumed"] | None
    #: The ``turn_id`` of the earlier turn whose finished goals it takes over.
    resumes: str | None = None
    #: The plan that was handed in: there may be no ``goals`` of it yet, and asking again runs it again.
    spec: PlanSpec | None = None
    started_at: Time
    ended_at: Time | None


class MessageLine(_Line):
    """A message that waits."""

    type: Literal["message"]
    text: NotBlank
    held: bool
    created_at: Time


_AnyLine = Annotated[SessionLine | TurnLine | MessageLine, Field(discriminator="type")]
_READER: Final[TypeAdapter[SessionLine | TurnLine | MessageLine]] = TypeAdapter(_AnyLine)


def read_lines(lines: list[dict[str, Any]]) -> tuple[SessionLine, list[TurnLine], list[MessageLine]]:
    """Check the lines. ``InvalidRequest`` names the line, counted from 1, and what is wrong with it."""
    _check_count(lines, "turn", "turns; at most {} are taken in", MAX_TURNS)
    _check_count(lines, "message", "messages wait; at most {} may", MAX_WAITING)
    found = [_read_line(number, line) for number, line in enumerate(lines, start=1)]
    if not found or not isinstance(found[0], SessionLine) or any(isinstance(line, SessionLine) for line in found[1:]):
        raise _refusal("lines.1", "the first line must be the session, and no other")
    _check_resumes(found)
    past = [line for line in found if isinstance(line, TurnLine)]
    waiting = [line for line in found if isinstance(line, MessageLine)]
    told = sum(message.role == "user" for turn in past for message in turn.messages)
    if told > MAX_TOLD:
        raise _refusal("lines", f"{told:,} messages came to turns at work; at most {MAX_TOLD:,} are taken in")
    return found[0], past, waiting


def _check_count(lines: list[dict[str, Any]], kind: str, words: str, most: int) -> None:
    """Before any line is read: a body has room for many."""
    count = sum(line.get("type") == kind for line in lines)
    if count > most:
        raise _refusal("lines", f"{count:,} {words.format(f'{most:,}')}")


def _read_line(number: int, line: dict[str, Any]) -> SessionLine | TurnLine | MessageLine:
    try:
        read = _READER.validate_python(line)
        if isinstance(read, TurnLine):
            _check_plans(number, read)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in ("lines", number, *first["loc"]))
        raise _refusal(where, f"line {number}: {first['msg']}") from None
    return read


def _check_plans(number: int, turn: TurnLine) -> None:
    """What a resume, or asking again, runs."""
    goals = cast(list[GoalSpec], turn.goals)  # it has all that the check looks at
    made = PlanSpec.model_construct(goals=goals) if goals else None
    for name, plan in (("goals", made), ("spec", turn.spec)):
        try:
            if plan is not None:
                check_plan(plan)
        except InvalidPlan as error:
            raise _refusal(f"lines.{number}.{name}", f"line {number}: {error.detail}") from None


def _check_resumes(lines: list[SessionLine | TurnLine | MessageLine]) -> None:
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if isinstance(line, TurnLine):
            if line.resumes is not None and line.resumes not in seen:
                raise _refusal(f"lines.{number}.resumes", f"line {number}: no turn before it has the id in resumes")
            seen.add(line.turn_id)


def _refusal(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, errors=[{"field": field[:200], "message": message[:300]}])


# -- writing -------------------------------------------------------------------------------


def session_lines(connection: Connection, session: RowMapping) -> Iterator[dict[str, Any]]:
    """Every line of a session, as :func:`read_lines` reads them."""
    yield {
        "type": "session", "format": FORMAT, "session_id": session["id"], "title": session["title"],
        "created_at": iso(session["created_at"]),
    }  # fmt: skip
    query = select(turns).where(turns.c.session_id == session["id"]).order_by(turns.c.number)
    for turn in connection.execute(query).mappings().all():
        if kind_of(turn) == "message":  # elsewhere the history is whole, and may be compacted again
            yield _turn_line(connection, turn)
    live = live_run_of_session(connection, session["id"])  # when a run ends, its messages go back to the user
    for message in inbox(connection, live["id"]) if live is not None else ():
        yield {"type": "message", **{name: message[name] for name in ("text", "held", "created_at")}}


def _turn_line(connection: Connection, turn: RowMapping) -> dict[str, Any]:
    end: dict[str, Any] = {}
    if turn["end_seq"] is not None:
        end = read_event_data(connection, turn["run_id"], turn["end_seq"])
    history = None
    if turn["history_seq"] is not None:
        data = read_event_data(connection, turn["run_id"], turn["history_seq"])
        history = {"system": data.get("system", []), "messages": data["messages"]}
    plan = read_plan(connection, turn)
    return {
        "type": "turn", "turn_id": turn["id"], "run_id": turn["run_id"], "state": turn["state"],
        "input": turn["input"], "messages": end.get("messages", []),
        "cause": end.get("cause"), "reason": end.get("reason"), "error": end.get("error"),
        "receipt": end.get("receipt"), "usage": turn["usage"], "goals": plan["goals"], "note": plan["note"],
        "history": history, "left_out": turn["left_out"], "resumes": turn["resumes"], "spec": turn["spec"],
        "started_at": iso(turn["created_at"]),
        "ended_at": iso(turn["ended_at"]) if turn["ended_at"] is not None else None,
    }  # fmt: skip
