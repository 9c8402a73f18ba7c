"""Compacting the history of a parked run on request, and taking that back."""

from __future__ import annotations

from typing import Any

from core.engine.embedded import Engine
from core.session.access import Caller
from core.session.compaction_moves import start_compaction, undo_compaction


class Compactions:
    """The use cases of compaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
        """Start a turn that compacts the history."""
        return self._engine.accept(lambda tx: start_compaction(tx, caller, run_id, if_turn))

    def undo(self, caller: Caller, run_id: str, if_turn: str | None) -> dict[str, Any]:
        """Take back the newest compaction."""
        return self._engine.accept(lambda tx: (undo_compaction(tx, caller, run_id, if_turn), None))
