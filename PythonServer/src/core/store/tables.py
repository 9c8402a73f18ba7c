"""The tables. The log is the truth about what happened; the rows beside it say what may happen next."""

from typing import Final

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata: Final = MetaData()

# Written out, here and in the queries: an index over some of the rows serves its own condition, and no parameter.
_LIVE: Final = "state NOT IN ('completed', 'cancelled', 'failed')"
_OPEN: Final = "state IN ('queued', 'running', 'awaiting_answer', 'stopping')"
#: Of a run that is not over; of one whose turn is open.
IS_LIVE, IS_OPEN = text(f"runs.{_LIVE}"), text(f"runs.{_OPEN}")

sessions: Final = Table(
    "sessions",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("tenant", String(255), nullable=False),
    Column("owner", String(255), nullable=False),
    #: Made by the model from the first turn, if titles are on.
    Column("title", String(200)),
    Column("created_at", Float, nullable=False),
)

runs: Final = Table(
    "runs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("tenant", String(255), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("interactive", Boolean, nullable=False),
    Column("state", String(20), nullable=False),
    #: The open turn, or the last one.
    Column("turn_id", String(40)),
    #: {agent, planning, deadline_ms, idle_limit_ms, on_server_lost, metadata} as asked for at the start.
    Column("options", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("ix_runs_owner", "tenant", "owner", "id"),
    Index("ix_runs_session", "session_id", "id"),
    # One live run a session, whoever races.
    Index(
        "ux_runs_live_session",
        "session_id",
        unique=True,
        sqlite_where=text(_LIVE),
        postgresql_where=text(_LIVE),
    ),
    # For the stop that names no run, however many are parked or over.
    Index("ix_runs_open_owner", "tenant", "owner", sqlite_where=text(_OPEN), postgresql_where=text(_OPEN)),
)


turns: Final = Table(
    "turns",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("session_id", String(128), nullable=False),
    #: Position in the session, from 1.
    Column("number", Integer, nullable=False),
    #: ``open``, or how it ended: ``completed``, ``cancelled``, ``failed``.
    Column("state", String(20), nullable=False),
    Column("input", Text, nullable=False),
    #: The plan that was handed in, or None.
    Column("spec", JSON),
    #: The accepted stop: {cause, reason, ends_run, inbox}, or None.
    Column("stop", JSON),
    #: Where in the log its newest ``plan_updated`` and its terminal event are.
    Column("plan_seq", Integer),
    Column("end_seq", Integer),
    #: Where its run's ``run_started`` is, if that holds the history that was handed in before this turn.
    Column("history_seq", Integer),
    #: Why it is no part of the transcript: ``rolled_back``, ``resumed`` by a later turn, or a ``compaction`` from the
    #: start; None: it is one.
    Column("left_out", String(20)),
    #: The turn whose finished goals this one takes over.
    Column("resumes", String(40)),
    #: The sums of its calls, at its end; see :mod:`core.session.usage`.
    Column("usage", JSON),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    UniqueConstraint("session_id", "number"),
    Index("ix_turns_run", "run_id"),
)

events: Final = Table(
    "events",
    metadata,
    Column("run_id", String(40), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("type", String(40), nullable=False),
    #: Seconds since the epoch.
    Column("at", Float, nullable=False),
    Column("turn_id", String(40)),
    Column("goal_id", String(128)),
    Column("call_id", String(40)),
    #: The rest of the event as a JSON object; text, so that it is encoded once.
    Column("data", Text, nullable=False),
    sqlite_with_rowid=False,
)

messages: Final = Table(
    "messages",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("session_id", String(128), nullable=False),
    Column("client_message_id", String(128)),
    #: Order within the run.
    Column("number", Integer, nullable=False),
    Column("text", Text, nullable=False),
    #: ``queued``; ``held`` (kept at a stop, waits for the next message); ``delivered``, ``returned``, ``withdrawn``.
    Column("state", String(20), nullable=False),
    #: The turn that it was delivered to.
    Column("turn_id", String(40)),
    #: How it was to go in: ``queue``, ``steer``, ``redirect`` or ``interrupt``.
    Column("mode", String(20), nullable=False, server_default="queue"),
    #: The goal that it is for; None: all.
    Column("goal_id", String(128)),
    #: Its place among the messages of that turn; 0 is the one that started it.
    Column("position", Integer),
    Column("created_at", Float, nullable=False),
    #: When it got its fate.
    Column("settled_at", Float),
    UniqueConstraint("run_id", "number"),
    UniqueConstraint("run_id", "client_message_id"),
)

questions: Final = Table(
    "questions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("turn_id", String(40), nullable=False),
    Column("goal_id", String(128)),
    #: The tool call that asks.
    Column("call_id", String(40), nullable=False),
    Column("question", Text, nullable=False),
    #: List of texts to choose from; None: any text.
    Column("options", JSON),
    #: ``pending``; ``answered``, ``declined``, ``cancelled`` (by a stop), ``expired``.
    Column("state", String(20), nullable=False),
    Column("answer", Text),
    Column("comment", Text),
    #: Why it was cancelled.
    Column("cause", String(20)),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("settled_at", Float),
    Index("ix_questions_run", "run_id", "id"),
)

#: What stands for a part of a session's history in requests. The newest that is not undone is in force.
compactions: Final = Table(
    "compactions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("session_id", String(128), nullable=False),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    #: The messages ``[first:last]`` of the whole history that the summary stands for.
    Column("first", Integer, nullable=False),
    Column("last", Integer, nullable=False),
    Column("summary", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("undone_at", Float),
    Index("ix_compactions_session", "session_id", "id"),
)

idempotency_keys: Final = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", String(255), primary_key=True),
    Column("owner", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("answer", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
)
