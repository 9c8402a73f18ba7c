"""Compacting the history of a session: the model makes the summary beside the plan, and one decision commits it.

The commit is a fence. A stop that the writer met before it makes it void, so that nothing has changed; one that comes
while it is being written is recorded behind it; one that comes later finds a call that had finished.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import insert

from core.agent.agent import Agent
from core.errors import ProviderError, ServerError, TurnIsOver
from core.events import Event, EventType
from core.gates import pause_at
from core.ids import new_id
from core.plan.goal import Goal
from core.provider.provider import ModelRequest
from core.session.compaction import Compaction, Cut, History, find_cut, shortened, tokens_of
from core.session.goal_work import agent_of, asked_by
from core.session.records import TurnStart
from core.session.run_state import RunState
from core.session.summary import read_summary, summary_messages
from core.session.turn import Turn
from core.session.turns import emit_in_turn, read_run
from core.store.commit import Transaction
from core.store.tables import compactions

log = logging.getLogger(__name__)

#: What the event of a compaction tells that had nothing to leave out.
_NOTHING: Final = {"compaction_id": None, "first": None, "last": None, "messages": 0, "summary": None}


def compact(turn: Turn, agent: Agent, history: History, in_force: Compaction | None) -> Compaction | None:
    """Leave out what can be left out of the whole history; the compaction, which is durable, or None if that is nothing.

    ``Cancelled`` if the turn was stopped, ``ServerError`` if no summary was made: then nothing has changed, unless the
    stop came behind the commit.
    """
    cut = find_cut(history, in_force)
    if cut is None:
        return None
    with turn.protected():
        made = Compaction(cut.first, cut.last, _summarise(turn, agent, cut))
        tokens = {
            "before_tokens": tokens_of(shortened(history, in_force)),
            "after_tokens": tokens_of(shortened(history, made)),
        }
        pause_at("compaction.before_commit")
        # No time limit: the writer answers always, be it that the store failed, and a stop ends the wait.
        turn.scope.wait_for(turn.record(lambda tx: commit(tx, turn.start, made, tokens)))
        pause_at("compaction.after_commit")
    return made


def compact_on_request(turn: Turn, agent: Agent, history: History, in_force: Compaction | None) -> None:
    """The whole work of a turn that was started for it."""
    if compact(turn, agent, history, in_force) is None:
        tokens = tokens_of(shortened(history, in_force))
        turn.emit(EventType.COMPACTION, {**_NOTHING, "before_tokens": tokens, "after_tokens": tokens})


def fitting(
    turn: Turn, agent: Callable[[], Agent], history: History, in_force: Compaction | None, limit: int
) -> History:
    """The history as a model is sent it, compacted first if it is longer than ``limit`` tokens; 0: it never is.

    ``Cancelled`` if the turn was stopped. If no summary can be made, the turn goes on with what there is.
    """
    if limit and tokens_of(shortened(history, in_force)) > limit:
        try:
            in_force = compact(turn, agent(), history, in_force) or in_force
        except ServerError as error:
            log.warning("%s: the history was not compacted: %s", turn.start.turn_id, error.code)
    return shortened(history, in_force)


def _summarise(turn: Turn, agent: Agent, cut: Cut) -> str:
    made: list[str] = []

    def ask(goal: Goal) -> None:
        request = ModelRequest(summary_messages(cut.older, cut.messages), agent.profile.model)
        # Nobody is shown the text; that it comes is progress.
        asked = asked_by(goal, None, lambda text, scope: turn.activity.touch())
        made.append(read_summary(agent_of(goal).ask(lambda: request, asked, turn).text))

    goal = turn.run_aside("compaction", agent, ask)
    if not made:
        raise ProviderError(goal.error or "the gateway cancelled the request for a summary")
    return made[0]


def commit(tx: Transaction, start: TurnStart, made: Compaction, tokens: dict[str, int]) -> None:
    """Put it in force. ``TurnIsOver`` if the turn has ended, or a stop of it is recorded."""
    pause_at("compaction.committing")
    if read_run(tx, start.run_id)["state"] == RunState.STOPPING:
        raise TurnIsOver()
    compaction_id = new_id("k")
    row: dict[str, Any] = {"first": made.first, "last": made.last, "summary": made.summary}
    about = {"compaction_id": compaction_id, **row, "messages": made.last - made.first, **tokens}
    emit_in_turn(tx, Event(start.run_id, EventType.COMPACTION, about, start.turn_id))
    tx.connection.execute(
        insert(compactions).values(
            id=compaction_id, session_id=start.session_id, run_id=start.run_id, created_at=time.time(), **row
        )
    )
