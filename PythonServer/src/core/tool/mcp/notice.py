"""Whether the cancel notice of a call has left: over HTTP only the transport knows it, and tells it to the call.

They meet through the context: the SDK sends what a task says in the context of that task.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final

_notice: ContextVar[Notice | None] = ContextVar("mcp_notice", default=None)
#: Seconds until the call says what there is; shorter than what its thread waits for.
WAIT_S: Final = 0.4


class Notice:
    """Of one call. Make it in the task of the call."""

    def __init__(self) -> None:
        self._has_left = False
        self._fault: str | None = None
        self._over = asyncio.Event()
        _notice.set(self)

    async def fault(self) -> str | None:
        """Why it could not be sent, or None: the server has it. Bounded."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._over.wait()
        except TimeoutError:
            return None if self._has_left else "it did not leave in time"
        return self._fault

    async def watch(self, event: str, _: object) -> None:
        """What the transport says of a request on its way."""
        if event.endswith("send_request_body.complete"):
            self._has_left = True

    def end(self, fault: str | None) -> None:
        """It is answered, or has failed."""
        self._fault = fault
        self._over.set()

    @property
    def has_left(self) -> bool:
        """Whether all of it was written."""
        return self._has_left


def current_notice() -> Notice | None:
    """Of the call in whose context this runs."""
    return _notice.get()
