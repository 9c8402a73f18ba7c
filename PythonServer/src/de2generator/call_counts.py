"""How many calls stand where, and what a waiter may wait for."""

from dataclasses import dataclass

from de2generator.logged_call import CloseReason, LoggedCall


@dataclass(slots=True)
class Counts:
    """How many calls stand where, of one key or of all; see :class:`Condition`."""

    calls: int = 0
    open: int = 0
    closed: int = 0
    asked: int = 0
    tokens: int = 0

    def add(self, call: LoggedCall) -> None:
        """Count a whole record."""
        is_open = call.close_reason is CloseReason.OPEN
        self.calls += 1
        self.open += is_open
        self.closed += not is_open
        self.asked += call.asked_to_cancel_at is not None
        self.tokens += len(call.token_times)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a waiter waits for; every number that is given must hold at the same moment.

    ``calls``, ``closed``, ``asked`` (calls whose cancel was requested) and ``tokens`` (written, all calls
    together) hold from that number on. ``open=0`` holds when none is open, ``open=N`` from N on;
    ``open_exactly`` as it says. All count what the log holds now, so what was cleared no longer counts.
    ``key`` narrows it to calls whose script line has ``key=…``; empty means all calls.
    """

    key: str = ""
    calls: int | None = None
    open: int | None = None
    open_exactly: int | None = None
    closed: int | None = None
    asked: int | None = None
    tokens: int | None = None

    def is_met(self, counts: Counts) -> bool:
        """Whether it holds for these counts."""
        if self.open == 0 and counts.open:
            return False
        if self.open_exactly is not None and counts.open != self.open_exactly:
            return False
        return all(
            wanted is None or getattr(counts, name) >= wanted
            for name, wanted in (
                ("calls", self.calls),
                ("open", self.open),
                ("closed", self.closed),
                ("asked", self.asked),
                ("tokens", self.tokens),
            )
        )
