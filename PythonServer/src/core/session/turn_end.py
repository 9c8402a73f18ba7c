"""Moves of the state machine: a turn ends, and what follows from it. See :mod:`core.session.turns`."""

import time
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import RowMapping, update

from core.cancellation import CauseWord
from core.errors import TurnIsOver
from core.events import Event, EventType
from core.session.delivery import has_been_told
from core.session.inbox import settle_message, take_next
from core.session.queries import read_event_data
from core.session.questions import answer_calls, withdraw_questions
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import OPEN, RunState
from core.session.said import marked
from core.session.stop_moves import record_stop, widen
from core.session.turns import end_run, kind_of, move_run, open_turn, read_run, read_turn, resume_turn
from core.store.commit import Transaction
from core.store.tables import sessions, turns

#: A turn that took more servers than this down with it, one after the other, is not resumed any more.
MAX_LOSSES: Final = 3

TURN_END: Final = {
    "completed": EventType.TURN_COMPLETED,
    "cancelled": EventType.TURN_CANCELLED,
    "failed": EventType.TURN_FAILED,
}


def end_turn(tx: Transaction, run_id: str, turn_id: str, outcome: TurnOutcome) -> tuple[TurnOutcome, TurnStart | None]:
    """Write the terminal event of the turn and what follows from it: the next turn, parking, or the run's end.

    A recorded stop wins over ``outcome.state``. Returns the outcome as recorded and the next turn, if a message waits.
    """
    run = read_run(tx, run_id)
    if run["turn_id"] != turn_id or run["state"] not in OPEN:
        raise TurnIsOver()  # somebody settled it: a late result is not written
    order = _order_at_end(tx, run, outcome.order)
    withdraw_questions(tx, run_id, turn_id, order.cause.word if order is not None else None)
    state = "cancelled" if order is not None else outcome.state
    run = read_run(tx, run_id)
    answer_calls(tx, run_id, turn_id, outcome.closing, outcome.messages)
    for event in outcome.closing:
        tx.emit(event)
    if outcome.plan is not None:
        tx.emit(Event(run_id, EventType.PLAN_UPDATED, outcome.plan, turn_id), mark="plan_seq")
    messages = _messages_of(tx, turn_id, outcome, state, order)
    end = Event(run_id, TURN_END[state], _end_data(outcome, messages, order), turn_id)
    tx.emit(end, mark="end_seq")
    tx.connection.execute(
        update(turns).where(turns.c.id == turn_id).values(state=state, ended_at=time.time(), usage=outcome.usage)
    )
    if outcome.title is not None:
        tx.connection.execute(update(sessions).where(sessions.c.id == run["session_id"]).values(title=outcome.title))
    tx.open_turns[run_id] = None
    recorded = TurnOutcome(state, messages, order, outcome.receipt, outcome.error)
    return recorded, _go_on(tx, run, recorded)


def _order_at_end(tx: Transaction, run: RowMapping, order: StopOrder | None) -> StopOrder | None:
    """The stop that ends the turn, as it is recorded by now; ``order`` is what the code that ran the turn knows."""
    if run["state"] == RunState.STOPPING:
        recorded = StopOrder.from_json(read_turn(tx, run["turn_id"])["stop"])
        # A terminate that joined the stop may not be recorded yet.
        order = replace(recorded, ends_run=recorded.ends_run or (order is not None and order.ends_run))
    elif order is not None:
        order = record_stop(tx, run, order)
    # Messages may have come since.
    return widen(tx, run, order) if order is not None and order.ends_run else order


def _messages_of(
    tx: Transaction, turn_id: str, outcome: TurnOutcome, state: str, order: StopOrder | None
) -> list[dict[str, Any]]:
    """What the turn adds to the history: what it said or, resumed and with nothing new yet, what was there before."""
    turn = read_turn(tx, turn_id)
    if kind_of(turn) == "compaction":
        return []
    resumed = turn["resumes"]
    word = order.cause.word if order is not None else None
    if resumed is not None and outcome.plan is None and not has_been_told(tx, turn_id):
        old = read_turn(tx, resumed)
        messages: list[dict[str, Any]] = read_event_data(tx.connection, old["run_id"], old["end_seq"])["messages"]
        return marked(messages, state, word)
    # A stop that was recorded while the turn finished by itself makes its end, too.
    return outcome.messages if state == outcome.state else marked(outcome.messages, state, word)


def _end_data(outcome: TurnOutcome, messages: list[dict[str, Any]], order: StopOrder | None) -> dict[str, Any]:
    data: dict[str, Any] = {"messages": messages, "usage": outcome.usage}
    if order is not None:
        data |= {"cause": order.cause.word, "reason": order.cause.reason, "receipt": outcome.receipt or []}
        data["inbox"] = order.fates
    if outcome.error is not None:
        data["error"] = outcome.error
    if outcome.title is not None:
        data["title"] = outcome.title
    if outcome.parts:
        data["parts"] = outcome.parts
    return data


def _go_on(tx: Transaction, run: RowMapping, outcome: TurnOutcome) -> TurnStart | None:
    order = outcome.order
    is_shutdown = order is not None and order.cause.word is CauseWord.SHUTDOWN
    is_lost = is_shutdown or (order is not None and order.cause.word is CauseWord.SERVER_LOST)
    if order is not None and order.ends_run:
        end_run(tx, run, RunState.CANCELLED, order)
        return None
    if is_lost and run["options"].get("on_server_lost") == "resume":
        turn = read_turn(tx, run["turn_id"])
        if kind_of(turn) == "message" and count_losses(tx, turn) <= MAX_LOSSES:
            return resume_turn(tx, run, turn)
    message = None if is_shutdown else take_next(tx, run)  # else it waits on disk for the next server
    if message is not None:  # in a batch run: what it was told to go on with
        return _deliver(tx, run, message)
    if not run["interactive"]:
        end_run(tx, run, RunState.FAILED if is_lost else RunState(outcome.state), order, outcome.error)
        return None
    move_run(tx, run, RunState.AWAITING_INPUT)
    tx.emit(Event(run["id"], EventType.AWAITING_INPUT))  # of the run: nothing of a turn follows its end
    return None


def count_losses(tx: Transaction, turn: RowMapping) -> int:
    """How many servers in a row were lost with this turn and those that it resumes."""
    losses = 0
    each: RowMapping | None = turn
    while each is not None and each["stop"] and each["stop"]["cause"] == CauseWord.SERVER_LOST:
        losses += 1
        each = read_turn(tx, each["resumes"]) if each["resumes"] else None
    return losses


def _deliver(tx: Transaction, run: RowMapping, message: RowMapping) -> TurnStart:
    """Start the next turn with a message that waited."""
    start = open_turn(tx, run, message["text"], message_id=message["id"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    mark_delivered(tx, run["id"], message["id"], start.turn_id)
    return start


def mark_delivered(tx: Transaction, run_id: str, message_id: str, turn_id: str) -> None:
    """The message has its fate: it started this turn."""
    settle_message(tx, message_id, "delivered", turn_id, position=0)
    tx.emit(Event(run_id, EventType.MESSAGE_DELIVERED, {"message_id": message_id, "position": 0}, turn_id))
