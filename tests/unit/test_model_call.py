"""One model request in flight: aborted, asked for, cut when asking does not help."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level, Scope, Verdict
from core.errors import ProviderError
from core.provider.model_call import ModelCall
from tests.support.api_client import PATIENCE_S, in_threads
from tests.support.core_kit import Started, wait_set
from tests.support.servers import gate

USER = Cause(CauseWord.USER)
LONG_S = 3600.0


class FakeWire:
    """Counts how often it is shut."""

    def __init__(self) -> None:
        self.shuts = 0
        self.is_shut = threading.Event()

    def shut(self) -> None:
        self.shuts += 1
        self.is_shut.set()


class FakeAsker:
    """A provider that answers a cancel request as the test says."""

    def __init__(self, can_be_asked: bool = True, answer: Callable[[], str] = lambda: "cancelled") -> None:
        self.can_be_asked = can_be_asked
        self.asked: list[float] = []
        self._answer = answer

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        self.asked.append(timeout_s)
        return self._answer()


def _call(asker: FakeAsker, cancel_timeout_s: float = LONG_S) -> tuple[ModelCall, FakeWire, Scope]:
    wire = FakeWire()
    scope = Scope.root().open(Level.CALL, "c")
    call = ModelCall(scope, "a", wire, asker, cancel_timeout_s)
    scope.add_abort(call.abort)
    return call, wire, scope


def _refuse() -> str:
    raise ProviderError("no such token")


def test_every_call_has_a_token_of_its_own() -> None:
    assert len({_call(FakeAsker())[0].token for _ in range(100)}) == 100


def test_a_call_that_cannot_be_asked_for_is_cut_by_the_stop_itself() -> None:
    asker = FakeAsker(can_be_asked=False)
    call, wire, scope = _call(asker)
    call.mark_sent()
    assert scope.cancel(USER) is Verdict.FIRST
    assert (wire.shuts, call.outcome) == (1, Outcome.ABORTED)
    call.cancel_request(1.0)
    assert asker.asked == []


def test_a_request_that_has_not_left_is_cut_also_where_it_could_be_asked_for_and_then_never_leaves() -> None:
    asker = FakeAsker()
    call, wire, scope = _call(asker)
    scope.cancel(USER)
    assert (wire.shuts, call.outcome) == (1, Outcome.ABORTED)
    with pytest.raises(Cancelled):
        call.mark_sent()
    call.cancel_request(1.0)
    assert asker.asked == []


def test_a_request_on_its_way_out_when_the_stop_comes_does_not_leave() -> None:
    call, wire, scope = _call(FakeAsker())
    with gate("model_call.before_sent") as held:
        sending = Started(call.mark_sent)
        held.wait_reached()
        scope.cancel(USER)
        held.open()
        with pytest.raises(Cancelled):
            sending.result()
    assert wire.shuts == 1


def test_a_sent_request_is_asked_for_and_not_cut_when_it_agrees_and_ends() -> None:
    asker = FakeAsker()
    call, wire, scope = _call(asker)
    call.mark_sent()
    scope.cancel(USER)
    assert wire.shuts == 0
    call.ended.set()
    call.cancel_request(0.4)
    assert asker.asked == [0.4]
    item = call.item(0.0)
    assert (item["outcome"], item["how"], wire.shuts) == ("cancelled", "gateway answered cancelled", 0)


def test_a_request_that_agreed_and_goes_on_is_hung_up_and_counts_as_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelCall, "GRACE_S", 0.01)
    call, wire, scope = _call(FakeAsker(answer=lambda: "already_cancelled"))
    call.mark_sent()
    scope.cancel(USER)
    call.cancel_request(1.0)
    wait_set(wire.is_shut)
    assert call.item(0.0)["how"] == "gateway answered already_cancelled"
    assert call.outcome is Outcome.CANCELLED


def test_a_request_that_is_not_cancelled_is_cut_and_says_why() -> None:
    call, wire, scope = _call(FakeAsker(answer=_refuse))
    call.mark_sent()
    scope.cancel(USER)
    call.cancel_request(1.0)
    item = call.item(0.0)
    assert (item["outcome"], wire.shuts) == ("aborted", 1)
    assert item["detail"] == "the gateway did not cancel: no such token"


def test_a_stop_that_nobody_follows_with_a_question_cuts_the_call_at_its_deadline() -> None:
    call, wire, scope = _call(FakeAsker(), cancel_timeout_s=0.01)
    call.mark_sent()
    scope.cancel(USER)
    wait_set(wire.is_shut)
    assert call.ended.is_set() is False
    wait_settled(call)
    assert call.item(0.0)["detail"] == "there was no time left to ask the gateway"


def wait_settled(call: ModelCall) -> None:
    """The socket is shut just before the outcome is noted."""
    for _ in range(int(PATIENCE_S * 100)):
        if call.outcome is not None:
            return
        threading.Event().wait(0.01)
    raise AssertionError("it was not settled")


def test_a_call_that_has_ended_by_the_deadline_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    call, wire, scope = _call(FakeAsker(), cancel_timeout_s=0.01)
    call.mark_sent()
    call.settle(Outcome.ALREADY_DONE, "it had finished")
    call.ended.set()
    scope.cancel(USER)
    later = threading.Event()
    from core.clock import alarm_clock

    alarm_clock.after(0.02, later.set)
    wait_set(later)
    assert (wire.shuts, call.outcome) == (0, Outcome.ALREADY_DONE)


def test_without_time_left_a_request_is_cut_and_not_asked_for() -> None:
    asker = FakeAsker()
    call, wire, _ = _call(asker)
    call.mark_sent()
    call.cancel_request(0.0)
    assert (asker.asked, wire.shuts, call.outcome) == ([], 1, Outcome.ABORTED)


def test_of_many_who_ask_at_once_one_does() -> None:
    asker = FakeAsker()
    call, _, scope = _call(asker)
    call.mark_sent()
    scope.cancel(USER)
    in_threads(8, lambda _: call.cancel_request(1.0))
    assert len(asker.asked) == 1
    assert call.is_asked


def test_a_call_that_is_settled_is_not_asked_for() -> None:
    asker = FakeAsker()
    call, _, _ = _call(asker)
    call.mark_sent()
    call.settle(Outcome.ALREADY_DONE, "it had finished")
    call.cancel_request(1.0)
    assert asker.asked == []


def test_whatever_the_order_of_sending_stopping_and_asking_no_request_goes_out_unstoppable() -> None:
    for _ in range(200):
        asker = FakeAsker(answer=_refuse)
        call, wire, scope = _call(asker)
        sent: list[bool] = []

        def work(index: int, call: ModelCall = call, scope: Scope = scope, sent: list[bool] = sent) -> None:
            if index:
                scope.cancel(USER)
                call.cancel_request(1.0)
                return
            try:
                call.mark_sent()
                sent.append(True)
            except Cancelled:
                sent.append(False)

        in_threads(2, work)
        # It went out and was reached, or it did not go out.
        assert not sent[0] or wire.shuts >= 1
