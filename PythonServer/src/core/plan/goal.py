"""A goal: a node of the plan's tree. Leaves own the work; inner goals only contain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from core.agent.rounds import Rounds
from core.cancellation import Cause, CauseWord, Level, Scope
from core.gates import pause_at
from core.plan.goal_status import FINAL, MOVES, GoalStatus

if TYPE_CHECKING:
    from core.plan.plan import Plan


class GoalAgent(Protocol):
    """Who works on a goal; see :class:`core.agent.agent.Agent`."""

    @property
    def name(self) -> str:
        """As the deployment calls it."""

    def cancel_llm_request(self, owner: object | None = None, timeout_s: float | None = None) -> None:
        """Ask the gateway to cancel the model requests of this goal."""

    def has_requests_to_ask(self, owner: object) -> bool:
        """Whether a request of this goal is in flight that the gateway can be asked to cancel."""


class Goal:
    """One goal. All of its state is guarded by ``plan.lock``; read it from elsewhere only for display."""

    __slots__ = (
        "_cancelled_by", "_cancelled_children", "_failed_children", "_open_children", "agent", "blockers", "cause",
        "children", "delegated", "dependents", "depends_on", "ended_at", "error", "id", "parent", "plan", "prompt",
        "result", "rounds", "scope", "started_at", "status", "title", "tool", "worker",
    )  # fmt: skip

    def __init__(
        self, plan: Plan, goal_id: str, title: str, prompt: str | None = None,
        parent: Goal | None = None, agent: GoalAgent | None = None, tool: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.id = goal_id
        self.title = title
        self.prompt = prompt
        #: ``{name, arguments}`` of the tool that is the whole work of this goal, or None.
        self.tool = tool
        self.agent = agent
        self.parent = parent
        self.children: list[Goal] = []
        #: The plans that this goal's tool calls have delegated, oldest first. They are no part of its status.
        self.delegated: tuple[Plan, ...] = ()
        self.depends_on: list[Goal] = []
        self.dependents: list[Goal] = []
        self.status = GoalStatus.NOT_STARTED
        #: Opened when the goal starts; below the parent's scope.
        self.scope: Scope | None = None
        #: What keeps the goal from starting: its unfinished dependencies, and its parent until that is open.
        self.blockers = 1
        #: What was said and done so far; kept whatever becomes of the goal.
        self.rounds = Rounds()
        self.result: str | None = None
        self.cause: Cause | None = None
        self.error: str | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        #: The pool's handle of the thread that runs this goal.
        self.worker: object | None = None
        self._open_children = 0
        self._failed_children = 0
        self._cancelled_children = 0
        # The cause of the first child that was cancelled.
        self._cancelled_by: Cause | None = None
        if parent is not None:
            parent.children.append(self)
            parent._open_children += 1

    def depend_on(self, other: Goal) -> None:
        """This goal starts only after ``other`` is COMPLETED."""
        self.depends_on.append(other)
        other.dependents.append(self)
        self.blockers += 1

    @property
    def is_final(self) -> bool:
        """Whether the status stands for good."""
        return self.status in FINAL

    # -- the documented surface -----------------------------------------------------------

    def run(self) -> Any:
        """Run this goal and all below it; returns when every one of them is final.

        The stop is looked at here, before the children, and in the scheduling loop. A leaf returns its result,
        or raises ``Cancelled``; an inner goal returns its status.
        """
        scope = self.scope or self.plan.scope
        scope.checkpoint()
        if self.children or self.parent is None:
            return self._run_parallel()
        return self.plan.work(self)

    def _run_parallel(self) -> GoalStatus:
        """Run the children as their dependencies allow, until all are final or the plan is stopped."""
        from core.plan.scheduler import Scheduler  # the scheduler needs Goal

        pause_at("goal.before_children")
        (self.scope or self.plan.scope).checkpoint()
        return Scheduler(self.plan, self).run()

    def get_active_goals(self) -> list[Goal]:
        """The goals at or below this one that are IN_PROGRESS, delegated ones too: those that own model requests."""
        active, waiting = [], [self]
        while waiting:
            goal = waiting.pop()
            if goal.status is GoalStatus.IN_PROGRESS:
                active.append(goal)
            waiting.extend(plan.plan_goal for plan in reversed(goal.delegated))
            waiting.extend(reversed(goal.children))
        return active

    def set_goal_status(self, status: GoalStatus, cause: Cause | None = None, **outcome: Any) -> bool:
        """Move to ``status``; False, and nothing happens, if the table has no such move (a final state stands).

        FAILED and CANCELLED make every dependent that is NOT_STARTED, and what is inside it, CANCELLED,
        recursively; goals in progress are not touched. Goals that may start now are handed to the scheduler.
        ``outcome`` is ``result`` or ``error``.
        """
        with self.plan.lock:
            changed, ready = settle(self, status, cause, **outcome)
        self.plan.start_ready(ready)
        return changed

    def cancel_llm_request(self, timeout_s: float | None = None) -> None:
        """Ask for the cancellation of this goal's model requests, at the agent that works on it."""
        if self.agent is not None:
            self.agent.cancel_llm_request(self, timeout_s)

    @property
    def scope_around(self) -> Scope:
        """The nearest scope around this goal that is open: that of its parent, mostly."""
        above = self.parent
        while above is not None and above.scope is None:
            above = above.parent
        return above.scope if above is not None and above.scope is not None else self.plan.scope

    # -- moves; the caller holds plan.lock ------------------------------------------------

    def open_scope(self) -> Scope:
        """The goal's scope, made under its parent's; born stopped if that is stopped."""
        above = self.parent.scope if self.parent is not None else None
        self.scope = (above or self.plan.scope).open(Level.GOAL, self.id)
        return self.scope

    def move(self, status: GoalStatus, cause: Cause | None, result: str | None, error: str | None) -> bool:
        if status not in MOVES[self.status]:
            return False
        self.status = status
        now = time.time()
        if status in FINAL:
            self.ended_at, self.cause, self.result, self.error = now, cause, result, error
        else:
            self.started_at = self.started_at or now  # a goal that is taken up again began before
        self.plan.note(self)
        return True

    def count_child(self, child: Goal) -> GoalStatus | None:
        """A child became final; this goal's own final status once none is open, else None."""
        self._open_children -= 1
        if child.status is GoalStatus.FAILED:
            self._failed_children += 1
        elif child.status is GoalStatus.CANCELLED:
            self._cancelled_children += 1
            self._cancelled_by = self._cancelled_by or child.cause
        return self.verdict()

    def verdict(self) -> GoalStatus | None:
        """FAILED over CANCELLED over COMPLETED; None while a child is open or this goal is not."""
        if self._open_children or self.status is not GoalStatus.CHILDREN_IN_PROGRESS:
            return None
        if self._failed_children:
            return GoalStatus.FAILED
        return GoalStatus.CANCELLED if self._cancelled_children else GoalStatus.COMPLETED

    def verdict_cause(self, verdict: GoalStatus) -> Cause | None:
        """Why an inner goal is CANCELLED: as its first cancelled child."""
        return self._cancelled_by if verdict is GoalStatus.CANCELLED else None

    def __repr__(self) -> str:
        return f"<Goal {self.id} {self.status}>"


_BY_DEPENDENCY = Cause(CauseWord.DEPENDENCY)


def settle(
    goal: Goal, status: GoalStatus, cause: Cause | None = None, result: str | None = None, error: str | None = None
) -> tuple[bool, list[Goal]]:  # fmt: skip
    """Make one move and all that follows from it, with ``plan.lock`` held and without recursion.

    Returns whether the move was made, and the goals that nothing keeps from starting any more.
    """
    if not goal.move(status, cause, result, error):
        return False, []
    return True, follow([goal] if status in FINAL else [])


def follow(settled: list[Goal]) -> list[Goal]:
    """All that follows from these goals' having become final, with ``plan.lock`` held and once for each.

    Returns the goals that nothing keeps from starting any more.
    """
    ready: list[Goal] = []
    while settled:
        done = settled.pop()
        if done.scope is not None and not done.scope.is_finished:
            done.scope.finish()
        if done.status is GoalStatus.COMPLETED:
            for dependent in done.dependents:
                dependent.blockers -= 1
                if not dependent.blockers and dependent.status is GoalStatus.NOT_STARTED:
                    ready.append(dependent)
        else:
            # What waits for this goal, and what is inside it, will never start.
            _cancel_unstarted(done.dependents, None, settled)
            _cancel_unstarted(done.children, done.cause, settled)
        parent = done.parent
        if parent is not None:
            verdict = parent.count_child(done)
            if verdict is not None and parent.move(verdict, parent.verdict_cause(verdict), None, None):
                settled.append(parent)
    return ready


def _cancel_unstarted(goals: list[Goal], cause: Cause | None, settled: list[Goal]) -> None:
    """``cause`` None: for want of what they depend on, unless what is around them was stopped anyway."""
    for goal in goals:
        if goal.status is GoalStatus.NOT_STARTED:
            goal.move(GoalStatus.CANCELLED, cause or goal.scope_around.cause or _BY_DEPENDENCY, None, None)
            settled.append(goal)


def cancel_unstarted_below(goal: Goal, cause: Cause) -> None:
    """What is NOT_STARTED at or below ``goal`` never starts. With ``plan.lock`` held."""
    waiting = [goal]
    while waiting:
        each = waiting.pop()
        if each.status is GoalStatus.NOT_STARTED:
            settle(each, GoalStatus.CANCELLED, cause)
        waiting.extend(reversed(each.children))
