"""An executor without a server whose model and tools wait at gates, and what must be left of it: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from core.agent.agent import Agent, AgentProfile
from core.base import InputOutput
from core.extensions.embedding import Executor
from core.provider.backoff import RetryPolicy
from core.provider.provider import ModelRequest, ToolCall
from core.session.records import TurnOutcome
from core.tool.tool import Tool
from tests.support.race_kit import Later
from tests.support.scripted_provider import LIMIT_S, Answer, Gate, ScriptedProvider, ScriptedTool, Stage
from tests.support.servers import wait_until
from tests.support.strict_request import check_request


class Bench:
    """One executor with the agents ``default`` and ``other``, who share a model and the tool ``work``."""

    def __init__(
        self, *tools: Tool, asking: str | None = None, manners: tuple[int, ...] = (0,), wait_s: float = 60
    ) -> None:  # fmt: skip
        self.stage = Stage(manners=manners)
        self.provider = ScriptedProvider(self.stage, asking)
        offered = {tool.name: tool for tool in (ScriptedTool(self.stage, "work"), *tools)}
        retries = RetryPolicy(max_attempts=3, base_s=wait_s)
        self.agents = [
            Agent(AgentProfile(name, "Be brief.", "model", offered), self.provider, 0.5, retries)
            for name in ("default", "other")
        ]
        self.executor = Executor(*self.agents)

    def start(self, message: str, **options: Any) -> Later[TurnOutcome]:
        """A turn, from now on."""
        return Later(lambda: self.executor.run(message, **options))

    def answer(self, message: str, text: str = "fine", **options: Any) -> TurnOutcome:
        """A whole turn, in which the model says ``text``."""
        turn = self.start(message, **options)
        self.model(message).go(Answer(text))
        return turn.result()

    def model(self, message: str) -> Gate:
        """The model call of that message, once it waits."""
        return self._gate(lambda gate: gate.is_model and last_user_text(gate.subject) == message)

    def tool(self, n: int) -> Gate:
        """The tool call with that number, once it waits."""
        return self._gate(lambda gate: not gate.is_model and gate.subject == {"n": n})

    def _gate(self, fits: Callable[[Gate], bool]) -> Gate:
        def found() -> list[Gate]:
            return [gate for gate in self.stage.gates if gate.is_held and fits(gate)]

        with self.stage.changed:
            assert self.stage.changed.wait_for(found, LIMIT_S), "no such call"
            return found()[0]

    @property
    def requests(self) -> list[ModelRequest]:
        """What was sent to the model."""
        return [request for _, request in self.stage.requests]

    def check(self) -> None:
        """Every request was in order, and nothing is left of any turn."""
        self.stage.release()
        for request in self.requests:
            check_request(request)
        check_nothing_left(self.executor)


def check_nothing_left(executor: Executor) -> None:
    """No scope, place, flag, or thread of a turn."""
    assert not executor._root._children, executor._root.dump()
    wait_until(lambda: not (executor._pool.busy or executor._pool.abandoned), "all places given back")
    assert InputOutput._live == {}
    assert InputOutput.plan_is_stopped == [False]
    names = ("t_", "stop")
    assert [each.name for each in threading.enumerate() if each.name.startswith(names)] == []


@contextmanager
def open_bench(*tools: Tool, **options: Any) -> Iterator[Bench]:
    """A bench, checked at its end."""
    bench = Bench(*tools, **options)
    yield bench
    bench.check()


def last_user_text(request: Any) -> str:
    """What the model was asked."""
    return next(str(each["content"]) for each in reversed(request.messages) if each["role"] == "user")


def calls(*numbers: int) -> Answer:
    """The model calls the tool ``work`` with each of these numbers."""
    return Answer(calls=tuple(ToolCall(f"m{n}", "work", f'{{"n": {n}}}') for n in numbers))


def outcomes(outcome: TurnOutcome) -> dict[str, set[str]]:
    """What the receipt says, by kind."""
    assert outcome.receipt is not None
    found: dict[str, set[str]] = {}
    for item in outcome.receipt:
        found.setdefault(str(item["kind"]), set()).add(str(item["outcome"]))
    return found


def stop_of(outcome: TurnOutcome) -> tuple[str, str | None] | None:
    """The state, and the reason of the stop; None if there was none."""
    return (outcome.state, outcome.order.cause.reason) if outcome.order is not None else None
