"""The scheduling loop: the order of goals, and the verdicts."""

from __future__ import annotations

import threading

import pytest

from core.cancellation import Cancelled, Cause, CauseWord, Level
from core.engine.call_pool import CallPool
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan_spec import PlanSpec
from tests.support.api_client import PATIENCE_S
from tests.support.causes import USER
from tests.support.core_kit import Started, build_plan, wait_set
from tests.support.scheduler_kit import CANCELLED, COMPLETED, FAILED, fail, inner, leaf, make_plan, run_plan, statuses


def test_a_goal_starts_after_all_it_depends_on_have_completed() -> None:
    ended: list[str] = []

    def work(goal: Goal) -> str:
        assert all(other.status is COMPLETED for other in goal.depends_on)
        ended.append(goal.id)
        return f"did {goal.id}"

    plan, goals = make_plan(work, leaf("d", "b", "c"), leaf("b", "a"), leaf("c", "a"), leaf("a"))
    assert run_plan(plan) is COMPLETED
    assert (ended[0], ended[-1]) == ("a", "d")
    assert goals["d"].result == "did d"
    assert all(goal.started_at and goal.ended_at and goal.started_at <= goal.ended_at for goal in goals.values())


def test_goals_that_nothing_holds_back_run_at_once() -> None:
    together = threading.Barrier(4)

    def work(_: Goal) -> None:
        together.wait(PATIENCE_S)

    plan, _ = make_plan(work, *(leaf(name) for name in "abcd"))
    assert run_plan(plan) is COMPLETED


def test_a_failed_goal_cancels_what_depends_on_it_and_its_siblings_go_on() -> None:
    def work(goal: Goal) -> str:
        return fail(goal) if goal.id == "a" else "fine"

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"), inner("c", leaf("d"), depends_on=("b",)), leaf("e"))
    assert run_plan(plan) is FAILED
    assert statuses(goals) == {
        "a": "FAILED", "b": "CANCELLED", "c": "CANCELLED", "d": "CANCELLED", "e": "COMPLETED",
    }  # fmt: skip
    assert goals["a"].error == "a failed"
    assert goals["b"].cause == Cause(CauseWord.DEPENDENCY)
    assert goals["b"].started_at is None


def test_an_unexpected_error_fails_the_goal_and_tells_only_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    def work(goal: Goal) -> str:
        raise KeyError("/etc/secret")

    plan, goals = make_plan(work, leaf("a"))
    assert run_plan(plan) is FAILED
    assert goals["a"].error == "internal error (KeyError)"
    assert caplog.messages == ["a goal of r_1 failed with an unexpected KeyError"]


def test_the_log_names_the_goal_that_failed_and_its_run_and_no_words_of_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, _ = make_plan(fail, leaf("a"))
    assert run_plan(plan) is FAILED
    assert caplog.messages == ["a goal of r_1 failed: provider_error"]


def test_a_499_cancels_the_goal_and_its_dependents_and_nothing_else() -> None:
    def work(goal: Goal) -> str:
        if goal.id == "a":
            assert goal.scope is not None
            raise goal.scope.open(Level.CALL, "c").cancelled_by_peer(Cause(CauseWord.OPERATOR))
        return "fine"

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"), leaf("c"))
    assert run_plan(plan) is CANCELLED
    assert statuses(goals) == {"a": "CANCELLED", "b": "CANCELLED", "c": "COMPLETED"}
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
                return fail(goal)
            case "x":
                raise goal.scope.cancelled_by_peer(USER)
        return "fine"

    plan, goals = make_plan(work, inner("i", *(leaf(str(n)) for n in range(3))), places=places)
    assert run_plan(plan) is verdict
    assert goals["i"].status is verdict
    assert goals["i"].cause == (USER if verdict is CANCELLED else None)


def test_an_inner_goal_all_of_whose_children_were_cancelled_before_it_opened_says_why() -> None:
    def work(goal: Goal) -> str:
        return fail(goal) if goal.id == "a" else "fine"

    plan, goals = make_plan(work, leaf("a"), leaf("b"), inner("i", leaf("c", "a"), depends_on=("b",)), places=1)
    assert run_plan(plan) is FAILED
    assert goals["i"].status is CANCELLED
    assert goals["i"].cause == Cause(CauseWord.DEPENDENCY)


def test_a_plan_without_goals_completes() -> None:
    plan, _ = build_plan(PlanSpec.model_construct(goals=[]), CallPool(1), fail)
    assert run_plan(plan) is COMPLETED


def test_the_first_final_state_of_a_goal_stands() -> None:
    plan, goals = make_plan(lambda _: "fine", leaf("a"))
    run_plan(plan)
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

    plan, goals = make_plan(work, leaf("a"), leaf("b", "a"), places=2)
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

    plan, goals = make_plan(work, inner("i", leaf("a"), leaf("b")), leaf("c", "a"), leaf("d"))
    assert plan.plan_goal.get_active_goals() == []
    running = Started(plan.run)
    for _ in range(3):
        assert at_work.acquire(timeout=PATIENCE_S)
    assert [goal.id for goal in plan.plan_goal.get_active_goals()] == ["a", "b", "d"]
    assert goals["i"].status is GoalStatus.CHILDREN_IN_PROGRESS
    assert [goal.id for goal in goals["i"].get_active_goals()] == ["a", "b"]
    let_go.set()
    assert running.result() is COMPLETED


def test_a_leaf_that_is_run_by_hand_works_or_meets_the_stop() -> None:
    plan, goals = make_plan(lambda goal: f"did {goal.id}", leaf("a"))
    assert goals["a"].run() == "did a"
    plan.scope.cancel(USER)
    with pytest.raises(Cancelled):
        goals["a"].run()


def test_a_plan_whose_goals_cannot_be_started_still_says_so() -> None:
    class NoThreads(CallPool):
        def submit(self, jobs: object) -> None:
            raise RuntimeError("no threads")

    plan, _ = build_plan({"goals": [leaf("a")]}, NoThreads(1), lambda _: None)
    with pytest.raises(RuntimeError):
        Started(plan.run).result()
    assert plan.scheduler is None
