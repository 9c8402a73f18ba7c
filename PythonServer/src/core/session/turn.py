"""A running turn: its scope, its plan, its open calls, and the stop that ended it, if one did."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from core.agent.ports import Threads
from core.call import CallBook
from core.cancellation import CauseWord, Level, Scope, Verdict
from core.events import Event, EventType
from core.gates import pause_at
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from core.plan.scheduler import Workers
from core.provider.model_call import ModelCall
from core.session.asking import Questions
from core.session.delegation import Delegation
from core.session.goal_tree import make_goals
from core.session.liveness import Activity
from core.session.mail import Mail
from core.session.parts import Parts
from core.session.records import StopOrder, TurnOutcome, TurnStart
from core.session.revival import Revival
from core.session.said import Said, close_calls, said_by, text_of, turn_messages, with_earlier
from core.session.surviving import Fence, Log
from core.session.turn_stop import TurnStop
from core.session.turns import emit_in_turn
from core.session.usage import UsageSum
from core.store.commit import Transaction
from core.tool.tool import Answered, Delegated, ToolFailed, ToolRun

T = TypeVar("T")


class Pool(Workers, Threads, Protocol):
    """The threads that run goals and tools; see :class:`core.engine.call_pool.CallPool`."""


class Turn:
    """One turn while it runs in this process. It is forgotten when its end is recorded."""

    def __init__(
        self, start: TurnStart, run_scope: Scope, writer: Log, workers: Pool, cancel_timeout_s: float
    ) -> None:
        self.start = start
        self.run_scope = run_scope
        self.scope = run_scope.open(Level.TURN, start.turn_id)
        #: When something happened in it last; see :mod:`core.session.liveness`.
        self.activity = Activity()
        self.calls = CallBook(self.activity.touch)
        self.plan: Plan | None = None
        self._is_plan_shown = False
        #: How it ended, as recorded; set when that is durable, or cannot become so before the server is gone.
        self.ended: Future[TurnOutcome] = Future()
        #: Closed if it is left to the next server: nothing that still happens here is a part of it.
        self.fence = self._writer = Fence(writer)
        self.workers = workers
        self._usage = UsageSum()
        #: What the goals had said in the turn that this one resumes.
        self.earlier: list[Said] = []
        #: The answer is complete; what still runs, such as a title in the making, is no part of it.
        self.is_answered = False
        #: A title for the session, if this turn made one.
        self.title: str | None = None
        self.cancel_timeout_s = cancel_timeout_s
        self._windows = 0
        self._windows_lock = threading.Lock()
        #: The stops of single goals and tool calls, and what else happens to a part of the turn.
        self.parts = Parts(self)
        #: The messages that go into it while it is at work.
        self.mail = Mail(self)
        #: What its tools ask the user.
        self.questions = Questions(self)
        #: Moves of goals that an earlier server has logged, and that this one makes once more.
        self.logged_moves: set[tuple[str, GoalStatus]] = set()
        #: Around the lock of a plan: held while the plan comes to be shown.
        self.showing = threading.Lock()
        # Set once its plan is shown.
        self._is_back = threading.Event()
        #: Its plan was shown, in this server.
        self.has_plan = False
        #: How its tools delegate; set once there are agents to delegate to.
        self.delegation: Delegation | None = None
        #: Last: from here on a stop takes stock of all this.
        self.stopping = TurnStop(self)

    @contextlib.contextmanager
    def protected(self) -> Iterator[None]:
        """Inside, a message that would interrupt waits for the turn's end instead. A stop still stops. May be nested."""
        with self._windows_lock:
            self._windows += 1
        try:
            yield
        finally:
            with self._windows_lock:
                self._windows -= 1

    @property
    def is_protected(self) -> bool:
        """Whether a protection window is open."""
        return self._windows > 0

    @property
    def said(self) -> str:
        """What the goals have said, in plan order."""
        return text_of(said_by(self.plan))

    # -- what agents and goals use -----------------------------------------------------------

    def begin_request(self, owner: Goal, call: ModelCall) -> None:
        """See :class:`core.agent.ports.TurnPort`."""
        self.activity.touch()
        self.mail.begin_request(owner, call)

    def end_request(self, owner: Goal, is_cut: bool) -> None:
        """See :class:`core.agent.ports.TurnPort`."""
        self.mail.end_request(owner, is_cut)

    def emit(
        self, event_type: EventType, data: dict[str, Any], goal_id: str | None = None, call_id: str | None = None
    ) -> None:
        """Append an event to this turn; dropped by the writer once the turn has ended."""
        if event_type is EventType.USAGE and not self._usage.add(data):
            return  # the sum was drawn: the turn ends without this call
        # A wait that is announced is no silence: it is bounded by the retries' own cap.
        self.activity.touch(data["wait_ms"] / 1000 if event_type is EventType.RETRY else 0.0)
        self._writer.emit(Event(self.start.run_id, event_type, data, self.start.turn_id, goal_id, call_id))

    def record(self, decision: Callable[[Transaction], T]) -> Future[T]:
        """Have the writer make a decision, in order with the events."""
        return self._writer.transact(decision)

    def say(self, goal: Goal, text: str, scope: Scope | None = None) -> None:
        """Text of a goal, from the model call with that scope. Raises ``Cancelled`` once that or the goal is stopped,
        or the goal is final: the fence for work that did not listen.
        """
        with self._noting(goal, scope):
            goal.rounds.say(text)
            self.emit(EventType.TEXT, {"text": text}, goal.id)

    def note_call(self, owner: Goal, call_id: str, name: str, arguments: str) -> None:
        """A tool is about to be called. Raises as :meth:`say`: then it must not be called."""
        with self._noting(owner):
            owner.rounds.call(call_id, name, arguments)
            self.emit(EventType.TOOL_CALL, {"name": name, "arguments": arguments}, owner.id, call_id)

    @contextlib.contextmanager
    def _noting(self, goal: Goal, scope: Scope | None = None) -> Iterator[None]:
        scope = scope or goal.scope or self.scope
        with goal.plan.lock:  # the order in memory is the order in the log
            if not goal.is_final and not scope.is_stopped:
                yield
                return
        scope.checkpoint()
        raise AssertionError(f"{goal} is final and was not stopped")

    def note_output(self, owner: Goal, call_id: str, stream: str, text: str) -> None:
        """A piece of a tool's output, also after a stop; dropped once the goal is final."""
        with owner.plan.lock:
            if not owner.is_final:
                self.emit(EventType.TOOL_OUTPUT, {"stream": stream, "text": text}, owner.id, call_id)

    def note_result(self, owner: Goal, call_id: str, content: str, is_error: bool) -> None:
        """What a tool call came to, also after a stop; dropped once the goal is final."""
        with owner.plan.lock:
            if not owner.is_final:
                owner.rounds.answer(call_id, content, is_error)
                data = {"content": content, "is_error": is_error, **self.parts.closing(call_id)}
                self.emit(EventType.TOOL_RESULT, data, owner.id, call_id)

    def delegate(
        self, owner: Goal, run: ToolRun, goals: list[dict[str, Any]], max_depth: int, max_goals: int
    ) -> list[Delegated]:
        """See :class:`core.agent.ports.TurnPort`."""
        if self.delegation is None:
            raise ToolFailed("nobody is there to delegate to")
        return self.delegation.run(owner, run, goals, max_depth, max_goals)

    def has_goal(self, goal_id: str) -> bool:
        """Whether its plan has that goal, delegated ones too; True also while nobody can tell: it is being taken up."""
        if self._is_coming_back:
            return True
        plan = self.shown_plan
        return plan is not None and any(goal.id == goal_id for goal in plan.walk_all())

    @property
    def _is_coming_back(self) -> bool:
        return self.start.is_revived and not self.has_plan

    def wait_back(self, seconds: float) -> bool:
        """If it is being taken up from an earlier server: until its goals are here, or that long. Whether they are."""
        return not self._is_coming_back or self._is_back.wait(seconds)

    def is_at_redirect_limit(self, goal_id: str | None) -> bool:
        """See :class:`core.session.messages.TurnAtWork`."""
        return self.mail.is_at_limit(goal_id)

    def ask(
        self, owner: Goal, run: ToolRun, question: str, options: list[str] | None, timeout_ms: int | None
    ) -> Answered:
        """See :class:`core.agent.ports.TurnPort`."""
        return self.questions.ask(run, question, options, timeout_ms)

    # -- the plan ----------------------------------------------------------------------------

    def make_plan(self, work: Callable[[Goal], str | None]) -> Plan:
        """An empty plan, from now on the one of this turn."""
        self.plan = Plan(self.scope, self.workers, work, self.note_goal, self.note_abandoned)
        return self.plan

    def run_aside(self, name: str, agent: Any, work: Callable[[Goal], None]) -> Goal:
        """Work beside the plan that is not shown, such as making the plan: a plan of one goal, so that it is run and
        stopped like any other. Raises ``Cancelled`` if the turn was stopped meanwhile.
        """
        before = self.plan, self._is_plan_shown
        aside = Plan(self.scope, self.workers, work, None, self.note_abandoned)
        goal = Goal(aside, name, name, None, aside.plan_goal, agent)
        self.plan, self._is_plan_shown = aside, False
        try:
            aside.run()
        finally:
            self.plan, self._is_plan_shown = before
        self.scope.checkpoint()
        return goal

    def fill_plan(
        self, spec: PlanSpec, agent_of: Callable[[str | None], Any], remark: str | None = None,
        revival: Revival | None = None,
    ) -> None:  # fmt: skip
        """Put the goals of a checked spec into the plan, and publish it; one that is revived was published before."""
        plan = self.plan
        assert plan is not None
        goals = make_goals(plan, spec, agent_of)
        plan.remark = remark
        if revival is not None:
            self._usage = revival.logged.usage
            self.questions.take_over(revival.asked)
            revival.restore(self, goals, agent_of)
            self.parts.take_over(revival.parts, {goal.id: goal for goal in plan.walk_all()})
            self.scope.checkpoint()  # a stop that came meanwhile has not seen these goals: it is for the log to tell
        with self.showing:
            self.has_plan = self._is_plan_shown = True  # not before: a goal that is stopped must have all that hangs on it
        self._is_back.set()
        if revival is None:
            self.publish_plan()

    def publish_plan(self) -> None:
        """Tell the readers how the plan stands."""
        run_id, turn_id = self.start.run_id, self.start.turn_id
        assert self.plan is not None
        self.activity.touch()
        with self.plan.lock:  # the newest one is the last in the log
            event = Event(run_id, EventType.PLAN_UPDATED, self._plan_data(), turn_id)
            self._writer.transact(lambda tx: emit_in_turn(tx, event, mark="plan_seq"))

    @property
    def shown_plan(self) -> Plan | None:
        """The turn's plan; None while it is being made, and while something runs beside it."""
        return self.plan if self._is_plan_shown else None

    def plan_data(self) -> dict[str, Any]:
        """The whole plan as an event shows it."""
        assert self.plan is not None
        with self.plan.lock:
            return self._plan_data()

    def _plan_data(self) -> dict[str, Any]:
        assert self.plan is not None
        return {"goals": self.plan.tree(), "note": self.plan.remark}

    def note_goal(self, goal: Goal) -> None:
        """The status of a goal has changed."""
        if (goal.id, goal.status) in self.logged_moves:
            self.logged_moves.remove((goal.id, goal.status))
            return
        data: dict[str, Any] = {"status": goal.status}
        if goal.cause is not None:
            data["cause"] = goal.cause.word
        if goal.error is not None:
            data["error"] = goal.error
        if goal.result is not None:
            data["result"] = goal.result
        if goal.is_final:
            data |= self.parts.closing(goal.id)
        self.emit(EventType.GOAL_STATUS, data, goal.id)
        if goal.is_final:
            self.parts.note_end(goal.id)

    def note_abandoned(self, goal: Goal) -> None:
        """A goal was ended without its thread."""
        self.stopping.abandon(goal)
        self.parts.note_abandoned(goal)
        for call in self.calls.snapshot():
            if isinstance(call, ToolRun) and call.goal_id == goal.id:
                call.leave_behind()  # lets the goal's thread go, which waits for it

    # -- the stop --------------------------------------------------------------------------------

    def stop(
        self, order: StopOrder, claim: AbstractContextManager[bool] | None = None,
        beside: Callable[[Transaction], Any] | None = None,
    ) -> Verdict:  # fmt: skip
        """Close the scope and reach everything that runs, at once and bounded. OVER if the turn had finished.

        Whoever joins, also a turn that has finished because of an earlier stop, waits until the first one has
        reached everything, so that all see the same receipt. With a ``claim`` (see :meth:`Scope.cancel`) it is the
        turn's stop or nothing: it joins no other, and leaves no trace.

        ``beside`` is decided right behind its record, in the same transaction, and what it returns is with the record:
        not if the stop joins another, or is recorded too late to stop anything.
        """
        return self.stopping.stop(order, claim, beside)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self, error: BaseException | str | None) -> TurnOutcome:
        """Decide how the turn ended. From here on no stop can reach it; one that came first is its end."""
        pause_at("turn.before_finish")
        cause = self.scope.finish()
        self.run_scope.finish()
        plan = self.shown_plan
        message = str(error) if error is not None else None
        receipt = self.stopping.settle(cause) if cause is not None else None
        if cause is None:
            message = message or self._failure()
        state = "cancelled" if cause is not None else "completed" if message is None else "failed"
        told = self.mail.close()
        said = said_by(plan)
        word = cause.word if cause is not None else None
        closing = close_calls(said, self.start.run_id, self.start.turn_id, word or state)
        said = with_earlier(said, self.earlier)
        return TurnOutcome(
            state,
            turn_messages(said, "completed" if self.is_answered else state, word, told),
            order=self.stopping.order_in_force(),
            receipt=receipt,
            error=message,
            plan=self.plan_data() if plan is not None and plan.plan_goal.children else None,
            closing=closing,
            usage=self._usage.draw(),
            title=self.title,
            parts=self.parts.receipts(),
        )

    def _failure(self) -> str | None:
        """Why the turn failed: no goal completed. None if one did."""
        if self.start.kind == "compaction":
            return None  # it has no goals, and raises what it fails of
        leaves = [] if self.plan is None else self.plan.leaves()
        if any(goal.status is GoalStatus.COMPLETED for goal in leaves):
            return None
        errors = [goal.error for goal in leaves if goal.error]
        if not errors and any(goal.cause and goal.cause.word is CauseWord.OPERATOR for goal in leaves):
            return "the gateway cancelled the model request"
        if not errors and any(goal.cause and goal.cause.word is CauseWord.USER for goal in leaves):
            return "every goal was stopped"
        return errors[0] if errors else "no goal was completed"


