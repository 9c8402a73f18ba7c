"""The stop matrix: what a kind of call is, the phases in which a stop may find it, and what must be there afterwards.

The kinds are in ``stop_matrix_models.py``, ``stop_matrix_tools.py`` and ``stop_matrix_functions.py``, what ends them in
``stop_matrix_stops.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tests.support.api_client import Api, Run
from tests.support.mcp_kit import StandInLog
from tests.support.model_server import ModelServer
from tests.support.raw_server import RawServer
from tests.support.servers import LocalServer, gate

#: A turn is over so many seconds after its stop: 1.8 s, and what a busy machine takes. Whatever is deaf is so for longer.
BOUND_S = 6.0
#: In the patterns of results: what the server says in place of a result, by the cause of the stop.
STOPPED = "{stopped}"
#: A gate of the matrix itself: the whole answer of a model is read, and nobody has been told.
AFTER_LAST_BYTE = "stop_matrix.after_last_byte"


class Phase(StrEnum):
    """Where the call is when the stop comes."""

    #: Held before it begins.
    EARLY = "early"
    #: It runs, as a witness has seen.
    MID = "mid"
    #: It has finished, and nothing of that is recorded.
    LATE = "late"
    #: It runs, and ignores the stop.
    DEAF = "deaf"


@dataclass
class World:
    """What one cell plays in, and where it looks for the truth afterwards."""

    server: LocalServer
    models: ModelServer
    key: str
    api: Api
    #: Of the MCP server that ``server`` uses, if it does.
    mcp: StandInLog
    raw: RawServer | None = None
    #: ``time.time()`` just before the stop.
    stopped_at: float = 0.0

    @property
    def sub_key(self) -> str:
        """Marks the model calls of sub-agents."""
        return f"{self.key}-s"

    def model_calls(self) -> int:
        """All that were made so far."""
        return len(self.models.calls(key=self.key)) + len(self.models.calls(key=self.sub_key))


@dataclass(frozen=True)
class Expected:
    """What must be there after a stop in one phase."""

    #: A pattern (``fnmatch``) of ``kind outcome: how`` for each item of the receipt but the goal that made the call.
    receipt: tuple[str, ...] = ()
    #: A pattern for each result of a tool; ``STOPPED`` is what stands for a result that the stop took away.
    results: tuple[str, ...] = ()
    #: Model calls made when the phase is reached; after the stop there must be no more.
    model_calls: int = 1
    #: Threads that are left behind.
    abandoned: int = 0


class Kind(ABC):
    """A row: one kind of call, how it is set going, how it is known to run, and how the world tells what became of it."""

    name: ClassVar[str]
    provider: ClassVar[str] = "de2generator"
    agent: ClassVar[str] = "default"
    #: What TOOLS_ALLOWED must name.
    tools: ClassVar[tuple[str, ...]] = ()
    early_gate: ClassVar[str] = "tool_batch.before_tools"
    late_gate: ClassVar[str] = "tool_batch.before_result"
    #: The call has a time limit of its own; else the turn's deadline is its limit.
    has_own_limit: ClassVar[bool] = False
    #: The phases that it has.
    expected: ClassVar[Mapping[Phase, Expected]]

    @abstractmethod
    def line(self, world: World, phase: Phase) -> str:
        """The message that sets it going."""

    @abstractmethod
    def wait_running(self, world: World, run: Run, phase: Phase) -> None:
        """Until a witness has seen it at work."""

    @abstractmethod
    def check_world(self, world: World, run: Run, phase: Phase, stop: Stop) -> None:
        """What really became of it, as everybody else than the server tells it. The turn is over."""

    @contextmanager
    def peer(self, world: World, phase: Phase) -> Iterator[None]:
        """Around a cell: whoever is on the other side of the call."""
        yield

    def let_go(self, world: World, phase: Phase) -> None:  # noqa: B027  # most have nothing to do here
        """What was deaf may come to its end."""

    @contextmanager
    def held(self, world: World, phase: Phase, **fields: Any) -> Iterator[Run]:
        """A run that stands in that phase; a gate that holds it there opens at the end of the block."""
        if phase in (Phase.MID, Phase.DEAF):
            run = self._start(world, phase, **fields)
            self.wait_running(world, run, phase)
            yield run
            return
        with gate(self.early_gate if phase is Phase.EARLY else self.late_gate) as holding:
            run = self._start(world, phase, **fields)
            holding.wait_reached()
            yield run

    def _start(self, world: World, phase: Phase, **fields: Any) -> Run:
        return world.api.start(self.line(world, phase), agent=self.agent, **fields)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Stop:
    """A column: what ends the turn. ``send`` returns when the scope of the turn is stopped."""

    name: str
    cause: str
    #: The run's state afterwards.
    state: str
    send: Callable[[World, Run], None]
    #: Of the run that is to be stopped.
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name
