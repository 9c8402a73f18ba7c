"""What the tests of the moves over a store share: each move as one call, and what it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from core.cancellation import Cause, CauseWord
from core.errors import ServerError
from core.session.queries import inbox
from core.session.records import StopOrder, StopRecord, TurnOutcome, TurnStart
from core.session.stop_moves import request_stop
from core.session.turn_end import end_turn
from core.session.turns import begin_turn
from tests.support.core_kit import ALICE, Store, User, send

STOP = StopOrder(Cause(CauseWord.USER, "enough"))
TERMINATE = StopOrder(Cause(CauseWord.USER), ends_run=True)
SAID = [{"role": "assistant", "content": "done"}]


def types_of(store: Store, run_id: str, after: int = 0) -> list[str]:
    """Types of a run's committed events, behind the first ``after``."""
    return [each.type for each in store.events(run_id)[after:]]


def data_of(store: Store, run_id: str, event_type: str) -> dict[str, Any]:
    """The newest event of a type."""
    found = [json.loads(each.json) for each in store.events(run_id) if each.type == event_type]
    return dict(found[-1])


def begin(store: Store, start: TurnStart) -> StopOrder | None:
    """Record that the turn runs; a stop that came before."""
    return store.decide(lambda tx: begin_turn(tx, start.run_id))


def stop(store: Store, start: TurnStart, order: StopOrder = STOP) -> bool:
    """Ask the turn to stop; whether there was something to stop."""
    return stop_record(store, start, order).is_stopped


def stop_record(store: Store, start: TurnStart, order: StopOrder = STOP) -> StopRecord:
    """The same, and what became of the messages that waited."""
    return store.decide(lambda tx: request_stop(tx, start.run_id, start.turn_id, order))


def finish(
    store: Store, start: TurnStart, state: str = "completed", order: StopOrder | None = None, error: str | None = None
) -> tuple[TurnOutcome, TurnStart | None]:
    """Record the turn's end: what stands as its end, and the turn that follows."""
    outcome = TurnOutcome(state, SAID, order, [], error)
    return store.decide(lambda tx: end_turn(tx, start.run_id, start.turn_id, outcome))


def say(
    store: Store, start: TurnStart, text: str, if_turn: str | None = None, client_id: str | None = None,
    caller: User = ALICE,
) -> tuple[dict[str, Any], TurnStart | None]:  # fmt: skip
    """Send a message: the answer, and the turn that it started."""
    return store.decide(lambda tx: send(tx, start.run_id, text, if_turn, client_id, caller))


def refused(kind: type[ServerError], work: Callable[[], Any]) -> ServerError:
    """The error with which the move was refused."""
    with pytest.raises(kind) as caught:
        work()
    return caught.value


def waiting(store: Store, start: TurnStart) -> list[tuple[str, bool]]:
    """Text of each waiting message, and whether it is held."""
    with store.database.connect() as connection:
        return [(each["text"], each["held"]) for each in inbox(connection, start.run_id)]
