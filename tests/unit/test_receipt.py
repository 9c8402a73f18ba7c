"""The receipt: what a stop found, and what became of each item."""

from __future__ import annotations

import time
from typing import Any

import pytest

from core.call import Call, CallBook, CallKind, Outcome
from core.cancellation import Cause, CauseWord, Level, Scope
from core.engine.call_pool import CallPool
from core.plan.goal import Goal
from core.plan.goal_status import GoalStatus
from core.plan.plan import Plan
from core.session.receipt import Stock
from tests.support.core_kit import build_plan

USER = Cause(CauseWord.USER)


@pytest.fixture
def book() -> CallBook:
    return CallBook()


def _call(book: CallBook, goal_id: str | None = "a", kind: CallKind = CallKind.MODEL_CALL) -> Call:
    call = Call(kind, Scope.root().open(Level.CALL, "c"), goal_id)
    book.add(call)
    return call


def _plan() -> tuple[Plan, dict[str, Goal]]:
    leaf = {"prompt": "p"}
    spec = {"goals": [{"id": "a", **leaf}, {"id": "b", **leaf}, {"id": "i", "goals": [{"id": "c", **leaf}]}]}
    plan, goals = build_plan(spec, CallPool(1), lambda _: None)
    goals["a"].set_goal_status(GoalStatus.IN_PROGRESS)
    goals["b"].set_goal_status(GoalStatus.IN_PROGRESS)
    return plan, goals


def _outcomes(items: list[dict[str, Any]]) -> dict[str, str]:
    return {item["id"]: item["outcome"].value for item in items}


def test_a_receipt_lists_the_calls_then_the_goals_that_ran_then_those_that_never_began(book: CallBook) -> None:
    plan, goals = _plan()
    call = _call(book)
    stock = Stock(book.snapshot(), plan.walk_all())
    call.settle(Outcome.ABORTED, "socket shut")
    for name in "ab":
        goals[name].set_goal_status(GoalStatus.CANCELLED, USER)
    items = stock.final()
    assert [item["kind"] for item in items] == ["model_call", "goal", "goal", "goal"]
    assert _outcomes(items) == {call.id: "aborted", "a": "cancelled", "b": "cancelled", "c": "not_started"}
    assert all(set(item) == {"kind", "id", "goal_id", "outcome", "how", "took_ms"} for item in items)
    assert all(isinstance(item["took_ms"], int) and 0 <= item["took_ms"] < 10_000 for item in items)


def test_so_far_a_receipt_has_only_what_is_known(book: CallBook) -> None:
    plan, _ = _plan()
    known, unknown = _call(book), _call(book)
    stock = Stock(book.snapshot(), plan.walk_all())
    known.settle(Outcome.CANCELLED, "gateway answered cancelled")
    assert _outcomes(stock.so_far()) == {known.id: "cancelled", "c": "not_started"}
    assert unknown.outcome is None


def test_a_stock_holds_what_there_was_when_it_was_taken_whatever_leaves_or_comes_afterwards(book: CallBook) -> None:
    gone = _call(book)
    stock = Stock(book.snapshot(), ())
    gone.settle(Outcome.ALREADY_DONE, "it had finished")
    book.remove(gone)
    late = _call(book)
    assert _outcomes(stock.final()) == {gone.id: "already_done"}
    assert late.outcome is None


def test_no_item_of_a_final_receipt_is_open(book: CallBook) -> None:
    plan, _ = _plan()
    call = _call(book)
    stock = Stock(book.snapshot(), plan.walk_all())
    assert all(item["outcome"] is not None for item in stock.final())
    assert call.outcome is Outcome.ABORTED


def test_goals_say_what_became_of_them(book: CallBook) -> None:
    plan, goals = _plan()
    stock = Stock(book.snapshot(), plan.walk_all())
    goals["a"].set_goal_status(GoalStatus.COMPLETED, result="done")
    goals["b"].set_goal_status(GoalStatus.FAILED, error="the model is down")
    items = {item["id"]: item for item in stock.final()}
    assert (items["a"]["outcome"], items["b"]["outcome"]) == ("already_done", "failed")
    assert items["b"]["detail"] == "the model is down"
    assert "detail" not in items["a"]


def test_a_clean_up_that_failed_is_kept_as_a_detail_of_the_stop(book: CallBook) -> None:
    plan, goals = _plan()
    stock = Stock(book.snapshot(), plan.walk_all())
    goals["a"].set_goal_status(GoalStatus.CANCELLED, USER, error="the clean-up failed")
    item = next(item for item in stock.final() if item["id"] == "a")
    assert (item["outcome"], item["detail"]) == ("cancelled", "the clean-up failed")


def test_a_goal_that_was_abandoned_and_its_open_calls_say_so(book: CallBook) -> None:
    plan, goals = _plan()
    deaf, ended, other = _call(book), _call(book), _call(book, "b")
    stock = Stock(book.snapshot(), plan.walk_all())
    book.remove(ended)
    stock.abandon(goals["a"])
    goals["a"].set_goal_status(GoalStatus.CANCELLED, USER)
    assert _outcomes(stock.final()) == {
        deaf.id: "abandoned", ended.id: "aborted", other.id: "aborted", "a": "abandoned", "b": "cancelled",
        "c": "not_started",
    }  # fmt: skip
    assert not deaf.settle(Outcome.ALREADY_DONE, "late")


def test_what_is_open_when_its_goal_is_over_was_left_behind_and_nothing_else(book: CallBook) -> None:
    plan, goals = _plan()
    deaf, ended, settled = _call(book), _call(book, "b"), _call(book, "b")
    stock = Stock(book.snapshot(), plan.walk_all())
    book.remove(ended)
    settled.settle(Outcome.ABORTED, "socket shut")
    for name in "ab":
        goals[name].set_goal_status(GoalStatus.CANCELLED, USER)
    assert _outcomes(stock.close()) == {
        deaf.id: "abandoned", ended.id: "aborted", settled.id: "aborted", "a": "abandoned", "b": "cancelled",
        "c": "not_started",
    }  # fmt: skip
    assert stock.close() == stock.final()


def test_without_a_plan_there_are_calls_only(book: CallBook) -> None:
    wait = _call(book, None, CallKind.WAIT)
    stock = Stock(book.snapshot(), ())
    wait.settle(Outcome.CANCELLED, "woken")
    assert [(item["kind"], item["how"]) for item in stock.final()] == [("wait", "woken")]
    assert stock.taken_at <= time.monotonic()


def test_a_call_or_goal_that_met_the_stop_before_the_stock_was_taken_is_on_the_receipt(book: CallBook) -> None:
    plan, goals = _plan()
    redirected, met, finished = (
        Call(CallKind.MODEL_CALL, plan.scope.open(Level.CALL, "c"), "a") for _ in range(3)
    )
    for call in (redirected, met, finished):
        book.add(call)
    redirected.scope.cancel(Cause(CauseWord.REDIRECT))
    for call in (redirected, finished):
        book.remove(call)
    goals["b"].set_goal_status(GoalStatus.CANCELLED, Cause(CauseWord.USER, "of this goal alone"))
    plan.scope.cancel(USER)
    met.settle(Outcome.ABORTED, "socket shut")
    book.remove(met)
    goals["a"].set_goal_status(GoalStatus.CANCELLED, plan.scope.cause)
    plan.cancel_unstarted(USER)
    found = _outcomes(Stock(book.snapshot(), plan.walk_all()).final())
    assert found == {met.id: "aborted", "a": "cancelled", "c": "not_started"}
    assert len(book) == 0
