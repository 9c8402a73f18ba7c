"""What the gateway saw and did: one record a call, counters, and waits that are woken instead of polling."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable

from de2generator.call_counts import Condition, Counts
from de2generator.logged_call import CloseReason, LoggedCall


class CallLog:
    """The log of one gateway. For the event loop's thread only."""

    #: Closed records beyond this many are forgotten, the oldest first.
    MOST_KEPT = 10_000

    def __init__(self) -> None:
        self._calls: dict[str, LoggedCall] = {}
        self._numbers = itertools.count(1)
        self._counts: defaultdict[str, Counts] = defaultdict(Counts)
        self._waiters: dict[asyncio.Future[None], Condition] = {}
        self._listeners: set[Callable[[str, LoggedCall], None]] = set()

    @staticmethod
    def now() -> float:
        """The log's clock."""
        return time.time()

    def new_id(self) -> str:
        """An id that no call of this log has had."""
        return f"call_{next(self._numbers)}"

    def add(self, call: LoggedCall) -> None:
        """A call has arrived."""
        if len(self._calls) >= self.MOST_KEPT:
            self._forget_oldest()
        self._calls[call.id] = call
        for counts in self._counts_of(call):
            counts.calls += 1
            counts.open += 1
        self._tell("opened", call)

    def note_asked(self, call: LoggedCall) -> None:
        """Its cancel was requested; only the first request counts."""
        if call.asked_to_cancel_at is not None:
            return
        call.asked_to_cancel_at = self.now()
        for counts in self._counts_of(call):
            counts.asked += 1
        self._tell("asked_to_cancel", call)

    def note_tokens(self, call: LoggedCall, number: int) -> None:
        """Tokens are being written now."""
        call.token_times.extend([self.now()] * number)
        if call.asked_to_cancel_at is not None:
            call.tokens_after_stop += number
        for counts in self._counts_of(call):
            counts.tokens += number
        if self._waiters:
            self._wake()

    def close(self, call: LoggedCall, reason: CloseReason) -> None:
        """A call has ended."""
        call.closed_at = self.now()
        call.close_reason = reason
        for counts in self._counts_of(call):
            counts.open -= 1
            counts.closed += 1
        self._tell("closed", call)

    def calls(self, key: str = "", *, only_open: bool = False) -> list[LoggedCall]:
        """The records in order of arrival."""
        return [
            call
            for call in self._calls.values()
            if (not key or call.key == key) and (not only_open or call.close_reason is CloseReason.OPEN)
        ]

    def clear(self, key: str = "") -> int:
        """Forget the closed calls; tells how many."""
        closed = [call for call in self.calls(key) if call.close_reason is not CloseReason.OPEN]
        for call in closed:
            del self._calls[call.id]
        self._recount()
        return len(closed)

    async def wait(self, condition: Condition, timeout_s: float) -> bool:
        """Wait until the condition holds; False when the time was over first."""
        if condition.is_met(self._counts[condition.key]):
            return True
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[woken] = condition
        try:
            await asyncio.wait_for(woken, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(woken, None)
        return True

    def listen(self, listener: Callable[[str, LoggedCall], None]) -> Callable[[], None]:
        """Call ``listener(event, call)`` at ``opened``, ``asked_to_cancel`` and ``closed``.

        Returns how to leave.
        """
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def _counts_of(self, call: LoggedCall) -> tuple[Counts, ...]:
        everything = self._counts[""]
        return (everything, self._counts[call.key]) if call.key else (everything,)

    def _tell(self, event: str, call: LoggedCall) -> None:
        for listener in self._listeners:
            listener(event, call)
        self._wake()

    def _wake(self) -> None:
        for woken, condition in list(self._waiters.items()):
            if condition.is_met(self._counts[condition.key]) and not woken.done():
                woken.set_result(None)

    def _recount(self) -> None:
        self._counts.clear()
        for call in self._calls.values():
            for counts in self._counts_of(call):
                counts.add(call)
        self._wake()

    def _forget_oldest(self) -> None:
        closed = [call for call in self._calls.values() if call.close_reason is not CloseReason.OPEN]
        for call in closed[: self.MOST_KEPT // 10]:
            del self._calls[call.id]
        self._recount()
