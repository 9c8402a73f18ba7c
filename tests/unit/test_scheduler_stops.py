"""A stop of the scheduling loop, in every place and at any moment, whatever the plan and its outcomes."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.cancellation import Cause, CauseWord
from core.engine.call_pool import CallPool
from core.errors import ProviderError
from core.plan import scheduler
from core.plan.goal import Goal
from core.plan.goal_status import FINAL, GoalStatus
from core.plan.plan_spec import PlanSpec
from tests.support.causes import USER
from tests.support.core_kit import Started, build_plan, wait_set
from tests.support.core_plans import flatten, specs
from tests.support.scheduler_kit import CANCELLED, COMPLETED, FAILED, fail, inner, leaf, make_plan, run_plan, statuses
from tests.support.servers import wait_until

# -- the stop ---------------------------------------------------------------------------------------------


def test_a_plan_that_was_stopped_before_it_ran_starts_nothing() -> None:
    plan, goals = make_plan(fail, leaf("a"), inner("i", leaf("b")))
    plan.scope.cancel(USER)
    assert run_plan(plan) is CANCELLED
    assert {goal.status for goal in goals.values()} == {CANCELLED}
    assert {goal.cause for goal in goals.values()} == {USER}
    assert {goal.started_at for goal in goals.values()} == {None}


def test_a_stop_ends_what_runs_and_what_waits() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> None:
        assert goal.scope is not None
        at_work.set()
        goal.scope.sleep(3600)

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"), leaf("c"), inner("i", leaf("d", "b")), places=1)
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    assert running.result() is CANCELLED
    assert {goal.status for goal in goals.values()} == {CANCELLED}
    assert {goal.cause for goal in goals.values()} == {USER}
    assert sum(goal.started_at is not None for name, goal in goals.items() if name != "i") == 1


def test_a_goal_that_finished_before_the_stop_stays_completed() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> str:
        assert goal.scope is not None
        if goal.id == "b":
            at_work.set()
            goal.scope.sleep(3600)
        return "done"

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    running.result()
    assert statuses(goals) == {"a": "COMPLETED", "b": "CANCELLED"}
    assert goals["a"].result == "done"


def test_work_that_ends_normally_though_it_was_stopped_is_cancelled_and_not_completed() -> None:
    at_work, let_go = threading.Event(), threading.Event()

    def work(_: Goal) -> str:
        at_work.set()
        wait_set(let_go)
        return "as if nothing had happened"

    plan, goals = make_plan(work, leaf("a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    let_go.set()
    running.result()
    assert (goals["a"].status, goals["a"].cause, goals["a"].result) == (CANCELLED, USER, None)


def test_a_clean_up_that_fails_during_a_stop_does_not_beat_it() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> None:
        assert goal.scope is not None
        at_work.set()
        try:
            goal.scope.sleep(3600)
        finally:
            raise ProviderError("the clean-up failed")

    plan, goals = make_plan(work, leaf("a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    running.result()
    assert (goals["a"].status, goals["a"].cause, goals["a"].error) == (CANCELLED, USER, "the clean-up failed")


def test_a_stop_of_one_goal_ends_it_and_its_dependents_and_the_plan_goes_on() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> None:
        assert goal.scope is not None
        if goal.id == "a":
            at_work.set()
            goal.scope.sleep(3600)

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"), leaf("c"))
    running = Started(plan.run)
    wait_set(at_work)
    assert goals["a"].scope is not None
    goals["a"].scope.cancel(USER)
    assert running.result() is CANCELLED
    assert statuses(goals) == {"a": "CANCELLED", "b": "CANCELLED", "c": "COMPLETED"}


def test_work_that_hears_nothing_is_abandoned_and_its_late_result_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "ABANDON_AFTER_S", 0.05)
    at_work, let_go, ended = threading.Event(), threading.Event(), threading.Event()
    abandoned: list[str] = []
    noted: list[tuple[str, str]] = []

    def work(goal: Goal) -> str:
        at_work.set()
        wait_set(let_go)
        ended.set()
        return "late"

    pool = CallPool(1)
    plan, goals = build_plan(
        {"goals": [inner("i", leaf("deaf")), leaf("next", "deaf"), leaf("other")]}, pool, work,
        note=lambda goal: noted.append((goal.id, goal.status)),
        note_abandoned=lambda goal: abandoned.append(goal.id),
    )  # fmt: skip
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    assert running.result() is CANCELLED
    assert (abandoned, pool.abandoned) == (["deaf"], 1)
    wait_until(lambda: pool.busy == 0, "its place is free")
    let_go.set()
    wait_set(ended)
    wait_until(lambda: pool.abandoned == 0, "the thread came back")
    assert {goal.status for goal in goals.values()} == {CANCELLED}
    assert goals["deaf"].result is None
    assert max(Counter(name for name, status in noted if status in FINAL).values()) == 1
    done = threading.Event()
    pool.submit([done.set])
    wait_set(done, "the place is usable again")


# -- any plan, any outcomes, any moment of a stop ------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), data=st.data())
def test_whatever_the_plan_its_outcomes_and_the_moment_of_a_stop_it_ends_by_the_rules(
    spec: PlanSpec, data: st.DataObject
) -> None:
    shape = flatten(spec)
    leaves = [name for name, (goal, _) in shape.items() if not goal.goals]
    outcome = {name: data.draw(st.sampled_from("ccccfx")) for name in leaves}
    stop_at = data.draw(st.none() | st.integers(0, len(leaves)))
    deaf = data.draw(st.booleans())
    places = data.draw(st.integers(1, 3))
    started: list[str] = []
    lock = threading.Lock()
    history: list[tuple[str, GoalStatus]] = []

    def work(goal: Goal) -> str | None:
        with lock:
            started.append(goal.id)
            is_stop = len(started) - 1 == stop_at
        assert all(other.status is COMPLETED for other in _all_dependencies(goal))
        if is_stop:
            plan.scope.cancel(USER)
            if deaf:
                return "though stopped"
        assert goal.scope is not None
        goal.scope.checkpoint()
        if outcome[goal.id] == "f":
            return fail(goal)
        if outcome[goal.id] == "x":
            raise goal.scope.cancelled_by_peer(Cause(CauseWord.OPERATOR))
        return goal.id

    pool = CallPool(places)
    plan, goals = build_plan(spec, pool, work, note=lambda goal: history.append((goal.id, goal.status)))
    if stop_at == 0 and not deaf:
        plan.scope.cancel(USER)
    verdict = run_plan(plan)

    assert all(goal.is_final for goal in goals.values())
    assert max(Counter(started).values(), default=1) == 1
    assert Counter(name for name, status in history if status in FINAL) == Counter(list(goals))
    for name, goal in goals.items():
        if goal.children:
            assert goal.status is _verdict([child.status for child in goal.children])
        elif name in started and not plan.scope.is_stopped:
            assert goal.status is {"c": COMPLETED, "f": FAILED, "x": CANCELLED}[outcome[name]]
        if any(other.status is not COMPLETED for other in _all_dependencies(goal)):
            assert goal.status is CANCELLED
            assert name not in started
        if name not in started and not goal.children:
            assert goal.status is CANCELLED
            assert goal.cause is not None
        assert (goal.cause is not None) == (goal.status is CANCELLED)
        assert goal.scope is None or not plan.scope.is_stopped or goal.is_final
    assert verdict is _verdict([goal.status for goal in plan.plan_goal.children])
    assert not plan.scope._children
    wait_until(lambda: pool.busy == 0, "every place is free")


def _all_dependencies(goal: Goal) -> list[Goal]:
    """What it waits for by itself or by what is around it."""
    found: list[Goal] = []
    around: Goal | None = goal
    while around is not None:
        found += around.depends_on
        around = around.parent
    return found


def _verdict(children: list[GoalStatus]) -> GoalStatus:
    return next(status for status in (FAILED, CANCELLED, COMPLETED) if status in children)


@pytest.mark.parametrize("seed", range(4))
def test_stops_from_another_thread_at_random_moments_leave_every_goal_final(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(25):
        names = [str(n) for n in range(30)]
        goals_in = [leaf(n, *dice.sample(names[: int(n)], min(int(n), 2))) for n in names]
        plan, goals = make_plan(lambda goal: goal.id, *goals_in, places=2)
        running = Started(plan.run)
        threading.Event().wait(dice.random() / 500)  # a random moment is what is tried
        plan.scope.cancel(USER)
        verdict = running.result()
        assert all(goal.is_final for goal in goals.values())
        assert verdict is _verdict([goal.status for goal in goals.values()])
        assert not plan.scope._children
