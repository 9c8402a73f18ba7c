"""The controller by itself: what a request reaches, how long it stands, and what it leaves to the next turn."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

import pytest

from core.cancellation import Cause, CauseWord
from core.interrupt import InterruptController
from tests.support.api_client import PATIENCE_S
from tests.support.race_kit import Later, Switch


@pytest.fixture
def controller() -> InterruptController:
    return InterruptController()


class Stops:
    """Stands for a turn; notes how it was stopped."""

    def __init__(self) -> None:
        self.causes: list[Cause] = []

    def __call__(self, cause: Cause) -> None:
        self.causes.append(cause)

    @property
    def reasons(self) -> list[str | None]:
        assert all(cause.word is CauseWord.USER for cause in self.causes)
        return [cause.reason for cause in self.causes]


# -- asking ------------------------------------------------------------------------------------


def test_the_first_reason_stands_until_it_is_cleared(controller: InterruptController) -> None:
    assert (controller.is_set(), controller.reason) == (False, None)
    assert controller.request("first") is True
    assert controller.request("second") is False
    assert (controller.is_set(), controller.reason) == (True, "first")
    controller.clear()
    assert (controller.is_set(), controller.event.is_set(), controller.reason) == (False, False, None)
    assert controller.request("third") is True
    assert controller.reason == "third"


def test_without_a_reason_it_was_the_user(controller: InterruptController) -> None:
    controller.request()
    assert controller.reason == "user"


def test_check_raises_with_the_reason_and_reading_changes_nothing(controller: InterruptController) -> None:
    controller.check()
    controller.request("Esc")
    for _ in range(1000):
        assert controller.is_set()
        with pytest.raises(InterruptedError, match=r"^stopped: Esc$"):
            controller.check()
    controller.clear()
    controller.check()


def test_another_thread_that_waits_for_the_event_is_woken(controller: InterruptController) -> None:
    waiting = Later(lambda: controller.event.wait(PATIENCE_S) and controller.reason)
    Later(lambda: controller.request("from elsewhere")).result()
    assert waiting.result() == "from elsewhere"


def test_of_many_requests_at_once_one_is_the_first(controller: InterruptController) -> None:
    together = threading.Barrier(16)

    def ask(number: int) -> bool:
        together.wait(PATIENCE_S)
        return controller.request(str(number))

    asked = [Later(partial(ask, number)) for number in range(16)]
    assert sorted(each.result() for each in asked) == [False] * 15 + [True]


def test_protection_is_nestable_and_keeps_no_stop_away(controller: InterruptController) -> None:
    turn = Stops()
    with controller.bound(turn):
        with controller.protect():
            with controller.protect():
                assert controller.is_protected()
            assert controller.is_protected()
            assert controller.request("stop all the same")
        assert not controller.is_protected()
    assert turn.reasons == ["stop all the same"]


def test_protection_ends_with_an_error(controller: InterruptController) -> None:
    with pytest.raises(ValueError, match="inside"), controller.protect():
        raise ValueError("inside")
    assert not controller.is_protected()


# -- turns -------------------------------------------------------------------------------------


def test_a_request_reaches_the_bound_turn_once_and_is_cleared_at_its_end(controller: InterruptController) -> None:
    turn = Stops()
    with controller.bound(turn) as look:
        look()
        assert turn.causes == []
        assert controller.request("now")
        assert not controller.request("again")
        assert turn.reasons == ["now"]
        assert controller.is_set()
    assert (controller.is_set(), controller.reason) == (False, None)


def test_a_request_before_any_turn_stops_the_next_one_once(controller: InterruptController) -> None:
    stopped, after = Stops(), Stops()
    controller.request("early")
    with controller.bound(stopped) as look:
        look()
    with controller.bound(after) as look:
        look()
    assert (stopped.reasons, after.reasons) == (["early"], [])


def test_an_early_request_that_was_cleared_stops_nothing(controller: InterruptController) -> None:
    turn = Stops()
    controller.request("early")
    controller.clear()
    with controller.bound(turn) as look:
        look()
    assert turn.causes == []


def test_the_event_stays_set_until_the_last_stopped_turn_is_over(controller: InterruptController) -> None:
    first, second = Stops(), Stops()
    with ExitStack() as two:
        two.enter_context(controller.bound(second))
        with controller.bound(first):
            controller.request("both")
        assert first.reasons == second.reasons == ["both"]
        assert (controller.is_set(), controller.reason) == (True, "both")
    assert not controller.is_set()


def test_a_turn_that_begins_while_another_unwinds_is_not_stopped_by_its_request(controller: InterruptController) -> None:
    old, new = Stops(), Stops()
    with ExitStack() as unwinding:
        unwinding.enter_context(controller.bound(old))
        controller.request("the old one")
        with controller.bound(new) as look:
            look()
            assert new.causes == []
            assert controller.request("the new one too")  # it is set, and there is somebody to stop
            assert (old.reasons, new.reasons) == (["the old one"], ["the new one too"])
            assert controller.reason == "the old one"
        assert controller.is_set()
    assert not controller.is_set()


def test_the_end_of_a_turn_that_was_not_stopped_clears_nothing(controller: InterruptController) -> None:
    with controller.bound(Stops()):
        with ExitStack() as other:
            other.enter_context(controller.bound(Stops()))
            controller.request("both")
        with controller.bound(Stops()):
            pass
        assert controller.is_set()


def test_a_stopped_turn_stays_stopped_when_the_request_is_cleared(controller: InterruptController) -> None:
    turn, after = Stops(), Stops()
    with controller.bound(turn) as look:
        controller.request("now")
        controller.clear()
        assert not controller.is_set()
        look()
        assert turn.reasons == ["now", "now"]
    with controller.bound(after) as look:
        look()
    assert after.causes == []


def test_a_step_that_comes_between_the_event_and_the_stop_meets_the_stop(controller: InterruptController) -> None:
    """Two turns; the stop of the first hangs, so the other's own step has to find it out."""
    switch, turn = Switch(), Stops()
    with controller.bound(lambda _: switch.hold()), controller.bound(turn) as look:
        asking = Later(lambda: controller.request("hurry"))
        switch.wait_reached()
        look()
        assert turn.reasons[0] == "hurry"
        switch.open()
        assert asking.result()


def test_a_turn_whose_gateway_hangs_holds_up_no_other(controller: InterruptController) -> None:
    both = threading.Barrier(2)  # each waits for the other: one after the other, they would never come together
    with controller.bound(lambda _: both.wait(PATIENCE_S)), controller.bound(lambda _: both.wait(PATIENCE_S)):
        assert controller.request()
    assert not both.broken


def test_a_stop_that_fails_keeps_no_other_from_being_stopped(
    controller: InterruptController, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Cause) -> None:
        raise OSError("a bug")

    turn = Stops()
    with controller.bound(fail), controller.bound(turn), controller.bound(fail):
        assert controller.request("all")
    assert turn.reasons == ["all"]
    assert [record.message for record in caplog.records] == ["a stop failed; the others go on"] * 2


def test_the_turns_are_stopped_also_where_the_system_has_no_thread_left(
    controller: InterruptController, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    turns = [Stops(), Stops(), Stops()]
    with ExitStack() as bound:
        for turn in turns:
            bound.enter_context(controller.bound(turn))
        monkeypatch.setattr(threading.Thread, "start", fail)
        controller.request("all")
    assert [turn.reasons for turn in turns] == [["all"]] * 3


def test_a_request_that_meets_a_turn_at_its_very_end_leaves_the_next_one_alone(controller: InterruptController) -> None:
    """The stop is on its way when the turn leaves."""
    switch, after = Switch(), Stops()
    bound = controller.bound(lambda _: switch.hold())
    bound.__enter__()
    asking = Later(controller.request)
    switch.wait_reached()
    bound.__exit__(None, None, None)
    assert not controller.is_set()
    with controller.bound(after) as look:
        look()
        switch.open()
        assert asking.result()
        look()
    assert after.causes == []
