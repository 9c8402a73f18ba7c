"""``Plan.stop_goal``: one goal of a plan ends, with what is inside it and what waits for it; nothing else does."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.cancellation import Cause, CauseWord, Verdict
from core.engine.call_pool import CallPool
from core.plan import scheduler
from core.plan.goal import Goal
from core.plan.goal_status import FINAL
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from tests.support.api_client import PATIENCE_S
from tests.support.causes import USER
from tests.support.core_kit import Started, build_plan, wait_set
from tests.support.core_plans import flatten, specs
from tests.support.scheduler_kit import CANCELLED, COMPLETED, FAILED, fail, inner, leaf, make_plan, run_plan, statuses
from tests.support.servers import gate, wait_until

SHUTDOWN = Cause(CauseWord.SHUTDOWN)


def causes(goals: dict[str, Goal]) -> dict[str, str]:
    """Word of each cancelled goal's cause by id."""
    return {name: goal.cause.word.value for name, goal in goals.items() if goal.cause is not None}


class Held:
    """Work of leaves: each waits until it is stopped, or all are let go."""

    def __init__(self, *free: str) -> None:
        """``free``: those that do not wait."""
        self._free = free
        self._begun: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._lock = threading.Lock()
        self._go: Future[None] = Future()

    def __call__(self, goal: Goal) -> str:
        self._event(goal.id).set()
        assert goal.scope is not None
        if goal.id not in self._free:
            goal.scope.wait_for(self._go, PATIENCE_S)
        return f"did {goal.id}"

    def _event(self, name: str) -> threading.Event:
        with self._lock:
            return self._begun[name]

    def wait_begun(self, *names: str) -> None:
        """Until they are at work."""
        for name in names:
            wait_set(self._event(name))

    def let_go(self) -> None:
        """All of them, from now on."""
        self._go.set_result(None)


def test_what_runs_and_what_waits_for_it_end_and_the_rest_goes_on() -> None:
    held = Held()
    plan, goals = make_plan(held, leaf("a"), leaf("b", "a"), leaf("c", "b"), leaf("d"), leaf("e", "d"))
    running = Started(plan.run)
    held.wait_begun("a", "d")
    assert plan.stop_goal(goals["a"], USER) is Verdict.FIRST
    wait_until(lambda: goals["c"].is_final, "the end of what depends on it")
    assert goals["d"].status.value == "IN_PROGRESS"
    held.let_go()
    assert running.result() is CANCELLED
    assert statuses(goals) == {"a": "CANCELLED", "b": "CANCELLED", "c": "CANCELLED", "d": "COMPLETED", "e": "COMPLETED"}
    assert causes(goals) == {"a": "user", "b": "dependency", "c": "dependency"}


def test_all_that_is_inside_a_goal_has_its_cause_and_what_waits_outside_has_not() -> None:
    held = Held("done")
    plan, goals = make_plan(
        held,
        inner(
            "i", leaf("done"), leaf("runs"), leaf("waits", "runs"), inner("deep", leaf("deeper"), depends_on=("waits",))
        ),
        leaf("after", "i"),
        leaf("beside"),
    )
    running = Started(plan.run)
    held.wait_begun("runs", "beside")
    wait_until(lambda: goals["done"].is_final, "the end of the first")
    assert plan.stop_goal(goals["i"], USER) is Verdict.FIRST
    held.let_go()
    running.result()
    inside = dict.fromkeys(["i", "runs", "waits", "deep", "deeper"], "user")
    assert causes(goals) == {**inside, "after": "dependency"}
    assert {goals["done"].status, goals["beside"].status} == {COMPLETED}


def test_a_goal_that_has_not_begun_is_stopped_under_the_lock_so_that_it_cannot_begin_in_between() -> None:
    held, noted = Held(), list[str]()
    plan, goals = make_plan(held, leaf("a"), places=1)
    with gate("scheduler.before_goal_starts") as before:
        running = Started(plan.run)
        before.wait_reached()

        def first() -> None:
            assert plan.lock.locked()
            noted.append(goals["a"].status.value)

        assert plan.stop_goal(goals["a"], USER, first) is Verdict.FIRST
    assert running.result() is CANCELLED
    assert noted == ["NOT_STARTED"]
    assert goals["a"].started_at is None


def test_a_goal_that_begins_while_its_stop_takes_the_lock_is_reached_through_its_scope() -> None:
    held = Held()
    plan, goals = make_plan(held, leaf("a"))
    running = Started(plan.run)
    held.wait_begun("a")
    seen: list[bool] = []
    assert plan.stop_goal(goals["a"], USER, lambda: seen.append(goals["a"].scope is not None)) is Verdict.FIRST
    assert running.result() is CANCELLED
    assert seen == [True]


def test_before_the_plan_runs_a_goal_can_be_stopped_and_the_others_run() -> None:
    plan, goals = make_plan(lambda goal: goal.id, leaf("a"), leaf("b", "a"), inner("i", leaf("c")), leaf("d"))
    assert plan.stop_goal(goals["a"], USER) is Verdict.FIRST
    assert plan.stop_goal(goals["i"], USER) is Verdict.FIRST
    assert run_plan(plan) is CANCELLED
    assert causes(goals) == {"a": "user", "b": "dependency", "i": "user", "c": "user"}
    assert goals["d"].status is COMPLETED


def test_a_plan_whose_every_goal_was_stopped_before_it_ran_ends() -> None:
    plan, goals = make_plan(fail, leaf("a"), inner("i", leaf("b")))
    for name in ("a", "i"):
        plan.stop_goal(goals[name], USER)
    assert run_plan(plan) is CANCELLED
    assert set(causes(goals).values()) == {"user"}


def test_the_second_stop_joins_and_one_that_comes_after_the_end_is_over() -> None:
    held, firsts = Held(), Counter[str]()
    plan, goals = make_plan(held, leaf("a"), leaf("b"))
    running = Started(plan.run)
    held.wait_begun("a", "b")
    go_on = threading.Event()

    def first() -> None:
        firsts["a"] += 1
        assert plan.stop_goal(goals["a"], SHUTDOWN, lambda: firsts.update(["again"])) is Verdict.JOINED
        go_on.set()

    assert plan.stop_goal(goals["a"], USER, first) is Verdict.FIRST
    assert go_on.is_set()
    wait_until(lambda: goals["a"].is_final, "its end")
    assert plan.stop_goal(goals["a"], SHUTDOWN, lambda: firsts.update(["late"])) is Verdict.OVER
    held.let_go()
    running.result()
    assert firsts == {"a": 1}
    assert causes(goals) == {"a": "user"}


def test_a_goal_that_has_not_begun_in_a_plan_that_is_being_stopped_gets_the_plans_cause() -> None:
    firsts: list[str] = []
    plan, goals = make_plan(fail, leaf("a"), leaf("b", "a"))
    plan.scope.cancel(SHUTDOWN)
    assert plan.stop_goal(goals["b"], USER, lambda: firsts.append("b")) is Verdict.JOINED
    assert run_plan(plan) is CANCELLED
    assert causes(goals) == {"a": "shutdown", "b": "shutdown"}
    assert firsts == []


def test_a_goal_that_fails_because_it_was_stopped_is_cancelled_and_keeps_the_words() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> str:
        assert goal.scope is not None
        at_work.set()
        try:
            goal.scope.sleep(PATIENCE_S)
        finally:
            fail(goal)
        return ""

    plan, goals = make_plan(work, leaf("a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.stop_goal(goals["a"], USER)
    assert running.result() is CANCELLED
    assert (goals["a"].cause, goals["a"].error) == (USER, "a failed")


def test_except_exception_in_the_work_does_not_swallow_the_stop_of_its_goal() -> None:
    at_work, tries = threading.Event(), list[int]()

    def work(goal: Goal) -> str:
        assert goal.scope is not None
        for number in range(3):
            try:
                tries.append(number)
                at_work.set()
                goal.scope.sleep(PATIENCE_S)
            except Exception:  # what careless work does
                continue
        return "swallowed"

    plan, goals = make_plan(work, leaf("a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.stop_goal(goals["a"], USER)
    assert running.result() is CANCELLED
    assert (tries, goals["a"].status, goals["a"].result) == ([0], CANCELLED, None)


def test_work_that_never_listens_is_left_behind_when_its_goal_is_stopped_and_the_plan_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "ABANDON_AFTER_S", 0.1)
    at_work, go, left = threading.Event(), threading.Event(), list[str]()

    def work(goal: Goal) -> str:
        if goal.id == "deaf":
            at_work.set()
            assert go.wait(PATIENCE_S)
        return f"did {goal.id}"

    plan, goals = build_plan(
        {"goals": [leaf("deaf"), leaf("after", "deaf"), leaf("b"), leaf("c", "b")]}, CallPool(1), work,
        note_abandoned=lambda goal: left.append(goal.id),
    )  # fmt: skip
    running = Started(plan.run)
    wait_set(at_work)
    assert plan.stop_goal(goals["deaf"], USER) is Verdict.FIRST
    assert running.result() is CANCELLED  # on the one place, which was given back
    assert statuses(goals) == {"deaf": "CANCELLED", "after": "CANCELLED", "b": "COMPLETED", "c": "COMPLETED"}
    assert left == ["deaf"]
    go.set()
    pool = plan.workers
    assert isinstance(pool, CallPool)
    wait_until(lambda: not (pool.busy or pool.abandoned), "every place given back")
    assert goals["deaf"].result is None


# -- plans that were delegated -----------------------------------------------------------------------------


def delegate(owner: Goal, work: Callable[[Goal], Any], *names: str) -> tuple[Plan, dict[str, Goal]]:
    """A plan that a tool call of a goal has started."""
    assert owner.scope is not None
    plan = Plan(owner.scope, owner.plan.workers, work, delegated_by=(owner, "c_1"))
    goals = {name: Goal(plan, name, name, "p", plan.plan_goal) for name in names}
    with owner.plan.lock:
        owner.delegated = (*owner.delegated, plan)
    return plan, goals


@pytest.mark.parametrize("whom", ["owner", "inside", "plan"])
def test_a_stop_reaches_delegated_goals_from_above_and_a_stop_of_one_of_them_goes_no_higher(whom: str) -> None:
    held, made = Held(), dict[str, Goal]()

    def work(goal: Goal) -> str:
        plan, goals = delegate(goal, held, "x", "y")
        made.update(goals)
        plan.run()
        return "told"

    plan, goals = make_plan(work, leaf("owner"))
    running = Started(plan.run)
    wait_until(lambda: len(made) == 2, "the delegated goals")
    held.wait_begun("x", "y")
    assert [goal.id for goal in plan.walk_all()] == ["owner", "x", "y"]
    if whom == "plan":
        plan.scope.cancel(USER)
    else:
        target = goals["owner"] if whom == "owner" else made["x"]
        assert target.plan.stop_goal(target, USER) is Verdict.FIRST
    if whom == "inside":
        wait_until(lambda: made["x"].is_final, "its end")
        assert made["y"].status.value == "IN_PROGRESS"
        held.let_go()
    running.result()
    if whom == "inside":
        assert (goals["owner"].status, goals["owner"].result) == (COMPLETED, "told")
        assert (made["x"].cause, made["y"].status) == (USER, COMPLETED)
    else:
        assert causes(goals) | causes(made) == {"owner": "user", "x": "user", "y": "user"}


def test_delegated_work_that_never_listens_is_abandoned_with_the_goal_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "ABANDON_AFTER_S", 0.1)
    at_work, go, made = threading.Event(), threading.Event(), dict[str, Goal]()

    def deaf(goal: Goal) -> str:
        at_work.set()
        assert go.wait(PATIENCE_S)
        return "late"

    def work(goal: Goal) -> str:
        plan, goals = delegate(goal, deaf, "x", "y")
        made.update(goals)
        # Deaf as well: only the plan above can end what is inside.
        Started(plan.run)
        return deaf(goal)

    plan, goals = make_plan(work, leaf("owner"), places=2)
    running = Started(plan.run)
    wait_set(at_work)
    wait_until(lambda: len(made) == 2, "the delegated goals")
    plan.scope.cancel(USER)
    assert running.result() is CANCELLED
    assert {goal.status for goal in [*goals.values(), *made.values()]} == {CANCELLED}
    go.set()
    pool = plan.workers
    assert isinstance(pool, CallPool)
    wait_until(lambda: not (pool.busy or pool.abandoned), "every place given back")
    assert {goal.result for goal in [*goals.values(), *made.values()]} == {None}


# -- any plan, any goals -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(spec=specs(8), draw=st.data())
def test_whatever_is_stopped_whenever_each_goal_ends_once_and_by_the_rules(spec: PlanSpec, draw: st.DataObject) -> None:
    flat = flatten(spec)
    names = draw.draw(st.lists(st.sampled_from(sorted(flat)), min_size=1, max_size=3, unique=True))
    moment = draw.draw(st.sampled_from(sorted(flat)))
    noted: list[tuple[str, str]] = []
    answers: dict[str, Verdict] = {}

    def note(goal: Goal) -> None:
        noted.append((goal.id, goal.status.value))

    def work(goal: Goal) -> str:
        if goal.id == moment:
            for name in names:
                answers[name] = plan.stop_goal(goals[name], USER)
            assert goal.scope is not None
            goal.scope.checkpoint()
        return goal.id

    plan, goals = build_plan(spec, CallPool(2), work, note=note)
    if goals[moment].children:
        answers = {name: plan.stop_goal(goals[name], USER) for name in names}
    Started(plan.run).result()
    assert all(goal.status in FINAL and goal.status is not FAILED for goal in goals.values())
    ends = Counter(name for name, status in noted if status in {"COMPLETED", "FAILED", "CANCELLED"})
    assert set(ends.values()) == {1} and set(ends) == set(goals)
    for name, goal in goals.items():
        if goal.status is COMPLETED:
            assert all(other.status is COMPLETED for other in [*goal.depends_on, *goal.children])
            assert answers.get(name) is not Verdict.FIRST or goal.children
        else:
            reasons = [*goal.depends_on, *goal.children, *([goal.parent] if goal.parent is not plan.plan_goal else [])]
            assert answers.get(name) is Verdict.FIRST or any(other.status is CANCELLED for other in reasons if other)
