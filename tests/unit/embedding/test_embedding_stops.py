"""Turns without HTTP, stopped by a controller: at every point at which a stop can come."""

from __future__ import annotations

from typing import Any

import pytest

from core import gates
from core.call import CallKind
from core.interrupt import InterruptController
from core.provider.failures import ServerUnreachable
from core.session.turn import Turn
from core.tool.tool import ToolResult
from tests.support.embedding_kit import Bench, calls, open_bench, outcomes, stop_of
from tests.support.race_kit import Switch
from tests.support.scripted_provider import Answer


def hold_at(name: str, monkeypatch: pytest.MonkeyPatch) -> Switch:
    """The first thread that comes to this point waits there."""
    switch = Switch()

    def hold() -> None:
        gates.installed.pop(name, None)
        switch.hold()

    monkeypatch.setitem(gates.installed, name, hold)
    return switch


def test_a_stop_before_the_turn_stops_it_once_and_the_next_one_runs(
    bench: Bench, controller: InterruptController
) -> None:
    controller.request("early")
    events: list[Any] = []
    outcome = bench.start("hello", controller=controller, on_event=events.append).result()
    assert stop_of(outcome) == ("cancelled", "early")
    assert {event.data["status"] for event in events if event.type == "goal_status"} == {"CANCELLED"}  # none began
    assert bench.requests == []
    assert not controller.is_set()
    assert bench.answer("again", controller=controller).state == "completed"


def test_a_stop_during_the_model_call_keeps_what_was_said(bench: Bench, controller: InterruptController) -> None:
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go("half")
    bench.model("hello")
    assert controller.request("Esc")
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "Esc")
    assert outcome.messages[-1]["content"] == "half"
    assert outcomes(outcome)[CallKind.MODEL_CALL] <= {"aborted", "cancelled"}
    assert (controller.is_set(), controller.reason) == (False, None)


def test_a_gateway_that_can_be_asked_is_asked(controller: InterruptController) -> None:
    with open_bench(asking="agrees") as bench:
        turn = bench.start("hello", controller=controller)
        bench.model("hello")
        controller.request()
        assert outcomes(turn.result())[CallKind.MODEL_CALL] == {"cancelled"}


def test_a_stop_while_a_failed_call_waits_to_be_repeated_ends_the_wait(
    bench: Bench, controller: InterruptController
) -> None:
    waits = Switch()

    def on_event(event: Any) -> None:
        if event.type == "retry":
            waits.hold()

    turn = bench.start("hello", controller=controller, on_event=on_event)
    bench.model("hello").go(ServerUnreachable("not now", is_retryable=True))
    waits.wait_reached()
    controller.request("enough")
    waits.open()
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "enough")
    assert len(bench.requests) == 1


def test_a_stop_during_a_tool_ends_it_and_nothing_is_asked_after_it(
    bench: Bench, controller: InterruptController
) -> None:
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(calls(1, 2))
    bench.tool(1)
    bench.tool(2).go(ToolResult("two"))
    controller.request("Esc")
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "Esc")
    results = {each["content"] for each in outcome.messages if each["role"] == "tool"}
    assert "cancelled by operator" in results
    assert len(bench.requests) == 1


def test_a_stop_before_the_tools_of_a_reply_begin_begins_none(
    bench: Bench, controller: InterruptController, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = hold_at("tool_batch.before_tools", monkeypatch)
    events: list[Any] = []
    turn = bench.start("hello", controller=controller, on_event=events.append)
    bench.model("hello").go(calls(1, 2, 3))
    switch.wait_reached()
    controller.request()
    switch.open()
    outcome = turn.result()
    assert outcomes(outcome)[CallKind.TOOL] == {"not_started"}
    assert bench.stage._numbers == 1  # the model call, and no tool
    called, answered = (
        [event.call_id for event in events if event.type == kind] for kind in ("tool_call", "tool_result")
    )
    assert len(called) == 3
    assert sorted(answered) == sorted(called)  # each has its one result all the same


def test_a_stop_between_the_tools_and_the_next_request_makes_no_request(
    bench: Bench, controller: InterruptController, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = hold_at("tool_loop.between_steps", monkeypatch)
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(calls(1))
    bench.tool(1).go(ToolResult("done"))
    switch.wait_reached()
    controller.request("between")
    switch.open()
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "between")
    assert [each["content"] for each in outcome.messages if each["role"] == "tool"] == ["done"]
    assert len(bench.requests) == 1


def test_a_stop_as_the_turn_is_about_to_end_is_for_this_turn(
    bench: Bench, controller: InterruptController, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = hold_at("turn.before_finish", monkeypatch)
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(Answer("whole"))
    switch.wait_reached()
    assert controller.request("late")
    switch.open()
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "late")
    assert outcome.messages[-1]["content"] == "whole"
    assert not controller.is_set()
    assert bench.answer("again", controller=controller).state == "completed"


def test_a_stop_that_finds_the_turn_over_changes_nothing_of_it_nor_of_the_next(
    bench: Bench, controller: InterruptController, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch()
    finish = Turn.finish

    def finish_and_hold(turn: Any, error: Any) -> Any:
        outcome = finish(turn, error)
        monkeypatch.undo()
        switch.hold()
        return outcome

    monkeypatch.setattr(Turn, "finish", finish_and_hold)
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(Answer("whole"))
    switch.wait_reached()
    assert controller.request("too late")
    switch.open()
    outcome = turn.result()
    assert (outcome.state, outcome.order) == ("completed", None)
    assert bench.answer("again", controller=controller).state == "completed"


def test_a_stop_after_the_turn_is_for_the_next_one(bench: Bench, controller: InterruptController) -> None:
    assert bench.answer("hello", controller=controller).state == "completed"
    controller.request("afterwards")
    assert stop_of(bench.start("next", controller=controller).result()) == ("cancelled", "afterwards")
    assert bench.answer("third", controller=controller).state == "completed"


def test_a_second_stop_joins_the_first(bench: Bench, controller: InterruptController) -> None:
    turn = bench.start("hello", controller=controller)
    bench.model("hello")
    assert [controller.request("one"), controller.request("two")] == [True, False]
    assert stop_of(turn.result()) == ("cancelled", "one")


def test_a_stop_inside_a_protection_window_stops(bench: Bench, controller: InterruptController) -> None:
    turn = bench.start("hello", controller=controller)
    bench.model("hello")
    with controller.protect(), controller.protect():
        controller.request()
        assert turn.result().state == "cancelled"
        assert controller.is_protected()


def test_a_callback_may_stop_its_own_turn(bench: Bench, controller: InterruptController) -> None:
    def on_event(event: Any) -> None:
        if event.type == "tool_call":
            controller.request("not that tool")

    turn = bench.start("hello", controller=controller, on_event=on_event)
    bench.model("hello").go(calls(1))
    assert stop_of(turn.result()) == ("cancelled", "not that tool")


def test_a_tool_that_does_not_end_is_left_behind_and_the_receipt_says_so(
    bench: Bench, controller: InterruptController
) -> None:
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(calls(1))
    bench.tool(1).manner = "is deaf"
    controller.request()
    assert outcomes(turn.result())[CallKind.TOOL] == {"abandoned"}
