"""What is done with a run besides stopping it: messages into it, and looks into its inbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from core.cancellation import Verdict
from core.engine.embedded import Engine
from core.engine.stopping import result_of
from core.errors import RunIsOver, StopNotRecorded, StoreError, TurnIsOver
from core.gates import pause_at
from core.session import inbox, queries
from core.session.access import Caller, find_run
from core.session.messages import Accepted, StopFirst, accept_message, accept_with_stop, stop_for_message
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
        if isinstance(accepted, StopFirst):
            accepted = self._interrupt(caller, run_id, message, turn)
        elif accepted.disposition == "interrupted" and turn is not None:  # it has begun since
            turn.stop(stop_for_message())
        if turn is None:  # it has just ended, or is not yet known here: then it finds the message in its row
            return accepted.to_json()
        if accepted.letter is not None and turn.mail.add(accepted.letter):
            return accepted.to_json() | {"disposition": "redirected"}
        if accepted.disposition == "interrupted":
            return accepted.to_json() | {"receipt": turn.stopping.receipt_so_far}
        return accepted.to_json()

    def _interrupt(self, caller: Caller, run_id: str, message: NewMessage, turn: Turn | None) -> Accepted:
        """Stop the turn, and accept the message with the stop's record, which is behind all that the turn did before.

        ``StopNotRecorded`` if that takes too long: the turn is stopped all the same, and the message is not taken; or
        it is being written at this moment, and so it must not be accepted once more.
        """
        if turn is not None:
            verdict = turn.stop(stop_for_message(), beside=lambda tx: accept_with_stop(tx, run_id, message))
            pause_at("talking.stopped")
            if verdict is Verdict.FIRST and (accepted := _recorded_with(turn)) is not None:
                return accepted
            if not turn.scope.is_stopped:  # it had finished, and is not to read as stopped
                self._engine.stopping.wait_end(turn)
        # It has ended, or joined another stop: there is nothing left to interrupt.
        anew = self._accept(caller, run_id, replace(message, mode="queue"))
        assert isinstance(anew, Accepted)
        return anew

    def _accept(self, caller: Caller, run_id: str, message: NewMessage) -> Accepted | StopFirst:
        def decide(tx: Transaction) -> tuple[Accepted | StopFirst, TurnStart | None]:
            return accept_message(tx, caller, run_id, message, lambda turn_id: self._turn(run_id, turn_id))

        return self._engine.accept(decide)

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
        with self._reading() as connection:
            find_run(connection, caller, run_id)  # before anything of its turn is held up

        def move(tx: Transaction) -> list[dict[str, Any]]:
            run = find_run(tx.connection, caller, run_id)
            inbox.move(tx, run, message_id, position)
            return queries.inbox(tx.connection, run["id"])

        while True:
            turn = self._engine.live_turn(run_id)
            pause_at("talking.before_move")
            moved = self._engine.decide(move) if turn is None else turn.mail.move(lambda: self._engine.decide(move))
            newer = self._engine.live_turn(run_id)
            if newer is None or newer is turn:
                return {"messages": moved}
            # It may have begun with the order of before: it is to know the new one.


def _recorded_with(turn: Turn) -> Accepted | None:
    """The message that was recorded with the turn's stop; None if the turn's end was recorded before both."""
    recorded = turn.stopping.recorded
    assert recorded is not None  # by the stop that was the first
    try:
        accepted: Accepted | None = result_of(recorded).beside
    except (TurnIsOver, RunIsOver):
        return None
    except StoreError:
        start, receipt = turn.start, turn.stopping.receipt_so_far
        raise StopNotRecorded(
            "the message was not taken; send it again, with its client_message_id",
            run_id=start.run_id, turn_id=start.turn_id, stopped=True, receipt=receipt,
        ) from None  # fmt: skip
    return accepted
