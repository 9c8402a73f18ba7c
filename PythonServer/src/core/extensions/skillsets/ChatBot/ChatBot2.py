"""The chat bot: a message becomes a plan, the plan runs, and then the loop waits for the next input.

The loop has no thread of its own: a parked session is a row. Each accepted message is one pass of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Engine as Database

from core.agent.agent import Agent
from core.agent.told import told_messages
from core.base.InputOutput import close_flag, open_flag, set_stopped
from core.cancellation import Cause, CauseWord
from core.clock import alarm_clock
from core.errors import NotFound, ProviderError, ProviderNonsense, ProviderRejected
from core.gates import pause_at
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from core.plan.planner import INSTRUCTIONS, TOOL, TOOL_NAME, read_plan
from core.provider.provider import ModelRequest
from core.session.compacting import compact_on_request, fitting
from core.session.compaction import read_in_force
from core.session.delegation import Delegation
from core.session.earlier import read_earlier
from core.session.goal_work import agent_of, asked_by, work_on
from core.session.queries import session_title
from core.session.revival import read_revival
from core.session.title import read_title, title_messages
from core.session.transcript import read_transcript, request_messages
from core.session.turn import Turn

log = logging.getLogger(__name__)

History = list[dict[str, Any]]

#: Seconds that a title may take.
TITLE_S: Final = 10.0


class ChatBot2:
    """Runs the turns of all sessions; holds nothing of any of them."""

    def __init__(
        self, agents: dict[str, Agent], database: Database, is_titling: bool = False, compact_at_tokens: int = 0
    ) -> None:
        self._agents = agents
        self._database = database
        self._is_titling = is_titling
        self._compact_at_tokens = compact_at_tokens

    def run_turn(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """One pass of the documented loop: a clear flag, the plan, its run, and the flag cleared again."""
        open_flag(turn.scope)
        try:
            with turn.scope.entered():
                if turn.start.kind == "compaction":
                    self._compact(turn, on_started)
                    return
                plan = self._make_plan(turn, on_started)
                plan.run()
                pause_at("chatbot.before_flag_is_cleared")
                set_stopped(False)
                pause_at("chatbot.plan_has_run")
                if self._is_titling and plan.plan_goal.status is GoalStatus.COMPLETED:
                    self._make_title(turn)
        finally:
            close_flag(turn.scope)
        # The engine publishes the updated plan with the turn's end, in one transaction, and takes the next input.

    # -- making the plan -----------------------------------------------------------------------

    def _make_plan(self, turn: Turn, on_started: Callable[[], None]) -> Plan:
        start = turn.start
        with self._database.connect() as connection:
            whole = read_transcript(connection, start.session_id, before=start.turn_id)
            in_force = read_in_force(connection, start.session_id, whole)
            earlier = read_earlier(connection, start)
            revival = read_revival(connection, start.turn_id) if start.is_revived else None
        turn.earlier = earlier.said
        turn.mail.begin_with([*earlier.told, *(revival.logged.told if revival is not None else ())])
        pause_at("chatbot.before_planning")
        on_started()
        # One that goes on after a restart was compacted before, if it was to be, and may wait for nothing but an answer.
        limit = self._compact_at_tokens if revival is None else 0
        history = fitting(turn, lambda: self._agent(turn), whole, in_force, limit)
        remark = None
        if revival is not None:
            spec, remark = revival.spec, revival.remark
        elif earlier.spec is not None:
            spec = earlier.spec
        elif start.spec is not None:
            spec = PlanSpec.model_validate(start.spec)
        elif start.options.get("planning") == "none":
            spec = PlanSpec.single(start.input)
        else:
            spec, remark = self._ask_for_plan(turn, history)
        finished = earlier.finished
        plan = turn.make_plan(lambda goal: finished[goal.id] if goal.id in finished else work_on(turn, goal, history))
        turn.delegation = Delegation(turn, lambda goal: work_on(turn, goal, []), lambda name: self._agent(turn, name))
        turn.fill_plan(spec, lambda name: self._agent(turn, name), remark, revival)
        return plan

    def _compact(self, turn: Turn, on_started: Callable[[], None]) -> None:
        """The work of a turn that was started to compact the history."""
        with self._database.connect() as connection:
            whole = read_transcript(connection, turn.start.session_id, before=turn.start.turn_id)
            in_force = read_in_force(connection, turn.start.session_id, whole)
        on_started()
        compact_on_request(turn, self._agent(turn), whole, in_force)

    def _agent(self, turn: Turn, name: str | None = None) -> Agent:
        """The agent of that name, else the run's."""
        wanted = name or turn.start.options.get("agent", "default")
        if wanted not in self._agents:  # the run is older than the list of agents
            raise NotFound(f"there is no agent {wanted!r}; there are: {', '.join(self._agents)}")
        return self._agents[wanted]

    def _ask_for_plan(self, turn: Turn, history: History) -> tuple[PlanSpec, str | None]:
        """Have the model make the plan."""
        made: list[tuple[PlanSpec, str | None]] = []
        goal = turn.run_aside("planning", self._agent(turn), lambda goal: made.append(self._plan_call(turn, goal, history)))
        if not made:
            raise ProviderError(goal.error or "the gateway cancelled the request for a plan")
        return made[0]

    def _plan_call(self, turn: Turn, goal: Goal, history: History) -> tuple[PlanSpec, str | None]:
        agent, message = agent_of(goal), turn.start.input
        asked = request_messages(INSTRUCTIONS, history, message)

        def make_request() -> ModelRequest:
            told = told_messages(turn.mail.told(), follows_user=True)
            return ModelRequest([*asked, *told], agent.profile.model, [TOOL], TOOL_NAME)

        try:
            with turn.mail.joined(goal, is_planning=True):
                reply = agent.ask(make_request, asked_by(goal, None), turn)
        except (ProviderNonsense, ProviderRejected) as error:
            # A model server that knows no tools can still answer; one that is down cannot, and fails the turn.
            return PlanSpec.single(message), f"Working on this as one goal: no plan was made ({error.detail})."
        call = next((each for each in reply.tool_calls if each.name == TOOL_NAME), None)
        return read_plan(call.arguments if call is not None else None, message)

    # -- the title -------------------------------------------------------------------------------

    def _make_title(self, turn: Turn) -> None:
        """Have the model name the session, once: in the turn, so that a stop ends it like everything else."""
        with self._database.connect() as connection:
            if session_title(connection, turn.start.session_id) is not None:
                return
        said = turn.said  # of the plan; beside it, the turn has another one
        turn.is_answered = True
        goal = turn.run_aside("title", self._agent(turn), lambda goal: self._title_call(turn, goal, said))
        if goal.error is not None:
            log.warning("%s: the session got no title", turn.start.turn_id)

    def _title_call(self, turn: Turn, goal: Goal, said: str) -> None:
        agent, asked = agent_of(goal), asked_by(goal, None)
        request = ModelRequest(title_messages(turn.start.input, said), agent.profile.model)
        # The user waits for the turn's end, and the answer is there: a name is not worth much of that.
        def give_up() -> None:
            asked.scope.cancel(Cause(CauseWord.DEADLINE, f"the title took longer than {TITLE_S:g} s"))

        alarm = alarm_clock.after(TITLE_S, give_up)
        try:
            turn.title = read_title(agent.ask(lambda: request, asked, turn).text)
        finally:
            alarm.call_off()
