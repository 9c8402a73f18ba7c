"""What is done with a run besides stopping it: messages into it, and looks into its inbox."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from core.cancellation import Verdict
from core.engine.embedded import Engine
from core.engine.stopping import STORE_TIMEOUT_S
from core.errors import ServerError
from core.gates import pause_at
from core.session import inbox, queries
from core.session.access import Caller, find_run
from core.session.messages import Accepted, accept_message
from core.session.records import NewMessage, TurnStart
from core.session.turn import Turn
from core.store.commit import Transaction


class Talking:
    """The use cases of messages."""

    def __init__(self, engine: Engine, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        """``reading``: a connection to read what is committed."""
        self._engine = engine
        self._reading = reading

    def post_input(self, caller: Caller, run_id: str, message: NewMessage) -> dict[str, Any]:
        """A message to a run: starts a turn, waits, goes into the turn at work, or takes its place."""
        accepted = self._accept(caller, run_id, message)
        pause_at("talking.accepted")
        turn = self._turn(run_id, accepted.turn_id)
        if accepted.message_id is None:
            accepted = self._interrupt(caller, run_id, message, accepted, turn)
        if turn is None:  # it has just ended, or is not yet known here: then it finds the message in its row
            return accepted.to_json()
        if accepted.letter is not None and turn.mail.add(accepted.letter):
            return accepted.to_json() | {"disposition": "redirected"}
        if accepted.order is not None:
            turn.stop(accepted.order)
            return accepted.to_json() | {"receipt": turn.stopping.receipt_so_far}
        return accepted.to_json()

    def _interrupt(
        self, caller: Caller, run_id: str, message: NewMessage, wish: Accepted, turn: Turn | None
    ) -> Accepted:
        """Stop the turn, and accept the message with the stop's record, which is behind all that the turn did before."""
        if turn is None or wish.order is None:  # it has just ended
            return self._accept(caller, run_id, message, wish.turn_id)
        decided: list[Accepted] = []

        def accept(tx: Transaction) -> None:
            decided.clear()  # it may be tried again
            with contextlib.suppress(ServerError), tx.connection.begin_nested():  # a refusal is none of the stop
                decided.append(self._decide(tx, caller, run_id, message, wish.turn_id)[0])

        is_first = turn.stop(replace(wish.order, also=accept)) is Verdict.FIRST
        pause_at("talking.stopped")
        if is_first and _is_recorded(turn) and decided:
            (accepted,) = decided
            return accepted if accepted.disposition == "duplicate" else replace(accepted, order=wish.order)
        if turn.scope.is_stopped:  # it joined another stop, and waits
            return self._accept(caller, run_id, message, "")
        self._engine.stopping.wait_end(turn)  # it had finished, and is not to read as stopped
        return self._accept(caller, run_id, message, wish.turn_id)

    def _accept(self, caller: Caller, run_id: str, message: NewMessage, stopped: str | None = None) -> Accepted:
        return self._engine.accept(lambda tx: self._decide(tx, caller, run_id, message, stopped))

    def _decide(
        self, tx: Transaction, caller: Caller, run_id: str, message: NewMessage, stopped: str | None
    ) -> tuple[Accepted, TurnStart | None]:
        return accept_message(tx, caller, run_id, message, lambda turn_id: self._turn(run_id, turn_id), stopped)

    def _turn(self, run_id: str, turn_id: str | None) -> Turn | None:
        turn = self._engine.live_turn(run_id)
        return turn if turn is not None and turn.start.turn_id == turn_id else None

    def get_inbox(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """The messages that wait, in the order in which they will be delivered."""
        with self._reading() as connection:
            return {"messages": queries.inbox(connection, find_run(connection, caller, run_id)["id"])}

    def get_message(self, caller: Caller, run_id: str, message_id: str) -> dict[str, Any]:
        """A message of the run, and what became of it."""
        with self._reading() as connection:
            run = find_run(connection, caller, run_id)
            return queries.message_view(inbox.find_message(connection, run["id"], message_id))

    def withdraw_message(self, caller: Caller, run_id: str, message_id: str) -> dict[str, Any]:
        """Take a message back before it is delivered; durable when it returns."""
        def withdraw(tx: Transaction) -> dict[str, Any]:
            inbox.withdraw(tx, find_run(tx.connection, caller, run_id), message_id)
            return {"message_id": message_id, "state": "withdrawn"}

        return self._engine.decide(withdraw)

    def move_message(self, caller: Caller, run_id: str, message_id: str, position: int) -> dict[str, Any]:
        """Put a message at another place among those that wait; returns them in their new order."""
        def move(tx: Transaction) -> dict[str, Any]:
            run = find_run(tx.connection, caller, run_id)
            inbox.move(tx, run, message_id, position)
            return {"messages": queries.inbox(tx.connection, run["id"])}

        return self._engine.decide(move)


def _is_recorded(turn: Turn) -> bool:
    """Whether its stop is durable, with all that was decided with it."""
    try:
        return turn.stopping.wait_recorded(STORE_TIMEOUT_S) is not None
    except (ServerError, FutureTimeoutError):
        return False
