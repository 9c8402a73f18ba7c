"""Accepting a message to a run: it starts a turn, waits, goes into the turn at work, or takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sqlalchemy import RowMapping

from core.cancellation import Cause, CauseWord
from core.errors import NotFound, NotInteractive, RedirectLimit, RunIsBusy, RunIsOver, TurnIsOver
from core.events import Event, EventType
from core.session.access import Caller, find_run
from core.session.delivery import STEERING, Letter
from core.session.inbox import add_message, check_room, find_duplicate, put_at, release_held, take_next
from core.session.records import NewMessage, StopOrder, TurnStart
from core.session.run_state import TERMINAL, RunState
from core.session.stop_moves import note_stop
from core.session.turn_end import mark_delivered
from core.session.turns import move_run, open_turn
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
    """A message that is recorded, and what is left to do with the turn at work.

    Without a ``message_id``, nothing is recorded yet: first the turn is to be stopped as ``order`` says, if it has not
    finished. Else something of that turn could come behind its stop.
    """

    message_id: str | None
    disposition: str
    #: The turn that it started, goes into, or stops.
    turn_id: str | None = None
    #: For that turn.
    letter: Letter | None = None
    #: The stop of that turn.
    order: StopOrder | None = None

    def to_json(self) -> dict[str, Any]:
        """The answer."""
        answer = {"message_id": self.message_id, "disposition": self.disposition}
        return answer | ({"turn_id": self.turn_id} if self.turn_id is not None else {})


def accept_message(
    tx: Transaction, caller: Caller, run_id: str, message: NewMessage, at_work: Callable[[str], TurnAtWork | None],
    stopped: str | None = None,
) -> tuple[Accepted, TurnStart | None]:  # fmt: skip
    """Record a message, and with an interrupt the stop of the turn. Returns also the turn to run, if it starts one.

    ``at_work``: the turn of an id, if it runs here. ``stopped``: the one that was stopped for this message, or has finished.
    """
    run = find_run(tx.connection, caller, run_id)
    duplicate = find_duplicate(tx, run_id, message.client_message_id)
    if duplicate is not None:
        return Accepted(duplicate["id"], "duplicate", duplicate["turn_id"]), None
    if run["state"] in TERMINAL:
        raise RunIsOver("start a new run in the same session to go on")
    if message.if_turn is not None and message.if_turn != run["turn_id"]:
        raise TurnIsOver()
    if not run["interactive"]:
        raise NotInteractive("a batch run takes no further messages")
    if run["state"] == RunState.AWAITING_INPUT:
        return _start_next(tx, run, message, is_first=stopped == run["turn_id"])
    release_held(tx, run)  # the user has spoken since the stop
    if run["state"] == RunState.STOPPING:
        return (_put_first if stopped == run["turn_id"] else _queue)(tx, run, message, "queue"), None
    turn = at_work(run["turn_id"])
    mode = _mode(run, message, turn)
    if mode != "interrupt":
        return _queue(tx, run, message, mode), None
    if stopped is None and turn is not None:
        check_room(tx, run)  # nothing is stopped for a message that is refused
        return Accepted(None, "interrupted", run["turn_id"], order=_order()), None
    return _interrupt(tx, run, message) if stopped in (None, run["turn_id"]) else _queue(tx, run, message, "queue"), None


def _mode(run: RowMapping, message: NewMessage, turn: TurnAtWork | None) -> str:
    """What the message does to the turn that is open."""
    mode: str = message.mode or run["options"].get("busy_mode", "queue")
    if mode == "reject":
        raise RunIsBusy("wait for the turn's end, or say in mode what the message means")
    if turn is None:  # accepted an instant ago
        return mode
    if mode in STEERING and message.goal_id is not None and not turn.has_goal(message.goal_id):
        raise NotFound("the current turn has no such goal")
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


def _order() -> StopOrder:
    return StopOrder(Cause(CauseWord.USER, "interrupted by a message"))


def _interrupt(tx: Transaction, run: RowMapping, message: NewMessage) -> Accepted:
    """The stop of a turn that does nothing here, and the message that starts the next one: one decision."""
    order = _order()
    note_stop(tx, run["id"], run["turn_id"], order)
    release_held(tx, run)  # the user has spoken since the stop
    return replace(_put_first(tx, run, message), order=order)


def _put_first(tx: Transaction, run: RowMapping, message: NewMessage, _: str = "") -> Accepted:
    """It starts the next turn, before all that waits."""
    row = add_message(tx, run, message.text, message.client_message_id, "interrupt")
    put_at(tx, run, row["id"], 0)
    about = {"message_id": row["id"], "text": row["text"], "mode": "interrupt", "goal_id": None}
    tx.emit(Event(run["id"], EventType.MESSAGE_QUEUED, about, run["turn_id"]))
    return Accepted(row["id"], "interrupted", run["turn_id"])


def _start_next(
    tx: Transaction, run: RowMapping, message: NewMessage, is_first: bool
) -> tuple[Accepted, TurnStart]:
    """The run is parked: start a turn with the oldest message that waits, which may have been kept at a stop.

    ``is_first``: this one goes before them all.
    """
    row = add_message(tx, run, message.text, message.client_message_id, message.mode or "queue")
    release_held(tx, run)
    if is_first:
        put_at(tx, run, row["id"], 0)
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
