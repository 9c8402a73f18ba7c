"""Accepting a message to a run: it starts a turn, waits, goes into the turn at work, or takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import RowMapping

from core.cancellation import Cause, CauseWord
from core.errors import NotFound, NotInteractive, RedirectLimit, RunIsBusy, RunIsOver, TurnIsOver
from core.events import Event, EventType
from core.session.access import Caller, find_run
from core.session.delivery import STEERING, Letter
from core.session.inbox import add_message, check_room, find_duplicate, put_at, release_held, take_next
from core.session.records import NewMessage, StopOrder, TurnStart
from core.session.run_state import OPEN, TERMINAL, RunState
from core.session.stop_moves import note_stop
from core.session.turn_end import mark_delivered
from core.session.turns import move_run, open_turn, read_run
from core.store.commit import Transaction


class TurnAtWork(Protocol):
    """The turn that runs here, as far as it decides what a message may do; see :class:`core.session.turn.Turn`."""

    @property
    def is_protected(self) -> bool:
        """Whether it is not to be interrupted now."""

    def has_goal(self, goal_id: str) -> bool:
        """Whether its plan has that goal, delegated ones too."""

    def is_at_redirect_limit(self, goal_id: str | None) -> bool:
        """Whether a redirect would cut off a model that was cut off too often already."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that is recorded."""

    message_id: str
    disposition: str
    #: The turn that it started, goes into, or stops.
    turn_id: str | None = None
    #: For that turn.
    letter: Letter | None = None

    def to_json(self) -> dict[str, Any]:
        """The answer."""
        answer = {"message_id": self.message_id, "disposition": self.disposition}
        return answer | ({"turn_id": self.turn_id} if self.turn_id is not None else {})


@dataclass(frozen=True, slots=True)
class StopFirst:
    """Of an interrupt nothing is recorded yet: that turn is to be stopped, and :func:`accept_with_stop` decided with the
    stop's record. Else something that the turn says could come behind its stop.
    """

    turn_id: str


def accept_message(
    tx: Transaction, caller: Caller, run_id: str, message: NewMessage, at_work: Callable[[str], TurnAtWork | None]
) -> tuple[Accepted | StopFirst, TurnStart | None]:
    """Record a message, but an interrupt of a turn at work. Returns also the turn to run, if it starts one.

    ``at_work``: the turn of an id, if it runs here.
    """
    run = find_run(tx.connection, caller, run_id)
    duplicate = _find_duplicate(tx, run_id, message)
    if duplicate is not None:
        return duplicate, None
    if run["state"] in TERMINAL:
        raise RunIsOver("start a new run in the same session to go on")
    if message.if_turn is not None and not (message.if_turn == run["turn_id"] and run["state"] in OPEN):
        raise TurnIsOver()
    if not run["interactive"]:
        raise NotInteractive("a batch run takes no further messages")
    if run["state"] == RunState.AWAITING_INPUT:
        return _start_next(tx, run, message)
    release_held(tx, run)  # the user has spoken since the stop
    if run["state"] == RunState.STOPPING:
        return _queue(tx, run, message, "queue"), None
    turn = at_work(run["turn_id"])
    mode = _mode(run, message, turn)
    if mode != "interrupt":
        return _queue(tx, run, message, mode), None
    check_room(tx, run)  # nothing is stopped for a message that is refused
    if turn is not None:
        return StopFirst(run["turn_id"]), None
    note_stop(tx, run_id, run["turn_id"], stop_for_message())  # it does nothing here yet that could come behind it
    return accept_with_stop(tx, run_id, message), None


def accept_with_stop(tx: Transaction, run_id: str, message: NewMessage) -> Accepted:
    """Record an interrupt right behind the stop of the turn, in the same decision: it starts the next turn, before all
    that waits. It asks for no room, which it had when the stop was decided on.
    """
    duplicate = _find_duplicate(tx, run_id, message)
    if duplicate is not None:
        return duplicate
    run = read_run(tx, run_id)
    release_held(tx, run)  # the user has spoken since the stop
    row = add_message(tx, run, message.text, message.client_message_id, "interrupt", has_room=True)
    put_at(tx, run, row["id"], 0)
    about = {"message_id": row["id"], "text": row["text"], "mode": "interrupt", "goal_id": None}
    tx.emit(Event(run_id, EventType.MESSAGE_QUEUED, about, run["turn_id"]))
    return Accepted(row["id"], "interrupted", run["turn_id"])


def stop_for_message() -> StopOrder:
    """The stop with which an interrupt begins."""
    return StopOrder(Cause(CauseWord.USER, "interrupted by a message"))


def _find_duplicate(tx: Transaction, run_id: str, message: NewMessage) -> Accepted | None:
    row = find_duplicate(tx, run_id, message.client_message_id)
    return Accepted(row["id"], "duplicate", row["turn_id"]) if row is not None else None


def _mode(run: RowMapping, message: NewMessage, turn: TurnAtWork | None) -> str:
    """What the message does to the turn that is open."""
    mode: str = message.mode or run["options"].get("busy_mode", "queue")
    if mode == "reject":
        raise RunIsBusy("wait for the turn's end, or say in mode what the message means")
    if turn is None:  # accepted an instant ago
        return mode
    if mode in STEERING and message.goal_id is not None and not turn.has_goal(message.goal_id):
        raise NotFound(f"the current turn has no such goal; GET /v1/runs/{run['id']}/plan shows its goals")
    if mode == "redirect" and turn.is_at_redirect_limit(message.goal_id):
        raise RedirectLimit("the model was interrupted several times without coming to an end: steer, or stop the turn")
    return "queue" if mode == "interrupt" and turn.is_protected else mode


def _queue(tx: Transaction, run: RowMapping, message: NewMessage, mode: str) -> Accepted:
    """It waits: for the turn's end or, with a mode that steers, for the next request to a model if that comes first."""
    is_steering = mode in STEERING
    goal_id = message.goal_id if is_steering else None
    row = add_message(tx, run, message.text, message.client_message_id, mode, goal_id)
    about = {"message_id": row["id"], "text": row["text"], "mode": mode, "goal_id": goal_id}
    tx.emit(Event(run["id"], EventType.MESSAGE_QUEUED, about, run["turn_id"]))
    if not is_steering:
        return Accepted(row["id"], "queued")
    return Accepted(row["id"], "steered", run["turn_id"], Letter(row["id"], row["text"], mode, goal_id))


def _start_next(tx: Transaction, run: RowMapping, message: NewMessage) -> tuple[Accepted, TurnStart]:
    """The run is parked: start a turn with the oldest message that waits, which may have been kept at a stop."""
    row = add_message(tx, run, message.text, message.client_message_id, message.mode or "queue")
    release_held(tx, run)
    first = take_next(tx, run)
    assert first is not None
    start = open_turn(tx, run, first["text"], message_id=first["id"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    mark_delivered(tx, run["id"], first["id"], start.turn_id)
    if first["id"] == row["id"]:
        return Accepted(row["id"], "started", start.turn_id), start
    about = {"message_id": row["id"], "text": row["text"], "mode": row["mode"], "goal_id": None}
    tx.emit(Event(run["id"], EventType.MESSAGE_QUEUED, about, start.turn_id))
    return Accepted(row["id"], "queued"), start
