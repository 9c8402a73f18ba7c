"""The executor without HTTP and without a store: turns of an agent as calls of a function.

The same turn, plan, tool loop and receipt as in the server; only its events go to a function instead of a database.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Self

from core.agent.agent import Agent, AgentProfile
from core.agent.make_agents import DEFAULT_INSTRUCTIONS, agents_of, provider_of
from core.cancellation import Cause, CauseWord, Level, Scope
from core.engine.call_pool import CallPool
from core.errors import ConfigurationError, InvalidPlan, NotFound
from core.extensions.embedded_turn import EmbeddedTurn, OnEvent
from core.extensions.foreign_controller import Controller
from core.ids import new_id
from core.plan.plan_spec import PlanSpec, check_plan
from core.provider.provider import Provider
from core.session.delegation import Delegation
from core.session.goal_work import work_on
from core.session.records import TurnOutcome, TurnStart
from core.session.repair import repair
from core.settings import Settings
from core.tool.python_function import FunctionTool
from core.tool.registry import Toolbox
from core.tool.shell import DEFAULT_TIMEOUT_MS, OUTPUT_CAP
from core.tool.tool import Tool

History = list[dict[str, Any]]

#: Seconds that closing waits for the turns that it stopped; each is over in less than two.
CLOSE_S: Final = 5.0


def make_agent(
    provider: Provider, *tools: Tool | Callable[..., Any], name: str = "default",
    instructions: str = DEFAULT_INSTRUCTIONS, model: str = "default", cancel_timeout_s: float = 0.5,
) -> Agent:  # fmt: skip
    """An agent with these tools: functions that were marked with ``@tool``, or tools such as ``Shell(folder)``."""
    made = [each if isinstance(each, Tool) else FunctionTool(each, OUTPUT_CAP, DEFAULT_TIMEOUT_MS) for each in tools]
    profile = AgentProfile(name, instructions, model, {each.name: each for each in made})
    return Agent(profile, provider, cancel_timeout_s)


class Executor:
    """Runs turns of agents, several at once if you like: from a thread each. Holds nothing of any that is over."""

    def __init__(self, agent: Agent, *others: Agent, call_threads: int = 32, cancel_timeout_s: float = 0.5) -> None:
        """``agent`` answers; the others can be named by goals. What the agents stand on is yours to close."""
        self._default = agent
        self._agents = {each.name: each for each in (agent, *others)}
        self._pool = CallPool(call_threads)
        self._cancel_timeout_s = cancel_timeout_s
        self._root = Scope.root("embedded")
        self._changed = threading.Condition()
        self._running = 0
        self._is_closed = False
        self._opened = contextlib.ExitStack()

    @classmethod
    def from_settings(cls, settings: Settings) -> Executor:
        """With the model server, the agents and the tools that the settings name, such as those of ``load_settings()``.

        Close it. ``ConfigurationError`` if a setting is wrong, or no model server is named.
        """
        if settings.llm_base_url is None:
            raise ConfigurationError("LLM_BASE_URL is not set: give the address of a model server")
        with contextlib.ExitStack() as opened:
            provider = provider_of(settings)
            opened.callback(provider.close)
            toolbox = Toolbox(settings)
            opened.callback(toolbox.close)
            agents = agents_of(settings, provider, toolbox)
            executor = cls(
                agents.pop("default"), *agents.values(),
                call_threads=settings.call_threads, cancel_timeout_s=settings.cancel_timeout_ms / 1000,
            )  # fmt: skip
            toolbox.start()
            executor._opened = opened.pop_all()
        return executor

    def run(
        self, message: str, *, history: Sequence[dict[str, Any]] = (), plan: PlanSpec | None = None,
        controller: Controller | None = None, on_event: OnEvent = lambda _: None,
    ) -> TurnOutcome:  # fmt: skip
        """One turn; blocks until it is over, which after a stop is bounded.

        Never raises a stop: ``outcome.state`` is ``completed``, ``cancelled`` or ``failed``, and ``receipt`` says what
        a stop found and what became of it. ``history`` is the conversation so far, see :func:`history_after`.
        ``on_event`` is called on this thread. ``InvalidPlan`` if the plan cannot run, or the message is blank;
        ``RuntimeError`` once this is closed.
        """
        if plan is None and not message.strip():
            raise InvalidPlan("the message is blank")
        spec = plan or PlanSpec.single(message)
        tools = {name: agent.profile.tools for name, agent in self._agents.items()}
        check_plan(spec, agents=tools, agent=self._default.name)
        system = [each for each in history if each.get("role") == "system"]
        earlier = [*system, *repair(list(history))]
        with self._counted():
            run_scope = self._root.open(Level.RUN, new_id("r"))
            start = TurnStart(run_scope.name, new_id("s"), new_id("t"), message, True, {})
            turn = EmbeddedTurn(start, run_scope, self._pool, self._cancel_timeout_s)
            return turn.run(partial(self._work, turn, spec, earlier), controller, on_event)

    def _work(self, turn: EmbeddedTurn, spec: PlanSpec, history: History) -> None:
        plan = turn.make_plan(lambda goal: work_on(turn, goal, history))
        turn.delegation = Delegation(turn, lambda goal: work_on(turn, goal, []), self._agent)
        turn.fill_plan(spec, self._agent)
        plan.run()

    def _agent(self, name: str | None) -> Agent:
        if name is None:
            return self._default
        if name not in self._agents:
            raise NotFound(f"there is no agent {name!r}")
        return self._agents[name]

    # -- the end -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the executor is closed")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Stop what runs (cause ``shutdown``), wait for it, and close what :meth:`from_settings` has opened. Bounded;
        not from ``on_event`` or a tool, which are a part of what it waits for.
        """
        with self._changed:
            self._is_closed = True
        self._root.cancel(Cause(CauseWord.SHUTDOWN))
        with self._changed:
            self._changed.wait_for(lambda: not self._running, CLOSE_S)
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def history_after(history: Sequence[dict[str, Any]], message: str, outcome: TurnOutcome) -> History:
    """The conversation with one turn more, whatever became of it: the ``history`` of the next."""
    return [*history, {"role": "user", "content": message}, *outcome.messages]
