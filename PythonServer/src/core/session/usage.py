"""The sums of usage: of a turn over its calls, of a run over its turns.

Numbers that nobody knows are null and no part of a sum; ``source`` says whether every call was counted by its server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

_NUMBERS = ("input_tokens", "output_tokens")


class UsageSum:
    """Adds up the ``usage`` events of a turn while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[dict[str, Any]] | None = []

    def add(self, data: dict[str, Any]) -> bool:
        """Take one in. False if the sum was drawn already: the event must not be recorded any more."""
        with self._lock:
            if self._calls is None:
                return False
            self._calls.append(data)
            return True

    def draw(self) -> dict[str, Any] | None:
        """The sum, for good; None if no call was made."""
        with self._lock:
            calls, self._calls = self._calls or [], None
        return add_up({**data, "calls": 1} for data in calls)


def add_up(parts: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """``{calls, input_tokens, output_tokens, source}`` of several; None for nothing at all.

    ``source`` is ``observed``, ``estimated`` or ``mixed``.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    sources = {part["source"] for part in known}
    total: dict[str, Any] = {"calls": sum(part["calls"] for part in known)}
    for name in _NUMBERS:
        numbers = [part[name] for part in known if part[name] is not None]
        total[name] = sum(numbers) if numbers else None
    return total | {"source": sources.pop() if len(sources) == 1 else "mixed"}
