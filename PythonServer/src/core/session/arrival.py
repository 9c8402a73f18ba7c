"""Taking in a session that was exported elsewhere: one interactive run, parked, whose turns have all ended.

The log of a long session goes in piece by piece: a stop that anybody sends meanwhile waits for one piece, and not for
the whole. Nobody sees it until the session, its run and its turns come behind it in one transaction.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from time import time
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select

from core.cancellation import CauseWord
from core.errors import SessionExists
from core.events import Event, EventType
from core.ids import new_id
from core.plan.goal_status import FINAL, GoalStatus
from core.session.access import Caller, find_session
from core.session.portable import MessageLine, PastGoal, SessionLine, TurnLine
from core.session.run_state import RunState
from core.session.said import turn_messages
from core.session.turn_end import TURN_END
from core.store.commit import Transaction
from core.store.tables import events, messages, runs, sessions, turns

#: Events of one piece.
PIECE: Final = 1_000


class Arrival:
    """The rows and events of a session to be, with ids of our own.

    All of it is made before the writer is asked: a session may be long, and stops wait for the writer too.
    """

    def __init__(self, session_id: str, lines: tuple[SessionLine, list[TurnLine], list[MessageLine]]) -> None:
        self._session, past, waiting = lines
        self._session_id = session_id
        self._run_id = new_id("r")
        self._turns: list[dict[str, Any]] = []
        #: Id of a turn there -> here; of several with one id, the newest so far.
        self._turn_ids: dict[str, str] = {}
        self._messages: list[dict[str, Any]] = []
        #: Those that went into turns at work.
        self._told: list[dict[str, Any]] = []
        self._events: list[Event] = []
        # So many of them are in the store.
        self._written = 0
        self._log(
            EventType.RUN_STARTED, {"session_id": session_id, "interactive": True, "metadata": {}, "imported": True}
        )
        for turn in past:
            self._turns.append(self._turn_row(turn))
        for message in waiting:
            self._messages.append(self._message_row(message))
        self._log(EventType.AWAITING_INPUT)

    def check_free(self, connection: Connection, caller: Caller) -> None:
        """``SessionExists`` if the caller has a session of that id, ``NotFound`` if somebody else has."""
        if find_session(connection, caller, self._session_id) is not None:
            raise SessionExists("give it another id with ?session_id=", session_id=self._session_id)

    def pieces(self) -> Iterator[Callable[[Transaction], tuple[None, None]]]:
        """Decisions that write the log, but for its last piece; each is durable before the next one is taken.

        They return no answer, and no turn to run.
        """
        for begin in range(0, len(self._events) - PIECE, PIECE):
            yield partial(self._write, begin)
            self._written = begin + PIECE

    def _write(self, begin: int, tx: Transaction) -> tuple[None, None]:
        for event in self._events[begin : begin + PIECE]:
            tx.emit(event)
        return None, None

    def clearing(self) -> Iterator[Callable[[Transaction], None]]:
        """Decisions that take back what the pieces have written, unless the session was taken in."""
        for begin in range(0, self._written + PIECE, PIECE):  # the one that failed may have been written all the same
            yield partial(self._clear, begin)

    def _clear(self, begin: int, tx: Transaction) -> None:
        if tx.connection.execute(select(runs.c.id).where(runs.c.id == self._run_id)).first() is None:
            piece = events.c.seq.between(begin + 1, begin + PIECE)
            tx.connection.execute(delete(events).where(events.c.run_id == self._run_id, piece))

    def take_in(self, tx: Transaction, caller: Caller) -> dict[str, Any]:
        """Make the session, its run, and what is left of the log; nothing of it runs. Returns the answer."""
        self.check_free(tx.connection, caller)
        session_id, run_id = self._session_id, self._run_id
        mine = {"tenant": caller.tenant, "owner": caller.sub}
        created_at = _seconds(self._session.created_at)
        tx.connection.execute(
            insert(sessions).values(id=session_id, title=self._session.title, created_at=created_at, **mine)
        )
        options: dict[str, Any] = {
            "agent": "default", "planning": "auto", "deadline_ms": None, "idle_limit_ms": None,
            "on_server_lost": "park", "metadata": {},
        }  # fmt: skip
        turn_id = self._turns[-1]["id"] if self._turns else None
        tx.connection.execute(
            insert(runs).values(
                id=run_id, session_id=session_id, interactive=True, state=RunState.AWAITING_INPUT, turn_id=turn_id,
                options=options, created_at=time(), **mine,
            )
        )  # fmt: skip
        for table, rows in ((turns, self._turns), (messages, self._told), (messages, self._messages)):
            if rows:
                tx.connection.execute(insert(table), rows)
        for event in self._events[self._written :]:
            tx.emit(event)
        return {
            "session_id": session_id, "run_id": run_id, "turns": len(self._turns), "messages": len(self._messages)
        }  # fmt: skip

    def _log(self, event_type: EventType, data: dict[str, Any] | None = None, **ids_and_time: Any) -> int:
        """Append an event; returns its seq. The run is new, so the log begins here."""
        self._events.append(Event(self._run_id, event_type, data or {}, **ids_and_time))
        return len(self._events)

    def _turn_row(self, line: TurnLine) -> dict[str, Any]:
        turn_id, number = new_id("t"), len(self._turns) + 1
        resumes = self._turn_ids[line.resumes] if line.resumes is not None else None
        self._turn_ids[line.turn_id] = turn_id
        state = "cancelled" if line.state == "open" else line.state
        began = _seconds(line.started_at)
        ended = _seconds(line.ended_at) if line.ended_at else began
        history = line.history.model_dump(exclude_none=True) if line.history is not None else {}
        started_seq = self._log(
            EventType.TURN_STARTED, {"input": line.input, "number": number, **history}, turn_id=turn_id, at=began
        )
        plan_seq = self._log_plan(line, turn_id, ended) if line.goals else None
        self._log_told(line, turn_id, ended)
        end_seq = self._log(TURN_END[state], _end_data(line, state), turn_id=turn_id, at=ended)
        if line.left_out == "rolled_back":
            self._log(EventType.TURN_ROLLED_BACK, {"rolled_back": turn_id}, at=ended)
        return {
            "id": turn_id, "run_id": self._run_id, "session_id": self._session_id, "number": number, "state": state,
            "input": line.input, "left_out": line.left_out, "resumes": resumes,
            "spec": line.spec.model_dump(exclude_defaults=True) if line.spec is not None else None,
            "usage": line.usage.model_dump() if line.usage else None,
            "history_seq": started_seq if history else None, "plan_seq": plan_seq, "end_seq": end_seq,
            "created_at": began, "ended_at": ended,
        }  # fmt: skip

    def _log_plan(self, line: TurnLine, turn_id: str, ended: float) -> int:
        goals = [_plain(goal) for goal in line.goals]
        seq = self._log(EventType.PLAN_UPDATED, {"goals": goals, "note": line.note}, turn_id=turn_id, at=ended)
        for goal in _walk(line.goals):
            at = _seconds(goal.ended_at) if goal.ended_at else ended
            self._log(EventType.GOAL_STATUS, _final_status(goal), turn_id=turn_id, goal_id=goal.id, at=at)
        return seq

    def _log_told(self, line: TurnLine, turn_id: str, ended: float) -> None:
        """What the user said while the turn was at work: a turn that resumes it must have it, too."""
        texts = [message.content for message in line.messages if message.role == "user"]
        for position, text in enumerate(texts, start=1):
            row = self._new_message(text, ended)
            fate = {"mode": "steer", "position": position}  # how it came is not exported
            self._told.append({**row, **fate, "state": "delivered", "turn_id": turn_id, "settled_at": ended})
            about = {"message_id": row["id"], "text": text, **fate, "goals": []}
            self._log(EventType.MESSAGE_DELIVERED, about, turn_id=turn_id, at=ended)

    def _message_row(self, line: MessageLine) -> dict[str, Any]:
        # Held, whatever it was: nothing starts by itself here; the user's next message sets it going.
        row = self._new_message(line.text, _seconds(line.created_at))
        self._log(EventType.MESSAGE_QUEUED, {"message_id": row["id"], "text": line.text})
        return {**row, "state": "held"}

    def _new_message(self, text: str, created_at: float) -> dict[str, Any]:
        number = len(self._told) + len(self._messages) + 1
        return {
            "id": new_id("m"), "run_id": self._run_id, "session_id": self._session_id, "number": number, "text": text,
            "created_at": created_at,
        }  # fmt: skip


def _end_data(line: TurnLine, state: str) -> dict[str, Any]:
    cause = line.cause or (CauseWord.SERVER_LOST if line.state == "open" else CauseWord.USER)
    said = [message.model_dump(exclude_none=True) for message in line.messages]
    data: dict[str, Any] = {
        "messages": said or turn_messages([], state, cause if state == "cancelled" else None),
        "usage": line.usage.model_dump() if line.usage else None,
    }
    if state == "cancelled":
        receipt = [item.model_dump(exclude_unset=True) for item in line.receipt or ()]
        data |= {"cause": cause, "reason": line.reason, "receipt": receipt}
    return data | ({"error": line.error} if line.error is not None else {})


def _plain(goal: PastGoal) -> dict[str, Any]:
    plain = goal.model_dump(exclude={"result", "goals"})
    return plain | {"goals": [_plain(each) for each in goal.goals]}


def _walk(goals: list[PastGoal]) -> Iterator[PastGoal]:
    for goal in goals:
        yield goal
        yield from _walk(goal.goals)


def _final_status(goal: PastGoal) -> dict[str, Any]:
    data: dict[str, Any] = {"status": goal.status if goal.status in FINAL else GoalStatus.CANCELLED}
    return data | goal.model_dump(include={"cause", "error", "result"}, exclude_none=True)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
