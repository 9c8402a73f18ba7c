"""Moves of the state machine: a stop. See :mod:`core.session.turns`."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import RowMapping, update

from core.cancellation import Cause
from core.errors import InvalidRequest, NotInteractive, RunIsOver, TurnIsOver
from core.events import Event, EventType
from core.session.inbox import hand_back_rest, hold, queue_once
from core.session.questions import withdraw_questions
from core.session.records import StopOrder, StopRecord
from core.session.run_state import OPEN, TERMINAL, RunState
from core.session.turns import emit_in_turn, end_run, move_run, read_run, read_turn
from core.store.commit import Transaction
from core.store.tables import turns


def request_stop(tx: Transaction, run_id: str, turn_id: str | None, order: StopOrder) -> StopRecord:
    """As :func:`note_stop`, for a stop that may still be refused: see :func:`check_stop`."""
    run = read_run(tx, run_id)
    if run["state"] in OPEN and run["turn_id"] == turn_id:
        check_stop(run, order)
    return note_stop(tx, run_id, turn_id, order)


def check_stop(run: RowMapping, order: StopOrder) -> None:
    """A batch run has no turn to stop by itself, unless it is told how to go on; and only a batch run can be told."""
    if not run["interactive"] and not order.ends_run and order.continue_with is None:
        raise NotInteractive("terminate it, stop its plan, or say in continue_with how it goes on")
    if run["interactive"] and order.continue_with is not None:
        detail = "an interactive run parks after a stop; send the next message as its input"
        raise InvalidRequest(detail, errors=[{"field": "continue_with", "message": "for batch runs only"}])


def note_stop(tx: Transaction, run_id: str, turn_id: str | None, order: StopOrder) -> StopRecord:
    """Record a stop of ``turn_id``; it is not stopped if there is nothing to stop: the run is parked.

    A second stop joins the first and records nothing, except that a terminate turns a turn-stop into a run's end.
    """
    run = read_run(tx, run_id)
    if run["state"] in TERMINAL:
        raise RunIsOver()
    if run["state"] not in OPEN:
        fates = hold(tx, run, _policy(run, order), None)  # nothing runs, but since an earlier stop messages may wait
        if order.ends_run:
            end_run(tx, run, RunState.CANCELLED, order)
        return StopRecord(False, fates)
    if run["turn_id"] != turn_id:
        raise TurnIsOver()
    is_first = run["state"] != RunState.STOPPING
    recorded = record_stop(tx, run, order) if is_first else _join_stop(tx, run, order)
    return StopRecord(True, recorded.fates)


def note_part_stop(
    tx: Transaction, run_id: str, turn_id: str, cause: Cause, goal_id: str | None, call_id: str | None,
    inside: Collection[str] = (),
) -> None:  # fmt: skip
    """Record the stop of one goal or one tool call of an open turn, which is not stopped by it.

    ``inside``: the ids of the goals that end with it. What they, or the call, ask the user is withdrawn.
    """
    data = {"cause": cause.word, "reason": cause.reason}
    emit_in_turn(tx, Event(run_id, EventType.STOP_REQUESTED, data, turn_id, goal_id, call_id))
    withdraw_questions(tx, run_id, turn_id, cause.word, inside, call_id)


def read_fates(tx: Transaction, turn_id: str) -> dict[str, Any] | None:
    """What the recorded stop of a turn did with the messages that waited; None if it has none."""
    stop = read_turn(tx, turn_id)["stop"]
    return StopOrder.from_json(stop).fates if stop else None


def record_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> StopOrder:
    """Record the first stop of the open turn, and do with the messages that wait what it says; as recorded."""
    move_run(tx, run, RunState.STOPPING)
    requested = Event(run["id"], EventType.STOP_REQUESTED, turn_id=run["turn_id"])
    tx.emit(requested)  # before the events of what it does with the messages
    recorded = replace(order, fates=hold(tx, run, _policy(run, order), run["turn_id"]))
    requested.data = recorded.to_json()
    _write_stop(tx, run, recorded)
    withdraw_questions(tx, run["id"], run["turn_id"], order.cause.word)
    if order.continue_with is not None and not order.ends_run:
        queue_once(tx, run, order.continue_with)
    return recorded


def _join_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> StopOrder:
    first = StopOrder.from_json(read_turn(tx, run["turn_id"])["stop"])
    if order.continue_with is not None and not order.ends_run:
        if first.ends_run:
            raise RunIsOver("the run is being ended, and does not go on")
        queue_once(tx, run, order.continue_with)
    return widen(tx, run, first) if order.ends_run and not first.ends_run else first


def widen(tx: Transaction, run: RowMapping, first: StopOrder) -> StopOrder:
    """The recorded stop of the open turn is one that ends the run."""
    widened = replace(first, ends_run=True, fates=hand_back_rest(tx, run, first.fates))
    _write_stop(tx, run, widened)
    return widened


def _write_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> None:
    tx.connection.execute(update(turns).where(turns.c.id == run["turn_id"]).values(stop=order.to_json()))


def _policy(run: RowMapping, order: StopOrder) -> str:
    """What becomes of the messages that wait. With the run's end they go back, whatever the order says of them."""
    # A batch run that is neither to go on nor resumed ends with its turn.
    goes_on = run["interactive"] or order.continue_with or run["options"].get("on_server_lost") == "resume"
    return "return" if order.ends_run or not goes_on else order.inbox
