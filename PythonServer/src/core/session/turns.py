"""The moves of the state machine, each one decision inside a transaction of the one writer.

Every function takes the transaction first. It reads what is committed, decides, writes rows and events together,
and raises a ``ServerError`` to undo all of it. Nothing else changes the state of a run.
"""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import RowMapping, func, insert, select, update

from core.cancellation import Cause, CauseWord
from core.errors import InvalidRequest, NotInteractive, RunIsOver, TurnIsOver
from core.events import Event, EventType
from core.ids import new_id
from core.session.delivery import has_been_told
from core.session.inbox import hand_back, hand_back_rest, hold, queue_once, release_held, settle_message, take_next
from core.session.queries import read_event_data
from core.session.questions import answer_calls, withdraw_questions
from core.session.records import StopOrder, StopRecord, TurnOutcome, TurnStart
from core.session.run_state import OPEN, TERMINAL, RunState, may_move
from core.session.said import marked
from core.store.commit import Transaction
from core.store.tables import runs, sessions, turns

#: A turn that took more servers than this down with it, one after the other, is not resumed any more.
MAX_LOSSES: Final = 3

TURN_END: Final = {
    "completed": EventType.TURN_COMPLETED,
    "cancelled": EventType.TURN_CANCELLED,
    "failed": EventType.TURN_FAILED,
}
_RUN_END = {
    RunState.COMPLETED: EventType.RUN_COMPLETED,
    RunState.CANCELLED: EventType.RUN_CANCELLED,
    RunState.FAILED: EventType.RUN_FAILED,
}


def read_run(tx: Transaction, run_id: str) -> RowMapping:
    """The run's row, locked where the database can lock rows."""
    query = select(runs).where(runs.c.id == run_id).with_for_update()
    return tx.connection.execute(query).mappings().one()


def read_turn(tx: Transaction, turn_id: str) -> RowMapping:
    """The turn's row."""
    return tx.connection.execute(select(turns).where(turns.c.id == turn_id)).mappings().one()


def move_run(tx: Transaction, run: RowMapping | dict[str, Any], state: RunState, **columns: Any) -> None:
    """Change the state of a run, by the table."""
    if not may_move(run["state"], state):
        raise AssertionError(f"no move from {run['state']} to {state}")
    if state in TERMINAL:
        columns["ended_at"] = time.time()
    tx.connection.execute(update(runs).where(runs.c.id == run["id"]).values(state=state, **columns))


# -- a turn begins -----------------------------------------------------------------------


def open_turn(
    tx: Transaction, run: RowMapping | dict[str, Any], text: str,
    spec: dict[str, Any] | None = None, message_id: str | None = None, resumes: str | None = None,
    kind: str = "message",
) -> TurnStart:  # fmt: skip
    """Record an accepted message as a turn. The caller moves the run to ``queued`` with this turn's id.

    A turn of another ``kind`` is no part of the transcript.
    """
    number = tx.connection.execute(
        select(func.coalesce(func.max(turns.c.number), 0) + 1).where(turns.c.session_id == run["session_id"])
    ).scalar_one()
    turn_id = new_id("t")
    tx.connection.execute(
        insert(turns).values(
            id=turn_id, run_id=run["id"], session_id=run["session_id"], number=number, state="open",
            input=text, spec=spec, resumes=resumes, created_at=time.time(),
            left_out=None if kind == "message" else kind,
        )
    )  # fmt: skip
    data = {"input": text, "number": number} | ({"message_id": message_id} if message_id else {})
    data |= {"kind": kind} if kind != "message" else {}
    tx.emit(Event(run["id"], EventType.TURN_STARTED, data, turn_id))
    tx.open_turns[run["id"]] = turn_id
    return TurnStart(
        run["id"], run["session_id"], turn_id, text, bool(run["interactive"]), run["options"], spec, resumes, kind
    )


def start_of(run: RowMapping, turn: RowMapping) -> TurnStart:
    """An accepted turn as it was recorded."""
    return TurnStart(
        run["id"], run["session_id"], turn["id"], turn["input"], bool(run["interactive"]), run["options"],
        turn["spec"], turn["resumes"], kind_of(turn),
    )  # fmt: skip


def kind_of(turn: RowMapping) -> str:
    """``message`` or ``compaction``, as in :class:`TurnStart`."""
    return "compaction" if turn["left_out"] == "compaction" else "message"


def resume_turn(tx: Transaction, run: RowMapping | dict[str, Any], old: RowMapping) -> TurnStart:
    """A new turn in the place of one that did not come to its end: it takes over the goals that did.

    The old one is left out of the transcript from now on, and stays in the log. Moves the run to ``queued``.
    """
    leave_out(tx, old["id"], "resumed")
    start = open_turn(tx, run, old["input"], old["spec"], resumes=old["id"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    tx.emit(Event(run["id"], EventType.TURN_RESUMED, {"resumes": old["id"]}, start.turn_id))
    release_held(tx, run)  # behind it, as they were behind the turn that was stopped
    return start


def leave_out(tx: Transaction, turn_id: str, why: str) -> None:
    """Take a turn that has ended out of the transcript: ``rolled_back`` or ``resumed``."""
    tx.connection.execute(update(turns).where(turns.c.id == turn_id).values(left_out=why))


def begin_turn(tx: Transaction, run_id: str) -> StopOrder | None:
    """The engine starts to work on the open turn. A stop that came first is returned, and stays the turn's stop."""
    run = read_run(tx, run_id)
    if run["state"] == RunState.STOPPING:
        return StopOrder.from_json(read_turn(tx, run["turn_id"])["stop"])
    if run["state"] == RunState.QUEUED:  # else an earlier server began it, and this one takes it up
        move_run(tx, run, RunState.RUNNING)
    return None


# -- a stop ----------------------------------------------------------------------------------


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
            _end_run(tx, run, RunState.CANCELLED, order)
        return StopRecord(False, fates)
    if run["turn_id"] != turn_id:
        raise TurnIsOver()
    is_first = run["state"] != RunState.STOPPING
    recorded = _record_stop(tx, run, order) if is_first else _join_stop(tx, run, order)
    return StopRecord(True, recorded.fates)


def emit_in_turn(tx: Transaction, event: Event, mark: str | None = None) -> None:
    """Append an event to an open turn; ``TurnIsOver`` if it is not: nothing of a turn follows its end."""
    run = read_run(tx, event.run_id)
    if run["turn_id"] != event.turn_id or run["state"] not in OPEN:
        raise TurnIsOver()
    tx.emit(event, mark=mark)


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


def _policy(run: RowMapping, order: StopOrder) -> str:
    """What becomes of the messages that wait. With the run's end they go back, whatever the order says of them."""
    # A batch run that is neither to go on nor resumed ends with its turn.
    goes_on = run["interactive"] or order.continue_with or run["options"].get("on_server_lost") == "resume"
    return "return" if order.ends_run or not goes_on else order.inbox


def _record_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> StopOrder:
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


def _write_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> None:
    tx.connection.execute(update(turns).where(turns.c.id == run["turn_id"]).values(stop=order.to_json()))


def _join_stop(tx: Transaction, run: RowMapping, order: StopOrder) -> StopOrder:
    first = StopOrder.from_json(read_turn(tx, run["turn_id"])["stop"])
    if order.continue_with is not None and not order.ends_run:
        if first.ends_run:
            raise RunIsOver("the run is being ended, and does not go on")
        queue_once(tx, run, order.continue_with)
    return _widen(tx, run, first) if order.ends_run and not first.ends_run else first


def _widen(tx: Transaction, run: RowMapping, first: StopOrder) -> StopOrder:
    """The recorded stop of the open turn is one that ends the run."""
    widened = replace(first, ends_run=True, fates=hand_back_rest(tx, run, first.fates))
    _write_stop(tx, run, widened)
    return widened


# -- a turn ends -----------------------------------------------------------------------------


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
        order = _record_stop(tx, run, order)
    # Messages may have come since.
    return _widen(tx, run, order) if order is not None and order.ends_run else order


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
        _end_run(tx, run, RunState.CANCELLED, order)
        return None
    if is_lost and run["options"].get("on_server_lost") == "resume":
        turn = read_turn(tx, run["turn_id"])
        if kind_of(turn) == "message" and count_losses(tx, turn) <= MAX_LOSSES:
            return resume_turn(tx, run, turn)
    message = None if is_shutdown else take_next(tx, run)  # else it waits on disk for the next server
    if message is not None:  # in a batch run: what it was told to go on with
        return _deliver(tx, run, message)
    if not run["interactive"]:
        _end_run(tx, run, RunState.FAILED if is_lost else RunState(outcome.state), order, outcome.error)
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


def _end_run(
    tx: Transaction, run: RowMapping, state: RunState, order: StopOrder | None, error: str | None = None
) -> None:
    hand_back(tx, run, None)
    move_run(tx, run, state)
    data: dict[str, Any] = {}
    if order is not None:
        data |= {"cause": order.cause.word, "reason": order.cause.reason}
    if error is not None:
        data["error"] = error
    tx.emit(Event(run["id"], _RUN_END[state], data))
