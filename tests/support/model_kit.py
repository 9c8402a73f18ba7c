"""Agents without a turn, and providers that answer each model as a test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from core.agent.agent import Agent, AgentProfile
from core.agent.model_catalog import ModelCatalog
from core.agent.model_choice import ModelWish
from core.agent.ports import Asked
from core.call import CallBook
from core.cancellation import Cause, CauseWord, Level, Scope
from core.events import EventType
from core.provider.backoff import RetryPolicy
from core.provider.model_call import ModelCall
from core.provider.provider import Delta, Finish, ModelRequest, Text

USER = Cause(CauseWord.USER)
HELLO = [{"role": "user", "content": "hello"}]
AT_ONCE = RetryPolicy(max_attempts=3, base_s=0.0)

Said = list[Delta] | BaseException
#: What a model does: what it says, or code that says it; each entry is for one request, the last one for all others.
Script = Callable[[ModelCall], Said]


class Workers:
    """Stands for the pool: nobody needs a place."""

    abandoned = 0

    @contextlib.contextmanager
    def resting(self, scope: Scope) -> Iterator[None]:
        """A wait holds no place."""
        yield


class Port:
    """A turn that only listens."""

    def __init__(self) -> None:
        self.calls = CallBook()
        self.workers: Any = Workers()
        self.events: list[tuple[EventType, dict[str, Any]]] = []

    def emit(self, event_type: EventType, data: dict[str, Any], *_: Any) -> None:
        """Note it."""
        self.events.append((event_type, data))

    def of(self, event_type: EventType) -> list[dict[str, Any]]:
        """The events of one type."""
        return [data for kind, data in self.events if kind is event_type]

    def begin_request(self, owner: object, call: ModelCall) -> None:
        """Nobody talks to it."""

    def end_request(self, owner: object, is_cut: bool) -> None:
        """Nobody talked to it."""

    def note_call(self, *_: Any) -> None:
        """No tools here."""
        raise AssertionError("no tools")

    note_output = note_result = delegate = note_call


class Models:
    """A provider: each model answers by its script, and all requests are noted."""

    can_be_asked = False

    def __init__(self, scripts: dict[str, Said | Script], listed: Callable[[ModelCall], list[str]] | None = None) -> None:
        self._scripts = scripts
        self._listed = listed
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self.lists = 0

    def stream(self, request: ModelRequest, call: ModelCall) -> Generator[Delta, None, None]:
        """What the model's script says."""
        with self._lock:
            self.asked.append(request.model)
        call.mark_sent()
        script = self._scripts[request.model]
        said = script(call) if callable(script) else script
        if isinstance(said, BaseException):
            raise said
        for delta in said:
            if isinstance(delta, BaseException):
                raise delta
            yield delta
        yield Finish("stop")

    def list_models(self, call: ModelCall) -> list[str]:
        """What the test says."""
        with self._lock:
            self.lists += 1
        assert self._listed is not None, "nobody should ask for the list"
        return self._listed(call)

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """Not askable."""
        raise AssertionError

    def close(self) -> None:
        """Nothing to close."""


def says(text: str) -> Said:
    """A whole answer."""
    return [Text(text)]


def agent_of(
    models: Models, model: str = "first", *, pattern: str | None = None, fallback: str | None = None,
    retries: RetryPolicy = AT_ONCE, catalog: ModelCatalog | None = None,
) -> Agent:  # fmt: skip
    """An agent of that provider."""
    profile = AgentProfile("a", "", pattern or model, wish=ModelWish(pattern, fallback))
    return Agent(profile, models, 0.5, retries, catalog)


def goal_scope() -> Scope:
    """A goal's scope, under a turn's."""
    return Scope.root().open(Level.RUN, "r").open(Level.TURN, "t").open(Level.GOAL, "g")


def new_asked(scope: Scope | None = None) -> Asked:
    """Somebody who asks."""
    return Asked(object(), "g", scope or goal_scope(), lambda *_: None)


def ask(agent: Agent, asked: Asked | None = None, port: Port | None = None) -> str:
    """The agent's answer to hello."""
    request = ModelRequest(HELLO, agent.profile.model)
    return agent.ask(lambda: request, asked or new_asked(), port or Port()).text
