"""The message matrix: the moments in which a message may come to a run, and what must become of it.

The moments are in ``message_moments.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from core.gates import pause_at
from core.provider.provider import Text
from tests.support.api_client import Api, Run
from tests.support.model_server import ModelServer
from tests.support.servers import LocalServer

#: Gates of the matrix itself: the first piece of an answer has come and nobody was told; a piece of text was told.
BEFORE_FIRST, AFTER_TEXT = "message_matrix.before_first", "message_matrix.after_text"

MODES = ("queue", "steer", "redirect", "interrupt")

#: The modes that end an answer: where one is being given, nothing but the message may end it.
CUTTING = ("redirect", "interrupt")


class Way(StrEnum):
    """The way that a message takes."""

    #: It starts a turn at once.
    STARTS = "starts"
    #: It starts the next turn, when the open one has come to its end.
    FOLLOWS = "follows"
    #: It goes into the turn at work.
    GOES_IN = "goes in"
    #: The open turn is stopped for it, and it starts the next one.
    REPLACES = "replaces"


@dataclass(frozen=True)
class Expected:
    """What must be there afterwards."""

    #: The answer's disposition.
    disposition: str
    way: Way
    #: Roles in the first request that has the message, as a letter each.
    shape: str
    #: How many requests were made in all.
    calls: int
    #: How the turn that was open ended, if the message did not end it.
    end: str = "turn_completed"


@dataclass
class World:
    """What one cell plays in."""

    server: LocalServer
    models: ModelServer
    key: str
    api: Api
    provider: str


class Moment(ABC):
    """A column: where the run is when the message comes, forced by gates, and what each mode makes of it there."""

    name: ClassVar[str]
    #: Those for which it is played.
    providers: ClassVar[tuple[str, ...]] = ("de2generator",)
    expected: ClassVar[Mapping[str, Expected]]
    #: Whether an answer is being given that the modes which cut end.
    is_answering: ClassVar[bool] = False
    #: Whether the request is the transcript; else the moment looks at it itself.
    is_plain: ClassVar[bool] = True
    #: Of the message, where requests for plans are made.
    planning: ClassVar[str] = "none"

    @abstractmethod
    def held(self, world: World, mode: str) -> AbstractContextManager[Run]:
        """A run that is there until the block ends, or a message of that mode ends it."""

    def check(self, world: World, run: Run, mode: str) -> None:  # noqa: B027  # most have nothing more to say
        """What else must be true of this moment."""


@dataclass(frozen=True)
class Cell:
    """One square."""

    moment: Moment
    mode: str
    provider: str

    @property
    def expected(self) -> Expected:
        """What must become of it."""
        return self.moment.expected[self.mode]

    def __str__(self) -> str:
        return f"{self.mode}-{self.moment.name}-{self.provider}"


def hold_answers(server: LocalServer) -> None:
    """Let gates hold the server's model calls before and in the middle of an answer."""
    provider: Any = server.main._provider
    stream = provider.stream

    def held(request: Any, call: Any) -> Iterator[Any]:
        with closing(stream(request, call)) as deltas:
            for number, delta in enumerate(deltas):
                if not number:
                    pause_at(BEFORE_FIRST)
                yield delta
                if isinstance(delta, Text):
                    pause_at(AFTER_TEXT)

    provider.stream = held
