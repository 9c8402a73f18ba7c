"""What a script is given to answer one call."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from de2generator.chat_request import ChatRequest
from de2generator.logged_call import LoggedCall
from de2generator.replies import WholeReply
from de2generator.reply import Reply
from de2generator.script_line import ScriptLine


class CancelManner(Enum):
    """What ``/v1/cancel`` does for a call."""

    #: Answer ``cancelled`` and end the call.
    OBEY = auto()
    #: Never answer; the call goes on.
    DEAF = auto()
    #: Answer 500; the call goes on.
    REFUSE = auto()


@dataclass(slots=True)
class Scene:
    """One call on stage: the request, the reply, and the options of its script."""

    chat: ChatRequest
    call: LoggedCall
    reply: Reply
    line: ScriptLine
    #: Makes a reply in one piece, also where a stream was asked.
    make_whole: Callable[[], WholeReply]
    #: How often a ``busy`` was refused, by script and key.
    refusals: Counter[tuple[str, str]]
    tokens_per_second: float
    #: What a strict provider would refuse in the request, or None.
    find_fault: Callable[[], str | None]
    manner: CancelManner = CancelManner.OBEY
    #: Whether ``/v1/cancel`` has ended the call.
    is_cancelled: bool = False
    task: asyncio.Task[object] | None = field(default=None)

    def cancel(self) -> bool:
        """End the call with 499; False if that was done before."""
        if self.is_cancelled:
            return False
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()
        return True


Script = Callable[[Scene], Awaitable[None]]


class Pace:
    """Waits between tokens so that the rate holds whatever writing costs."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time()

    async def wait(self) -> None:
        """Wait for the next token's time; the first is at once. Always lets other calls run."""
        await asyncio.sleep(max(0.0, self._next - self._loop.time()))
        self._next = max(self._next + self._interval_s, self._loop.time())


async def for_ever() -> None:
    """Wait until the call is cancelled or its client hangs up."""
    await asyncio.get_running_loop().create_future()
