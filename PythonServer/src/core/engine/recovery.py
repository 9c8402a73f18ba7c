"""Settling what a crash left: before the server serves, every turn that was open is parked, ended, or taken up again."""

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import select

from core.cancellation import Cause, CauseWord
from core.session.from_log import outcome_in_log
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.run_state import RunState
from core.session.said import turn_messages
from core.session.surviving import was_waiting_for_answers
from core.session.turn_end import end_turn
from core.session.turns import read_turn, start_of
from core.store.commit import Transaction
from core.store.tables import IS_OPEN, runs
from core.store.writer import Writer
from core.tool.marked import kill_marked
from core.tool.supervised import MARK

log = logging.getLogger(__name__)

#: Seconds that the end of what a lost server's tools have left may take.
SWEEP_S: Final = 2.0

_LOST = StopOrder(Cause(CauseWord.SERVER_LOST, "the server ended while the turn was running"))

#: What the user is told of a turn that could not be settled.
_UNREADABLE: Final = "the server ended while the turn was running, and what it had done could not be read"


def settle_lost_turns(writer: Writer) -> list[TurnStart]:
    """End every open turn with cause ``server_lost``, or the stop that it had; returns the turns that follow.

    ``StoreError`` if the store takes no writes. What cannot be settled for a reason of its own keeps no other turn, and
    no server, from going on: it fails, or is left open, and the log names it.
    """
    open_turns = writer.transact(_open_turns).result()
    calls: list[str] = []
    following = [_settle_or_fail(writer, run_id, turn_id, calls) for run_id, turn_id in open_turns]
    # Their supervisors have ended them when that server died, but for one that its own command had suspended.
    if calls and not kill_marked([f"{MARK}={call_id}" for call_id in calls], SWEEP_S):
        log.error("a process that an earlier server's tool had started could not be ended")
    going_on = {start.turn_id for start in following if start is not None} & {turn_id for _, turn_id in open_turns}
    if open_turns:
        log.warning("open turns that an earlier server left: %d, taken up again: %d", len(open_turns), len(going_on))
    return [start for start in following if start is not None]


def _open_turns(tx: Transaction) -> list[tuple[str, str]]:
    return [(row.id, row.turn_id) for row in tx.connection.execute(select(runs.c.id, runs.c.turn_id).where(IS_OPEN))]


def _settle_or_fail(writer: Writer, run_id: str, turn_id: str, calls: list[str]) -> TurnStart | None:
    try:
        return writer.transact(partial(_settle, run_id=run_id, calls=calls)).result()
    except Exception as error:
        if not writer.is_healthy:
            raise  # it is the store, and no fault of this turn
        log.error("the turn %s of %s could not be settled: %s", turn_id, run_id, type(error).__name__)
    try:
        return writer.transact(partial(_fail, run_id=run_id, turn_id=turn_id)).result()
    except Exception as error:
        if not writer.is_healthy:
            raise
        log.error("%s is left open, for its turn could not be ended either: %s", run_id, type(error).__name__)
        return None


def _settle(tx: Transaction, run_id: str, calls: list[str]) -> TurnStart | None:
    run = tx.connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one()
    turn = read_turn(tx, run["turn_id"])
    if run["state"] == RunState.QUEUED and run["options"].get("on_server_lost") == "resume":
        return start_of(run, turn)  # nothing of it had begun
    if was_waiting_for_answers(tx.connection, run, turn):
        return replace(start_of(run, turn), is_revived=True)
    order = StopOrder.from_json(turn["stop"]) if turn["stop"] else _LOST
    outcome = outcome_in_log(tx, turn, order)
    calls += [event.call_id for event in outcome.closing if event.call_id is not None]
    return end_turn(tx, run_id, turn["id"], outcome)[1]


def _fail(tx: Transaction, run_id: str, turn_id: str) -> TurnStart | None:
    """The plainest end, which reads nothing of what the turn has logged: it has failed, if it was not being stopped."""
    outcome = TurnOutcome("failed", turn_messages([], "failed", None), error=_UNREADABLE)
    return end_turn(tx, run_id, turn_id, outcome)[1]
