"""Going back to a turn that has ended: take it out, ask it again, or take it up where it was stopped."""

from typing import Any

from sqlalchemy import RowMapping, or_, select

from core.errors import NotInteractive, RunIsBusy, RunIsOver, TurnIsOver, TurnNotStopped
from core.events import Event, EventType
from core.session.access import Caller, find_run
from core.session.inbox import release_held
from core.session.records import TurnStart
from core.session.run_state import TERMINAL, RunState
from core.session.turns import kind_of, leave_out, move_run, open_turn, read_turn, resume_turn
from core.store.commit import Transaction
from core.store.tables import turns

Started = tuple[dict[str, Any], TurnStart]


def roll_back(tx: Transaction, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
    """Take the newest turn out of the transcript, if it was stopped or failed. Repeating it changes nothing."""
    run, turn = _newest(tx, caller, run_id, if_turn)
    is_in = turn["left_out"] is None
    if is_in and turn["state"] == "completed":
        raise TurnNotStopped("the turn was completed; to ask it again, use regenerate")
    if is_in:
        _roll_back(tx, run, turn)
    return {"run_id": run_id, "turn_id": turn["id"], "rolled_back": is_in}


def regenerate(tx: Transaction, caller: Caller, run_id: str, if_turn: str | None) -> Started:
    """Ask the newest turn's message again, in a new turn in its place, however it ended."""
    run, turn = _newest(tx, caller, run_id, if_turn)
    if turn["left_out"] is None:
        _roll_back(tx, run, turn)
    start = open_turn(tx, run, turn["input"], turn["spec"])
    move_run(tx, run, RunState.QUEUED, turn_id=start.turn_id)
    release_held(tx, run)
    return {"run_id": run_id, "turn_id": start.turn_id, "replaces": turn["id"]}, start


def resume(tx: Transaction, caller: Caller, run_id: str, if_turn: str | None) -> Started:
    """Go on with the newest turn, which was stopped or failed: a new turn that keeps its finished goals."""
    run, turn = _newest(tx, caller, run_id, if_turn)
    if turn["state"] == "completed" or turn["left_out"] is not None:
        raise TurnNotStopped("the newest turn came to its end, or was rolled back")
    start = resume_turn(tx, run, turn)
    return {"run_id": run_id, "turn_id": start.turn_id, "resumes": turn["id"]}, start


def _newest(tx: Transaction, caller: Caller, run_id: str, if_turn: str | None) -> tuple[RowMapping, RowMapping]:
    run, turn = find_parked(tx, caller, run_id, if_turn)
    if turn is None:
        raise TurnNotStopped("the run has no turn")
    return run, turn


def find_parked(
    tx: Transaction, caller: Caller, run_id: str, if_turn: str | None
) -> tuple[RowMapping, RowMapping | None]:
    """The run, which is parked, and its newest turn that a message has started; None if it was imported without any.

    ``if_turn`` may also name a compaction that came behind that turn.
    """
    run = find_run(tx.connection, caller, run_id)
    if run["state"] in TERMINAL:
        raise RunIsOver("start a new run in the same session to go on")
    turn = _newest_turn(tx, run)
    if if_turn is not None and if_turn not in (run["turn_id"], turn and turn["id"]):
        raise TurnIsOver()
    if not run["interactive"]:
        raise NotInteractive("a batch run has no turn behind it to work on")
    if run["state"] != RunState.AWAITING_INPUT:
        raise RunIsBusy("stop the turn first, or wait for its end")
    return run, turn


def _newest_turn(tx: Transaction, run: RowMapping) -> RowMapping | None:
    turn = read_turn(tx, run["turn_id"]) if run["turn_id"] is not None else None
    if turn is None or kind_of(turn) == "message":
        return turn
    is_message = or_(turns.c.left_out.is_(None), turns.c.left_out != "compaction")
    query = select(turns).where(turns.c.session_id == run["session_id"], turns.c.run_id == run["id"], is_message)
    return tx.connection.execute(query.order_by(turns.c.number.desc()).limit(1)).mappings().first()


def _roll_back(tx: Transaction, run: RowMapping, turn: RowMapping) -> None:
    leave_out(tx, turn["id"], "rolled_back")
    # Of the run, like awaiting_input: nothing of a turn follows its end.
    tx.emit(Event(run["id"], EventType.TURN_ROLLED_BACK, {"rolled_back": turn["id"]}))
