"""What is done with a run besides stopping it: messages into it, and looks into its inbox."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection

from core.engine.embedded import Engine
from core.session import queries
from core.session.access import Caller, find_run
from core.session.starts import accept_message


class Talking:
    """The use cases of messages."""

    def __init__(self, engine: Engine, reading: Callable[[], AbstractContextManager[Connection]]) -> None:
        """``reading``: a connection to read what is committed."""
        self._engine = engine
        self._reading = reading

    def post_input(
        self, caller: Caller, run_id: str, text: str, if_turn: str | None, client_message_id: str | None
    ) -> dict[str, Any]:
        """A message to a run: starts a turn, or waits for the end of the one that runs."""
        return self._engine.accept(lambda tx: accept_message(tx, caller, run_id, text, if_turn, client_message_id))

    def get_inbox(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """The messages that wait."""
        with self._reading() as connection:
            return {"messages": queries.inbox(connection, find_run(connection, caller, run_id)["id"])}
