"""One call as the log keeps it.

Times are seconds since the epoch as floats, taken from ``time.time()``: a client on the same machine can
compare them with its own.
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CloseReason(StrEnum):
    """How a call ended."""

    OPEN = "open"
    #: The whole answer was written, an error answer too.
    FINISHED = "finished"
    #: It ended with 499 because its token was named to ``/v1/cancel``.
    CANCELLED = "cancelled"
    #: The client hung up first.
    CLIENT_GONE = "client_gone"
    #: We cut the connection.
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class LoggedCall:
    """One chat-completion request and what became of it."""

    id: str
    token: str | None
    script: str
    key: str
    model: str
    stream: bool
    messages: list[dict[str, Any]]
    tools: list[str]
    must_call: str | None
    started_at: float
    #: Status of the answer once its headers are written.
    status: int | None = None
    first_byte_at: float | None = None
    asked_to_cancel_at: float | None = None
    closed_at: float | None = None
    close_reason: CloseReason = CloseReason.OPEN
    bytes_sent: int = 0
    tokens_after_stop: int = 0
    #: One time for each token written.
    token_times: "array[float]" = field(default_factory=lambda: array("d"))

    def as_json(self, *, with_messages: bool = True, with_token_times: bool = False) -> dict[str, Any]:
        """The record as ``GET /log`` gives it."""
        hidden = {"token_times"} if with_messages else {"token_times", "messages", "tools"}
        record = {name: getattr(self, name) for name in self.__slots__ if name not in hidden}
        record["tokens_sent"] = len(self.token_times)
        if with_token_times:
            record["token_times"] = self.token_times.tolist()
        return record
