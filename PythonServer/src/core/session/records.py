"""What the session layer hands up and down: plain values, no behaviour."""

from dataclasses import dataclass, field
from typing import Any

from core.cancellation import Cause, CauseWord
from core.events import Event


@dataclass(frozen=True, slots=True)
class NewRun:
    """A validated request to start a run."""

    input: str
    session_id: str
    interactive: bool = True
    agent: str = "default"
    #: ``auto`` or ``none``.
    planning: str = "auto"
    #: A handed-in plan (``PlanSpec`` as plain JSON) for the first turn.
    plan: dict[str, Any] | None = None
    #: What a message without a mode means while a turn is open: a mode, or ``reject``.
    busy_mode: str = "queue"
    #: Limit of each turn.
    deadline_ms: int | None = None
    #: A turn without progress for so long is stopped; 0: never, None: as the server does.
    idle_limit_ms: int | None = None
    #: What becomes of a turn that a lost server left: ``park`` or ``resume``.
    on_server_lost: str = "park"
    #: An earlier conversation, from elsewhere: ``{"system": [...], "messages": [...]}``, repaired; or None.
    history: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    body_hash: str = ""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A validated message to a run."""

    text: str
    #: ``queue``, ``steer``, ``redirect`` or ``interrupt``; None: as the run's ``busy_mode`` says.
    mode: str | None = None
    #: Of a steer or redirect: the goal that it is for; None: all.
    goal_id: str | None = None
    if_turn: str | None = None
    client_message_id: str | None = None


@dataclass(frozen=True, slots=True)
class TurnStart:
    """A turn that was accepted and is to be run."""

    run_id: str
    session_id: str
    turn_id: str
    input: str
    interactive: bool
    options: dict[str, Any]
    spec: dict[str, Any] | None = None
    #: The turn whose finished goals this one takes over.
    resumes: str | None = None
    #: ``message``, or ``compaction``: then it compacts the history and does nothing else.
    kind: str = "message"
    #: It was waiting for answers when its server went, and is taken up where it was.
    is_revived: bool = False


@dataclass(frozen=True, slots=True)
class StopOrder:
    """An accepted wish to stop."""

    cause: Cause
    #: Whether the run ends with it (terminate), or only the turn.
    ends_run: bool = False
    #: What becomes of queued messages: ``keep``, ``return`` or ``drop``.
    inbox: str = "keep"
    #: For a batch run: the prompt with which it goes on after this turn.
    continue_with: str | None = None
    #: Once recorded, what became of the messages that waited; see :func:`core.session.inbox.hold`.
    fates: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """For the turn's row."""
        return {
            "cause": self.cause.word, "reason": self.cause.reason, "ends_run": self.ends_run, "inbox": self.fates
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any]) -> "StopOrder":
        """From the turn's row."""
        cause = Cause(CauseWord(data["cause"]), data["reason"])
        return StopOrder(cause, data["ends_run"], fates=data.get("inbox"))


@dataclass(frozen=True, slots=True)
class StopRecord:
    """What came of recording a stop."""

    #: False: there was no turn to stop.
    is_stopped: bool
    #: What became of the messages that waited; see :func:`core.session.inbox.hold`. None: not known.
    fates: dict[str, Any] | None
    #: What was decided with it; see :meth:`core.session.turn.Turn.stop`.
    beside: Any = None


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended, as the code that ran it knows."""

    #: ``completed``, ``cancelled`` or ``failed``.
    state: str
    #: What the turn adds to the session's history after the user's message.
    messages: list[dict[str, Any]]
    #: The stop that ended it, for ``cancelled``.
    order: StopOrder | None = None
    receipt: list[dict[str, Any]] | None = None
    error: str | None = None
    #: The plan with its final statuses.
    plan: dict[str, Any] | None = None
    #: Events that give a result to each tool call that has none.
    closing: list[Event] = field(default_factory=list)
    #: The sums of the turn's calls, or None; see :mod:`core.session.usage`.
    usage: dict[str, Any] | None = None
    #: A title for the session, made from this turn.
    title: str | None = None
    #: The stops of single goals and tool calls: ``{goal_id, call_id, at, cause, reason, receipt}`` each.
    parts: list[dict[str, Any]] = field(default_factory=list)
