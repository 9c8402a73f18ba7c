"""Controllers of somebody else's making: without an event, with one, one that is an event, and one that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core.call import CallKind
from core.extensions import foreign_controller
from core.provider.failures import ServerUnreachable
from core.tool.tool import ToolResult
from tests.support.embedding_kit import Bench, calls, open_bench, outcomes, stop_of
from tests.support.scripted_provider import Answer
from tests.support.servers import wait_until


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(foreign_controller, "IDLE_S", 0.05)
    with open_bench() as bench:
        yield bench
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "controller"], "the watchers' end")
    wait_until(lambda: not foreign_controller._foreign, "the controllers are forgotten")


class Plain:
    """What a controller has at least."""

    def __init__(self) -> None:
        self.flag = threading.Event()
        self.reason = "mine"

    def is_set(self) -> bool:
        return self.flag.is_set()


class Clearable(Plain):
    """It can also be cleared."""

    def clear(self) -> None:
        self.flag.clear()


class WithEvent(Clearable):
    """It also has an event, and is of those that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False

    @property
    def event(self) -> threading.Event:
        return self.flag


# -- without an event --------------------------------------------------------------------------


def test_without_an_event_what_runs_goes_on_and_the_next_request_is_not_made(bench: Bench) -> None:
    controller = Plain()
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(calls(1))
    gate = bench.tool(1)
    controller.flag.set()
    assert gate.call.scope.cause is None
    gate.go(ToolResult("whole"))
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "mine")
    assert [each["content"] for each in outcome.messages if each["role"] == "tool"] == ["whole"]
    assert len(bench.requests) == 1


def test_without_an_event_a_stop_during_the_model_call_begins_no_tool(bench: Bench) -> None:
    controller = Plain()
    turn = bench.start("hello", controller=controller)
    gate = bench.model("hello")
    controller.flag.set()
    gate.go(calls(1, 2))
    assert stop_of(turn.result()) == ("cancelled", "mine")
    assert bench.stage._numbers == 1  # the model call, and no tool


def test_without_an_event_a_call_that_fails_after_the_stop_is_not_repeated(bench: Bench) -> None:
    controller = Plain()
    turn = bench.start("hello", controller=controller)
    gate = bench.model("hello")
    controller.flag.set()
    gate.go(ServerUnreachable("not now", is_retryable=True))
    assert stop_of(turn.result()) == ("cancelled", "mine")  # and not after a wait of half a minute
    assert len(bench.requests) == 1


def test_a_stop_before_the_turn_is_met_and_cleared_if_it_can_be(bench: Bench) -> None:
    controller = Clearable()
    controller.flag.set()
    assert stop_of(bench.start("hello", controller=controller).result()) == ("cancelled", "mine")
    assert not controller.is_set()
    assert bench.answer("again", controller=controller).state == "completed"


def test_one_that_cannot_be_cleared_stops_every_turn_until_its_owner_says_otherwise(bench: Bench) -> None:
    controller = Plain()
    controller.flag.set()
    assert bench.start("one", controller=controller).result().state == "cancelled"
    assert bench.start("two", controller=controller).result().state == "cancelled"
    controller.flag.clear()
    assert bench.answer("three", controller=controller).state == "completed"


def test_a_turn_that_was_not_stopped_clears_nothing(bench: Bench) -> None:
    controller = Clearable()
    turn = bench.start("hello", controller=controller)
    gate = bench.model("hello")
    gate.go(Answer("whole"))
    assert turn.result().state == "completed"
    controller.flag.set()
    assert controller.is_set()


def test_whoever_sees_it_first_stops_all_turns_of_the_controller(bench: Bench) -> None:
    """Else the first would clear it, and the other would never see it."""
    controller = Clearable()
    a, b = bench.start("A", controller=controller), bench.start("B", controller=controller)
    gate_a = bench.model("A")
    bench.model("B")
    controller.flag.set()
    gate_a.go(calls(1))
    assert stop_of(a.result()) == stop_of(b.result()) == ("cancelled", "mine")
    assert not controller.is_set()


# -- with one ----------------------------------------------------------------------------------


def test_with_an_event_what_runs_is_stopped_at_once(bench: Bench) -> None:
    controller = WithEvent()
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(calls(1))
    bench.tool(1)
    controller.flag.set()
    outcome = turn.result()
    assert stop_of(outcome) == ("cancelled", "mine")
    assert outcomes(outcome)[CallKind.TOOL] == {"aborted"}
    assert not controller.is_set()
    assert bench.answer("again", controller=controller).state == "completed"


def test_the_event_stays_set_until_the_last_of_its_turns_is_over(bench: Bench) -> None:
    controller = WithEvent()
    a, b = bench.start("A", controller=controller), bench.start("B", controller=controller)
    gate_a, _ = bench.model("A"), bench.model("B")
    gate_a.manner = "is deaf"
    controller.flag.set()
    assert b.result().state == "cancelled"
    assert controller.is_set()
    gate_a.let_go()
    assert a.result().state == "cancelled"
    assert not controller.is_set()


def test_an_event_that_is_set_and_cleared_in_an_instant_stops_the_turn_all_the_same(bench: Bench) -> None:
    event = threading.Event()
    turn = bench.start("hello", controller=event)
    bench.model("hello")
    event.set()
    event.clear()
    assert stop_of(turn.result()) == ("cancelled", None)


def test_a_bare_event_is_a_controller_and_is_left_as_it_is(bench: Bench) -> None:
    event = threading.Event()
    turn = bench.start("hello", controller=event)
    bench.model("hello")
    event.set()
    assert turn.result().state == "cancelled"
    assert event.is_set()  # others may wait for it
    assert bench.start("again", controller=event).result().state == "cancelled"
    event.clear()
    assert bench.answer("third", controller=event).state == "completed"


def test_turns_one_after_the_other_share_one_thread_that_waits_for_their_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_controller, "IDLE_S", 60)
    controller = WithEvent()
    for number in range(10):
        assert bench.answer(f"turn {number}", controller=controller).state == "completed"
    assert len([each for each in threading.enumerate() if each.name == "controller"]) == 1
    controller.flag.set()
    wait_until(lambda: not foreign_controller._foreign, "the thread's end")


# -- that fail ---------------------------------------------------------------------------------


class Failing(Plain):
    """It works until it is broken."""

    is_broken = False

    def is_set(self) -> bool:
        if self.is_broken:
            raise OSError("the store of flags is down")
        return super().is_set()


def test_a_turn_whose_controller_cannot_be_asked_fails_before_it_sends_anything(bench: Bench) -> None:
    controller = Failing()
    controller.is_broken = True
    outcome = bench.start("hello", controller=controller).result()
    assert outcome.state == "failed"
    assert outcome.error == "The controller could not be asked whether to stop"
    assert bench.requests == []


def test_a_controller_that_breaks_in_between_lets_no_tool_and_no_request_begin(bench: Bench) -> None:
    controller = Failing()
    turn = bench.start("hello", controller=controller)
    gate = bench.model("hello")
    controller.is_broken = True
    gate.go(calls(1))
    outcome = turn.result()
    assert (outcome.state, outcome.error) == ("failed", "The controller could not be asked whether to stop")
    assert bench.stage._numbers == 1  # the model call, and no tool


class Awkward(Plain):
    """Everything that need not be there is, and fails."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"event", "reason", "clear"}:
            raise OSError(name)
        return super().__getattribute__(name)

    def __init__(self) -> None:
        self.flag = threading.Event()


def test_what_a_controller_has_beside_may_fail_and_the_stop_goes_on(bench: Bench) -> None:
    controller = Awkward()
    turn = bench.start("hello", controller=controller)
    gate = bench.model("hello")
    controller.flag.set()
    gate.go(calls(1))
    assert stop_of(turn.result()) == ("cancelled", None)


def test_a_clear_that_fails_harms_nothing(bench: Bench) -> None:
    controller = Clearable()
    controller.clear = lambda: 1 / 0  # type: ignore[method-assign,assignment]
    controller.flag.set()
    assert bench.start("hello", controller=controller).result().state == "cancelled"
