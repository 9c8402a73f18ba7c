"""The chat bot: a message becomes a plan, the plan runs, and then the loop waits for the next input.

The loop has no thread of its own: a parked session is a row. Each accepted message is one pass of it.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine as Database

from core.agent.agent import Agent, Asked
from core.base.InputOutput import close_flag, open_flag, set_stopped
from core.errors import NotFound, ProviderError, ProviderNonsense, ProviderRejected
from core.gates import pause_at
from core.plan.goal import Goal
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from core.plan.planner import INSTRUCTIONS, TOOL, TOOL_NAME, read_plan
from core.plan.scheduler import Workers
from core.provider.provider import ModelRequest
from core.session.transcript import read_transcript, request_messages, results_for
from core.session.turn import Turn


class ChatBot2:
    """Runs the turns of all sessions; holds nothing of any of them."""

    def __init__(self, agents: dict[str, Agent], workers: Workers, database: Database) -> None:
        self._agents = agents
        self._workers = workers
        self._database = database

    def run_turn(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """One pass of the documented loop: a clear flag, the plan, its run, and the flag cleared again."""
        open_flag(turn.scope)
        try:
            with turn.scope.entered():
                plan = self._make_plan(turn, on_started)
                plan.run()
                pause_at("chatbot.before_flag_is_cleared")
                set_stopped(False)
                pause_at("chatbot.plan_has_run")
        finally:
            close_flag(turn.scope)
        # The engine publishes the updated plan with the turn's end, in one transaction, and takes the next input.

    # -- making the plan -----------------------------------------------------------------------

    def _make_plan(self, turn: Turn, on_started: Callable[[], None]) -> Plan:
        start = turn.start
        history = self._read_history(turn)
        pause_at("chatbot.before_planning")
        on_started()
        remark = None
        if start.spec is not None:
            spec = PlanSpec.model_validate(start.spec)
        elif start.options.get("planning") == "none":
            spec = PlanSpec.single(start.input)
        else:
            spec, remark = self._ask_for_plan(turn, history)
        plan = turn.make_plan(self._workers, lambda goal: self._work(turn, goal, history))
        turn.fill_plan(spec, lambda name: self._agent(turn, name), remark)
        return plan

    def _agent(self, turn: Turn, name: str | None = None) -> Agent:
        """The agent of that name, else the run's."""
        wanted = name or turn.start.options.get("agent", "default")
        if wanted not in self._agents:  # the run is older than the list of agents
            raise NotFound(f"there is no agent {wanted!r} any more")
        return self._agents[wanted]

    def _read_history(self, turn: Turn) -> list[dict[str, object]]:
        with self._database.connect() as connection:
            return read_transcript(connection, turn.start.session_id, before=turn.start.turn_id)

    def _ask_for_plan(self, turn: Turn, history: list[dict[str, object]]) -> tuple[PlanSpec, str | None]:
        """Have the model make the plan: itself a plan of one goal, so that it is run and stopped like any other."""
        made: list[tuple[PlanSpec, str | None]] = []
        planning = turn.make_plan(self._workers, lambda goal: made.append(self._plan_call(turn, goal, history)), False)
        agent = self._agent(turn)
        goal = Goal(planning, "planning", "planning", turn.start.input, planning.plan_goal, agent)
        planning.run()
        turn.scope.checkpoint()
        if not made:
            raise ProviderError(goal.error or "the gateway cancelled the request for a plan")
        return made[0]

    def _plan_call(self, turn: Turn, goal: Goal, history: list[dict[str, object]]) -> tuple[PlanSpec, str | None]:
        agent, scope = goal.agent, goal.scope
        assert isinstance(agent, Agent)
        assert scope is not None
        message = turn.start.input
        request = ModelRequest(
            request_messages(INSTRUCTIONS, history, message), agent.profile.model, [TOOL], TOOL_NAME
        )
        try:
            reply = agent.ask(request, Asked(goal, None, scope, lambda _: None), turn)
        except (ProviderNonsense, ProviderRejected) as error:
            # A model server that knows no tools can still answer; one that is down cannot, and fails the turn.
            return PlanSpec.single(message), f"Working on this as one goal: no plan was made ({error.detail})."
        call = next((each for each in reply.tool_calls if each.name == TOOL_NAME), None)
        return read_plan(call.arguments if call is not None else None, message)

    # -- working on a goal -----------------------------------------------------------------------

    def _work(self, turn: Turn, goal: Goal, history: list[dict[str, object]]) -> str:
        agent, scope = goal.agent, goal.scope
        assert isinstance(agent, Agent)
        assert scope is not None
        messages = request_messages(
            agent.profile.instructions,
            history,
            goal.prompt or "",
            turn.start.input if goal.plan.has_several_leaves else None,
            results_for(goal),
        )
        request = ModelRequest(messages, agent.profile.model)
        with scope.entered():
            reply = agent.ask(request, Asked(goal, goal.id, scope, lambda text: turn.say(goal, text)), turn)
        if reply.tool_calls:
            raise ProviderNonsense(f"the model asked for the tool {reply.tool_calls[0].name!r}, which it was not offered")
        return reply.text

