"""Reading what is committed, in the form in which the API shows it."""

import json
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select

from core.clock import iso
from core.errors import NotFound
from core.events import EventType
from core.plan.goal_status import FINAL
from core.session.access import Caller, owned_by
from core.session.usage import add_up
from core.store.feed import StoredEvent
from core.store.tables import IS_LIVE, IS_OPEN, events, messages, runs, sessions, turns


def run_view(run: RowMapping, title: str | None) -> dict[str, Any]:
    """A run as ``GET /v1/runs/{id}`` shows it; ``title`` is its session's."""
    return {
        "run_id": run["id"],
        "session_id": run["session_id"],
        "title": title,
        "turn_id": run["turn_id"],
        "state": run["state"],
        "interactive": bool(run["interactive"]),
        "agent": run["options"]["agent"],
        "metadata": run["options"]["metadata"],
        "created_at": iso(run["created_at"]),
        "ended_at": iso(run["ended_at"]) if run["ended_at"] is not None else None,
    }


def list_runs(
    connection: Connection, caller: Caller, session_id: str | None, state: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:  # fmt: skip
    """A page of the caller's runs, newest first; ``next_cursor`` is null on the last page."""
    query = select(runs).where(owned_by(caller))
    if session_id is not None:
        query = query.where(runs.c.session_id == session_id)
    if state is not None:
        query = query.where(runs.c.state == state)
    if cursor is not None:
        query = query.where(runs.c.id < cursor)
    rows = connection.execute(query.order_by(runs.c.id.desc()).limit(limit + 1)).mappings().all()
    page = rows[:limit]
    named = select(sessions.c.id, sessions.c.title).where(sessions.c.id.in_({row["session_id"] for row in page}))
    titles = {row.id: row.title for row in connection.execute(named)}
    views = [run_view(row, titles[row["session_id"]]) for row in page]
    return {"runs": views, "next_cursor": page[-1]["id"] if len(rows) > limit else None}


def newest_open_run(connection: Connection, caller: Caller) -> RowMapping | None:
    """The run with the caller's newest turn that is not over; of the one session, if the caller is tied to it."""
    query = (
        select(runs)
        .join(turns, turns.c.id == runs.c.turn_id)
        .where(owned_by(caller), IS_OPEN)
        .order_by(turns.c.created_at.desc(), turns.c.id.desc())
        .limit(1)
    )
    return connection.execute(query).mappings().first()


def live_run_of_session(connection: Connection, session_id: str) -> RowMapping | None:
    """The live run of a session, parked or not."""
    query = select(runs).where(runs.c.session_id == session_id, IS_LIVE)
    return connection.execute(query).mappings().first()


def run_usage(connection: Connection, run_id: str) -> dict[str, Any] | None:
    """The sums of the run's turns that have ended."""
    query = select(turns.c.usage).where(turns.c.run_id == run_id).order_by(turns.c.number)
    return add_up(connection.execute(query).scalars())


def session_title(connection: Connection, session_id: str) -> str | None:
    """The session's title, if it has one."""
    title: str | None = connection.execute(select(sessions.c.title).where(sessions.c.id == session_id)).scalar()
    return title


def last_seq(connection: Connection, run_id: str) -> int:
    """The number of the run's newest event."""
    query = select(func.coalesce(func.max(events.c.seq), 0)).where(events.c.run_id == run_id)
    seq: int = connection.execute(query).scalar_one()
    return seq


# -- the log ---------------------------------------------------------------------------------


#: The columns as ``StoredEvent.of_row`` takes them.
_IN_ROW_ORDER: Final = select(
    events.c.run_id, events.c.seq, events.c.type, events.c.at,
    events.c.turn_id, events.c.goal_id, events.c.call_id, events.c.data,
)  # fmt: skip


def events_after(connection: Connection, run_id: str, after: int, limit: int) -> list[StoredEvent]:
    """The committed events behind ``after``, at most ``limit``."""
    query = _IN_ROW_ORDER.where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq).limit(limit)
    return [StoredEvent.of_row(*row) for row in connection.execute(query)]


def log_of_turn(connection: Connection, turn: RowMapping) -> ColumnElement[bool]:
    """The condition for the events of one turn, with its bounds in the log: a long session has many turns."""
    before = connection.execute(
        select(turns.c.run_id, turns.c.end_seq)
        .where(turns.c.session_id == turn["session_id"], turns.c.number == turn["number"] - 1)
    ).first()  # fmt: skip
    begin = before.end_seq if before is not None and before.run_id == turn["run_id"] else 0
    end = [events.c.seq <= turn["end_seq"]] if turn["end_seq"] is not None else []
    return and_(
        events.c.run_id == turn["run_id"], events.c.seq > begin, *end, events.c.turn_id == turn["id"]
    )


def read_event_data(connection: Connection, run_id: str, seq: int) -> dict[str, Any]:
    """What one event tells, besides its type, time and ids."""
    query = select(events.c.data).where(events.c.run_id == run_id, events.c.seq == seq)
    data: dict[str, Any] = json.loads(connection.execute(query).scalar_one())
    return data


# -- the plan --------------------------------------------------------------------------------


def plan_view(connection: Connection, run: RowMapping, turn_id: str | None) -> dict[str, Any]:
    """The plan of a turn with the committed state of each goal; ``goals`` is empty before there is one."""
    wanted = turn_id or run["turn_id"]
    turn = connection.execute(
        select(turns).where(turns.c.run_id == run["id"], turns.c.id == wanted)
    ).mappings().first()  # fmt: skip
    if turn is None:
        raise NotFound("the run has no such turn")
    data = read_plan(connection, turn)
    return {"run_id": run["id"], "turn_id": turn["id"], "goals": data["goals"], "note": data["note"]}


def read_plan(connection: Connection, turn: RowMapping) -> dict[str, Any]:
    """The newest published plan of a turn, brought up to date by the goals' events."""
    if turn["plan_seq"] is None:
        return {"goals": [], "note": None}
    data = read_event_data(connection, turn["run_id"], turn["plan_seq"])
    goals: dict[str, dict[str, Any]] = {}
    for goal in walk_goals(data["goals"]):
        goal.setdefault("result", None)
        goals[goal["id"]] = goal
    query = select(events.c.goal_id, events.c.at, events.c.data).where(
        log_of_turn(connection, turn), events.c.type == EventType.GOAL_STATUS
    )
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        if row["goal_id"] in goals:  # else its plan could not be published, for want of room on the disk
            _apply_status(goals[row["goal_id"]], json.loads(row["data"]), row["at"])
    return data


def walk_goals(goals: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every goal, delegated ones too, parents before children, in plan order."""
    waiting = list(reversed(goals))
    while waiting:
        goal = waiting.pop()
        yield goal
        waiting.extend(reversed([*goal.get("delegated", ()), *goal["goals"]]))


def _apply_status(goal: dict[str, Any], change: dict[str, Any], at: float) -> None:
    is_final = change["status"] in FINAL
    goal["ended_at" if is_final else "started_at"] = iso(at)
    if goal["status"] in FINAL and not is_final:
        return  # the plan was published later, at the turn's end; a final state stands
    goal |= {"status": change["status"], "cause": change.get("cause"), "error": change.get("error")}
    goal["result"] = change.get("result")


# -- receipts and inbox ----------------------------------------------------------------------


def receipts(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The final receipts of the run's stopped turns, and of goals and calls that were stopped alone, oldest first."""
    ended = and_(events.c.run_id == turns.c.run_id, events.c.seq == turns.c.end_seq)
    query = (
        select(events.c.turn_id, events.c.at, events.c.data)
        .join_from(turns, events, ended)
        # In a text the quotes would stand behind backslashes.
        .where(turns.c.run_id == run_id, or_(turns.c.state == "cancelled", events.c.data.contains('"parts":')))
    )
    found: list[dict[str, Any]] = []
    for row in connection.execute(query.order_by(events.c.seq)).mappings():
        data = json.loads(row["data"])
        found += [{"turn_id": row["turn_id"], **part, "inbox": None} for part in data.get("parts", ())]
        if "receipt" in data:
            found.append(
                {
                    "turn_id": row["turn_id"], "goal_id": None, "call_id": None, "at": iso(row["at"]),
                    "cause": data["cause"], "reason": data["reason"], "receipt": data["receipt"],
                    "inbox": data.get("inbox"),
                }
            )  # fmt: skip
    return found


def inbox(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The messages that wait, in the order in which they will be delivered; ``held`` since a stop."""
    query = select(messages).where(messages.c.run_id == run_id, messages.c.state.in_(("queued", "held")))
    return [
        {
            "message_id": row["id"], "text": row["text"], "mode": row["mode"], "goal_id": row["goal_id"],
            "held": row["state"] == "held", "created_at": iso(row["created_at"]),
        }
        for row in connection.execute(query.order_by(messages.c.number)).mappings()
    ]  # fmt: skip


def message_view(row: RowMapping) -> dict[str, Any]:
    """A message with its fate; ``turn_id`` and ``position`` say where it was delivered."""
    return {
        "message_id": row["id"], "text": row["text"], "mode": row["mode"], "goal_id": row["goal_id"],
        "state": row["state"], "turn_id": row["turn_id"], "position": row["position"],
        "created_at": iso(row["created_at"]),
        "settled_at": iso(row["settled_at"]) if row["settled_at"] is not None else None,
    }  # fmt: skip
