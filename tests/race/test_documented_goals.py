"""The documented stop, sentence by sentence: the plan, its goals, and where a running goal looks at the stop."""

import json
import threading
import time
from pathlib import Path

import pytest

from core.cancellation import Cancelled, Cause, CauseWord
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from tests.support.api_client import PATIENCE_S
from tests.support.plans import goal, start_plan
from tests.support.race_kit import USER, AskedAgent, Later, add_goal, bare_plan
from tests.support.raw_server import Peer, RawServer
from tests.support.servers import LocalServer, gate

ONE_OF_EACH = {
    "not started": GoalStatus.NOT_STARTED,
    "active": GoalStatus.IN_PROGRESS,
    "completed": GoalStatus.COMPLETED,
    "failed": GoalStatus.FAILED,
    "cancelled": GoalStatus.CANCELLED,
}


def _plan_with_one_of_each(agent: AskedAgent) -> Plan:
    """An inner goal whose children stand in every state, and one more active goal beside it."""
    plan = bare_plan()
    inner = add_goal(plan, "inner", agent=agent)
    inner.set_goal_status(GoalStatus.CHILDREN_IN_PROGRESS)
    for name, status in ONE_OF_EACH.items():
        child = add_goal(plan, name, inside=inner, agent=agent)
        if status in (GoalStatus.COMPLETED, GoalStatus.FAILED):
            child.set_goal_status(GoalStatus.IN_PROGRESS)
        child.set_goal_status(status)
    add_goal(plan, "second", agent=agent).set_goal_status(GoalStatus.IN_PROGRESS)
    return plan


# -- whom a stop asks -------------------------------------------------------------------------


def test_the_active_goals_are_those_in_progress_at_any_depth() -> None:
    plan = _plan_with_one_of_each(AskedAgent())
    assert [each.id for each in plan.plan_goal.get_active_goals()] == ["active", "second"]
    assert {each.id: each.status for each in plan.walk()} == {
        "inner": GoalStatus.CHILDREN_IN_PROGRESS, "second": GoalStatus.IN_PROGRESS, **ONE_OF_EACH,
    }  # fmt: skip


def test_only_goals_in_progress_are_asked_to_cancel() -> None:
    agent = AskedAgent()
    _plan_with_one_of_each(agent).cancel_llm_requests()
    assert sorted(agent.asked) == ["active", "second"]


def test_every_goal_is_a_task_of_its_own_so_that_all_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(8)  # passes only if eight stand at it at once
    agent = AskedAgent(lambda: together.wait(PATIENCE_S))
    plan = bare_plan()
    for number in range(8):
        add_goal(plan, f"g{number}", agent=agent).set_goal_status(GoalStatus.IN_PROGRESS)
    plan.cancel_llm_requests(PATIENCE_S)
    assert sorted(agent.asked) == [f"g{number}" for number in range(8)]
    assert not together.broken


def test_one_agent_that_fails_keeps_no_other_from_being_asked() -> None:
    def fail() -> None:
        raise RuntimeError("the agent is broken")

    agent = AskedAgent()
    plan = bare_plan()
    for number, each in enumerate((AskedAgent(fail), agent)):
        add_goal(plan, f"g{number}", agent=each).set_goal_status(GoalStatus.IN_PROGRESS)
    plan.cancel_llm_requests(PATIENCE_S)
    assert agent.asked == ["g1"]


class _SlowGateway:
    """Holds every chat request until its token is cancelled; each cancel takes 200 ms."""

    def __init__(self) -> None:
        self.cancels: list[bytes] = []
        self.tokens: list[str] = []
        self._cancelled: dict[str, threading.Event] = {}
        self._changed = threading.Condition()

    def __call__(self, peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            body = json.loads(request.body)
            if request.path == "/v1/cancel":
                self.cancels.append(request.body)
                time.sleep(0.2)  # what this gateway takes for it
                self._cancelled[body["cancellation_token"]].set()
                peer.answer(b'{"status": "cancelled"}')
                continue
            token = body["metadata"]["cancellation_token"]
            with self._changed:
                self._cancelled[token] = threading.Event()
                self.tokens.append(token)
                self._changed.notify_all()
            assert self._cancelled[token].wait(PATIENCE_S)
            peer.answer(b'{"error": {"code": 499}}', status="499 Client Closed Request")

    def wait_requests(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.tokens) >= number, PATIENCE_S)


def test_eight_requests_are_cancelled_in_far_less_than_eight_times_the_time_of_one(tmp_path: Path) -> None:
    gateway = _SlowGateway()
    with RawServer(gateway) as raw, LocalServer(tmp_path, raw.url, cancel_timeout_ms=20_000) as local:
        run = start_plan(local.api(), *(goal(f"g{number}", "work") for number in range(8)))
        gateway.wait_requests(8)
        asked_at = time.monotonic()
        assert local.api().post("/stopplan")["stopped"] is True
        assert time.monotonic() - asked_at < 4 * 0.2
        assert run.wait_parked() == "awaiting_input"
    sent = [json.loads(body) for body in gateway.cancels]
    assert sorted(each["cancellation_token"] for each in sent) == sorted(gateway.tokens)
    assert all(list(each) == ["cancellation_token"] for each in sent)


# -- where a running goal looks at the stop --------------------------------------------------------


def test_a_plan_runs_its_root_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = bare_plan()
    ran: list[Goal] = []
    monkeypatch.setattr(Goal, "run", lambda each: ran.append(each))  # noqa: PLW0108  # a built-in method would not be bound
    plan.run()
    assert ran == [plan.plan_goal]


def test_a_goal_looks_at_the_stop_at_its_beginning() -> None:
    done: list[str] = []
    plan = bare_plan(lambda each: done.append(each.id))
    leaf = add_goal(plan, "leaf")
    plan.scope.cancel(USER)
    for each in (leaf, plan.plan_goal):
        with pytest.raises(Cancelled):
            each.run()
    assert done == []


def test_a_goal_looks_at_the_stop_before_its_children() -> None:
    done: list[str] = []
    plan = bare_plan(lambda each: done.append(each.id))
    child = add_goal(plan, "child")
    with gate("goal.before_children") as point:
        running = Later(plan.run)
        point.wait_reached()
        plan.scope.cancel(USER)
        point.open()
        assert running.result() is GoalStatus.CANCELLED
    assert (done, child.status, child.started_at) == ([], GoalStatus.CANCELLED, None)


def test_the_scheduling_loop_looks_at_the_stop_before_each_further_goal() -> None:
    done: list[str] = []

    def work(each: Goal) -> str:
        done.append(each.id)
        each.plan.scope.cancel(USER)
        return "finished all the same"

    plan = bare_plan(work)
    first = add_goal(plan, "first")
    second = add_goal(plan, "second", first)
    assert plan.run() is GoalStatus.CANCELLED
    assert done == ["first"]
    assert [each.status for each in (first, second)] == [GoalStatus.CANCELLED] * 2
    assert second.started_at is None


@pytest.mark.parametrize("places", [1, 4])
def test_a_goal_that_is_about_to_start_at_a_stop_does_not_start(places: int) -> None:
    done: list[str] = []
    plan = bare_plan(lambda each: done.append(each.id), places)
    for name in ("a", "b"):
        add_goal(plan, name)
    with gate("scheduler.before_goal_starts") as spawning:
        running = Later(plan.run)
        spawning.wait_reached()
        plan.scope.cancel(USER)
        spawning.open()
        assert running.result() is GoalStatus.CANCELLED
    assert len(done) <= (places > 1)  # the other one may have had a place of its own
    assert all(each.is_final for each in plan.walk())


def test_a_stop_does_not_interrupt_python_code_that_does_not_look() -> None:
    go_on = threading.Event()
    began = threading.Event()
    seen: list[bool] = []

    def work(each: Goal) -> str:
        began.set()
        assert go_on.wait(PATIENCE_S)
        seen.append(True)
        return "its late result"

    plan = bare_plan(work)
    deaf = add_goal(plan, "deaf")
    running = Later(plan.run)
    assert began.wait(PATIENCE_S)
    plan.scope.cancel(USER)
    assert not seen
    go_on.set()
    assert running.result() is GoalStatus.CANCELLED
    assert (seen, deaf.result) == ([True], None)


# -- CANCELLED goes on to dependents -------------------------------------------------------------------


def test_a_cancelled_goal_cancels_those_that_depend_on_it_recursively() -> None:
    plan = bare_plan()
    first = add_goal(plan, "first")
    second = add_goal(plan, "second", first)
    inner = add_goal(plan, "inner", second)
    child = add_goal(plan, "child", inside=inner)
    third = add_goal(plan, "third", child)
    beside = add_goal(plan, "beside")
    assert first.set_goal_status(GoalStatus.CANCELLED, USER) is True
    assert [each.status for each in (first, second, inner, child, third)] == [GoalStatus.CANCELLED] * 5
    assert {each.cause.word for each in (second, inner, child, third) if each.cause} == {CauseWord.DEPENDENCY}
    assert beside.status is GoalStatus.NOT_STARTED


@pytest.mark.parametrize(
    "status",
    [GoalStatus.IN_PROGRESS, GoalStatus.CHILDREN_IN_PROGRESS, GoalStatus.COMPLETED, GoalStatus.FAILED],
)
def test_a_dependent_that_has_started_is_not_touched(status: GoalStatus) -> None:
    plan = bare_plan()
    first = add_goal(plan, "first")
    second = add_goal(plan, "second", first)
    if status in (GoalStatus.COMPLETED, GoalStatus.FAILED):
        second.set_goal_status(GoalStatus.IN_PROGRESS)
    second.set_goal_status(status)
    first.set_goal_status(GoalStatus.CANCELLED)
    assert second.status is status


def test_a_final_status_stands() -> None:
    for final in (GoalStatus.COMPLETED, GoalStatus.FAILED, GoalStatus.CANCELLED):
        each = add_goal(bare_plan(), "g")
        each.set_goal_status(GoalStatus.IN_PROGRESS)
        assert each.set_goal_status(final, Cause(CauseWord.USER), result=None) is True
        for other in GoalStatus:
            assert each.set_goal_status(other, result="late") is False
        assert (each.status, each.result) == (final, None)
