"""Questions from the user's side: what is asked, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from core.clock import iso
from core.engine.embedded import Engine
from core.gates import pause_at
from core.session.access import Caller, find_run
from core.session.questions import Resolution, resolve_question
from core.store.commit import Transaction
from core.store.tables import questions


class Answering:
    """The use cases of questions."""

    def __init__(self, engine: Engine, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        """``reading``: a connection to read what is committed."""
        self._engine = engine
        self._reading = reading

    def resolve(self, caller: Caller, run_id: str, question_id: str, resolution: Resolution) -> dict[str, Any]:
        """Answer or decline a question; durable when it returns, and what asked has been woken.

        Also while the server goes down: then the next one takes the answer up.
        """
        def decide(tx: Transaction) -> RowMapping:
            row = resolve_question(tx, caller, run_id, question_id, resolution)
            turn = self._engine.live_turn(run_id)
            if turn is not None:  # before it is durable: who is woken looks by a decision that lies behind this one
                turn.questions.wake(row["call_id"])
            return row

        pause_at("answering.before_decision")
        row = self._engine.decide(decide)
        return {
            "interrupt_id": row["id"], "run_id": run_id, "disposition": row["state"],
            "settled_at": iso(row["settled_at"]),
        }  # fmt: skip

    def list_questions(self, caller: Caller, run_id: str, state: str | None) -> dict[str, Any]:
        """The questions of a run, newest first; only those with that state, if one is given."""
        with self._reading() as connection:
            query = select(questions).where(questions.c.run_id == find_run(connection, caller, run_id)["id"])
            if state is not None:
                query = query.where(questions.c.state == state)
            rows = connection.execute(query.order_by(questions.c.id.desc())).mappings().all()
        return {"interrupts": [_view(row) for row in rows]}


def _view(row: RowMapping) -> dict[str, Any]:
    return {
        "interrupt_id": row["id"], "turn_id": row["turn_id"], "goal_id": row["goal_id"], "call_id": row["call_id"],
        "status": row["state"], "question": row["question"], "options": row["options"], "answer": row["answer"],
        "comment": row["comment"], "cause": row["cause"], "created_at": iso(row["created_at"]),
        "expires_at": _time(row["expires_at"]), "settled_at": _time(row["settled_at"]),
    }  # fmt: skip


def _time(at: float | None) -> str | None:
    return iso(at) if at is not None else None
