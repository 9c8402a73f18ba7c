"""The scheduling loop: order, verdicts, the stop in every place, and size."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.cancellation import Cancelled, Cause, CauseWord, Level
from core.engine.call_pool import CallPool
from core.errors import ProviderError
from core.plan import scheduler
from core.plan.goal import Goal
from core.plan.goal_status import FINAL, GoalStatus
from core.plan.plan import Plan
from core.plan.plan_spec import PlanSpec
from tests.support.api_client import PATIENCE_S
from tests.support.core_kit import Started, build_plan, wait_set
from tests.support.core_plans import flatten, specs
from tests.support.servers import wait_until

USER = Cause(CauseWord.USER, "enough")
COMPLETED, FAILED, CANCELLED = GoalStatus.COMPLETED, GoalStatus.FAILED, GoalStatus.CANCELLED


def _leaf(goal_id: str, *depends_on: str) -> dict[str, Any]:
    return {"id": goal_id, "prompt": "p", "depends_on": list(depends_on)}


def _inner(goal_id: str, *goals: dict[str, Any], depends_on: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"id": goal_id, "goals": list(goals), "depends_on": list(depends_on)}


def _plan(work: Callable[[Goal], str | None], *goals: dict[str, Any], places: int = 4) -> tuple[Plan, dict[str, Goal]]:
    return build_plan({"goals": list(goals)}, CallPool(places), work)


def _run(plan: Plan) -> GoalStatus:
    status = Started(plan.run).result()
    assert isinstance(status, GoalStatus)
    return status


def _fail(goal: Goal) -> str:
    raise ProviderError(f"{goal.id} failed")


def _statuses(goals: dict[str, Goal]) -> dict[str, str]:
    return {name: goal.status.value for name, goal in goals.items()}


# -- order and verdicts -----------------------------------------------------------------------------


def test_a_goal_starts_after_all_it_depends_on_have_completed() -> None:
    ended: list[str] = []

    def work(goal: Goal) -> str:
        assert all(other.status is COMPLETED for other in goal.depends_on)
        ended.append(goal.id)
        return f"did {goal.id}"

    plan, goals = _plan(work, _leaf("d", "b", "c"), _leaf("b", "a"), _leaf("c", "a"), _leaf("a"))
    assert _run(plan) is COMPLETED
    assert (ended[0], ended[-1]) == ("a", "d")
    assert goals["d"].result == "did d"
    assert all(goal.started_at and goal.ended_at and goal.started_at <= goal.ended_at for goal in goals.values())


def test_goals_that_nothing_holds_back_run_at_once() -> None:
    together = threading.Barrier(4)

    def work(_: Goal) -> None:
        together.wait(PATIENCE_S)

    plan, _ = _plan(work, *(_leaf(name) for name in "abcd"))
    assert _run(plan) is COMPLETED


def test_a_failed_goal_cancels_what_depends_on_it_and_its_siblings_go_on() -> None:
    def work(goal: Goal) -> str:
        return _fail(goal) if goal.id == "a" else "fine"

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"), _inner("c", _leaf("d"), depends_on=("b",)), _leaf("e"))
    assert _run(plan) is FAILED
    assert _statuses(goals) == {
        "a": "FAILED", "b": "CANCELLED", "c": "CANCELLED", "d": "CANCELLED", "e": "COMPLETED",
    }  # fmt: skip
    assert goals["a"].error == "a failed"
    assert goals["b"].cause == Cause(CauseWord.DEPENDENCY)
    assert goals["b"].started_at is None


def test_an_unexpected_error_fails_the_goal_and_tells_only_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    def work(goal: Goal) -> str:
        raise KeyError("/etc/secret")

    plan, goals = _plan(work, _leaf("a"))
    assert _run(plan) is FAILED
    assert goals["a"].error == "internal error (KeyError)"
    assert "a goal failed with an unexpected KeyError" in caplog.text


def test_a_499_cancels_the_goal_and_its_dependents_and_nothing_else() -> None:
    def work(goal: Goal) -> str:
        if goal.id == "a":
            assert goal.scope is not None
            raise goal.scope.open(Level.CALL, "c").cancelled_by_peer(Cause(CauseWord.OPERATOR))
        return "fine"

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"), _leaf("c"))
    assert _run(plan) is CANCELLED
    assert _statuses(goals) == {"a": "CANCELLED", "b": "CANCELLED", "c": "COMPLETED"}
    assert goals["a"].cause == Cause(CauseWord.OPERATOR)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [("ccc", COMPLETED), ("cxc", CANCELLED), ("xfc", FAILED), ("fxx", FAILED), ("xxx", CANCELLED)],
)
@pytest.mark.parametrize("places", [1, 3])
def test_an_inner_goal_is_failed_over_cancelled_over_completed_whoever_ends_last(
    outcomes: str, verdict: GoalStatus, places: int
) -> None:
    def work(goal: Goal) -> str:
        assert goal.scope is not None
        match outcomes[int(goal.id)]:
            case "f":
                return _fail(goal)
            case "x":
                raise goal.scope.cancelled_by_peer(USER)
        return "fine"

    plan, goals = _plan(work, _inner("i", *(_leaf(str(n)) for n in range(3))), places=places)
    assert _run(plan) is verdict
    assert goals["i"].status is verdict
    assert goals["i"].cause == (USER if verdict is CANCELLED else None)


def test_an_inner_goal_all_of_whose_children_were_cancelled_before_it_opened_says_why() -> None:
    def work(goal: Goal) -> str:
        return _fail(goal) if goal.id == "a" else "fine"

    plan, goals = _plan(work, _leaf("a"), _leaf("b"), _inner("i", _leaf("c", "a"), depends_on=("b",)), places=1)
    assert _run(plan) is FAILED
    assert goals["i"].status is CANCELLED
    assert goals["i"].cause == Cause(CauseWord.DEPENDENCY)


def test_a_plan_without_goals_completes() -> None:
    plan, _ = build_plan(PlanSpec.model_construct(goals=[]), CallPool(1), _fail)
    assert _run(plan) is COMPLETED


def test_the_first_final_state_of_a_goal_stands() -> None:
    plan, goals = _plan(lambda _: "fine", _leaf("a"))
    _run(plan)
    assert not goals["a"].set_goal_status(CANCELLED, USER)
    assert not goals["a"].set_goal_status(GoalStatus.IN_PROGRESS)
    assert (goals["a"].status, goals["a"].cause, goals["a"].result) == (COMPLETED, None, "fine")


def test_a_status_that_is_set_from_outside_releases_what_waited_for_it() -> None:
    standing, let_go = threading.Event(), threading.Event()

    def work(goal: Goal) -> str:
        if goal.id == "a":
            standing.set()
            wait_set(let_go)
        return goal.id

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"), places=2)
    running = Started(plan.run)
    wait_set(standing)
    assert goals["a"].set_goal_status(COMPLETED, result="from outside")
    assert running.result() is COMPLETED
    assert goals["b"].result == "b"
    let_go.set()
    assert goals["a"].result == "from outside"


def test_active_goals_are_the_leaves_at_work() -> None:
    at_work, let_go = threading.Semaphore(0), threading.Event()

    def work(goal: Goal) -> None:
        at_work.release()
        wait_set(let_go)

    plan, goals = _plan(work, _inner("i", _leaf("a"), _leaf("b")), _leaf("c", "a"), _leaf("d"))
    assert plan.plan_goal.get_active_goals() == []
    running = Started(plan.run)
    for _ in range(3):
        assert at_work.acquire(timeout=PATIENCE_S)
    assert [goal.id for goal in plan.plan_goal.get_active_goals()] == ["a", "b", "d"]
    assert goals["i"].status is GoalStatus.CHILDREN_IN_PROGRESS
    assert [goal.id for goal in goals["i"].get_active_goals()] == ["a", "b"]
    let_go.set()
    assert running.result() is COMPLETED


# -- the stop ---------------------------------------------------------------------------------------------


def test_a_plan_that_was_stopped_before_it_ran_starts_nothing() -> None:
    plan, goals = _plan(_fail, _leaf("a"), _inner("i", _leaf("b")))
    plan.scope.cancel(USER)
    assert _run(plan) is CANCELLED
    assert {goal.status for goal in goals.values()} == {CANCELLED}
    assert {goal.cause for goal in goals.values()} == {USER}
    assert {goal.started_at for goal in goals.values()} == {None}


def test_a_stop_ends_what_runs_and_what_waits() -> None:
    at_work = threading.Event()

    def work(goal: Goal) -> None:
        assert goal.scope is not None
        at_work.set()
        goal.scope.sleep(3600)

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"), _leaf("c"), _inner("i", _leaf("d", "b")), places=1)
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

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"))
    running = Started(plan.run)
    wait_set(at_work)
    plan.scope.cancel(USER)
    running.result()
    assert _statuses(goals) == {"a": "COMPLETED", "b": "CANCELLED"}
    assert goals["a"].result == "done"


def test_work_that_ends_normally_though_it_was_stopped_is_cancelled_and_not_completed() -> None:
    at_work, let_go = threading.Event(), threading.Event()

    def work(_: Goal) -> str:
        at_work.set()
        wait_set(let_go)
        return "as if nothing had happened"

    plan, goals = _plan(work, _leaf("a"))
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

    plan, goals = _plan(work, _leaf("a"))
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

    plan, goals = _plan(work, _leaf("a"), _leaf("b", "a"), _leaf("c"))
    running = Started(plan.run)
    wait_set(at_work)
    assert goals["a"].scope is not None
    goals["a"].scope.cancel(USER)
    assert running.result() is CANCELLED
    assert _statuses(goals) == {"a": "CANCELLED", "b": "CANCELLED", "c": "COMPLETED"}


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
        {"goals": [_inner("i", _leaf("deaf")), _leaf("next", "deaf"), _leaf("other")]}, pool, work,
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
            return _fail(goal)
        if outcome[goal.id] == "x":
            raise goal.scope.cancelled_by_peer(Cause(CauseWord.OPERATOR))
        return goal.id

    pool = CallPool(places)
    plan, goals = build_plan(spec, pool, work, note=lambda goal: history.append((goal.id, goal.status)))
    if stop_at == 0 and not deaf:
        plan.scope.cancel(USER)
    verdict = _run(plan)

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
        goals_in = [_leaf(n, *dice.sample(names[: int(n)], min(int(n), 2))) for n in names]
        plan, goals = _plan(lambda goal: goal.id, *goals_in, places=2)
        running = Started(plan.run)
        threading.Event().wait(dice.random() / 500)  # a random moment is what is tried
        plan.scope.cancel(USER)
        verdict = running.result()
        assert all(goal.is_final for goal in goals.values())
        assert verdict is _verdict([goal.status for goal in goals.values()])
        assert not plan.scope._children


# -- size ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [50, 100])
def test_one_thread_runs_a_deep_plan(depth: int) -> None:
    goal = _leaf("leaf")
    for level in range(depth - 1):
        goal = _inner(f"i{level}", goal, _leaf(f"beside{level}"))
    plan, goals = _plan(lambda each: each.id, goal, places=1)
    assert _run(plan) is COMPLETED
    assert len(goals) == 2 * depth - 1


def _wide(count: int) -> list[dict[str, Any]]:
    return [_leaf(str(n)) for n in range(count)]


def _chain(count: int) -> list[dict[str, Any]]:
    return [_leaf("0"), *(_leaf(str(n), str(n - 1)) for n in range(1, count))]


def _layered(count: int) -> list[dict[str, Any]]:
    width = 100
    return [
        _leaf(str(n), *(str(n // width * width - width + (n + step) % width) for step in range(3)) if n >= width else ())
        for n in range(count)
    ]


@pytest.mark.parametrize("shape", [_wide, _chain, _layered])
def test_ten_thousand_goals_complete_without_recursion_in_time_that_grows_with_their_number(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    def seconds(count: int) -> float:
        plan, _ = _plan(lambda _: None, *shape(count))
        begun = time.perf_counter()
        assert _run(plan) is COMPLETED
        return time.perf_counter() - begun

    seconds(100)
    small = max(min(seconds(1_000) for _ in range(2)), 0.02)
    # Ten times the goals: ten times the time if linear, a hundred times if quadratic.
    assert seconds(10_000) < small * 45


@pytest.mark.parametrize("shape", [_wide, _chain, _layered])
def test_ten_thousand_goals_are_cancelled_without_recursion_when_the_first_fails_or_a_stop_comes(
    shape: Callable[[int], list[dict[str, Any]]],
) -> None:
    plan, goals = _plan(lambda goal: _fail(goal) if goal.id == "0" else "fine", *shape(10_000))
    assert _run(plan) is FAILED
    assert all(goal.is_final for goal in goals.values())

    def work(goal: Goal) -> None:
        if goal.id == "0":
            goal.plan.scope.cancel(USER)

    plan, goals = _plan(work, *shape(10_000))
    assert _run(plan) is CANCELLED
    assert all(goal.is_final for goal in goals.values())


def test_a_leaf_that_is_run_by_hand_works_or_meets_the_stop() -> None:
    plan, goals = _plan(lambda goal: f"did {goal.id}", _leaf("a"))
    assert goals["a"].run() == "did a"
    plan.scope.cancel(USER)
    with pytest.raises(Cancelled):
        goals["a"].run()


def test_a_plan_whose_goals_cannot_be_started_still_says_so() -> None:
    class NoThreads(CallPool):
        def submit(self, jobs: object) -> None:
            raise RuntimeError("no threads")

    plan, _ = build_plan({"goals": [_leaf("a")]}, NoThreads(1), lambda _: None)
    with pytest.raises(RuntimeError):
        Started(plan.run).result()
    assert plan.scheduler is None
