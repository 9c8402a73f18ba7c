"""The messages of one turn by themselves: who is told, when, and what becomes of a delivery that came to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord
from core.errors import StoreError, TurnIsOver
from core.session import mail as mail_module
from core.session.delivery import Letter
from core.session.mail import MAX_CUTS
from tests.support.mail_kit import Bench
from tests.support.race_kit import USER, Later
from tests.support.servers import gate, wait_until


@pytest.fixture(autouse=True)
def _writer() -> Iterator[None]:
    """In place of the rows there is the bench's log."""
    patch = pytest.MonkeyPatch()
    patch.setattr(mail_module, "deliver", lambda bench, _run, _turn, letter, places: bench.deliver(letter, places))
    yield
    patch.undo()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- who is told, and when ---------------------------------------------------------------------------


def test_a_steer_waits_for_the_next_request_and_is_told_once(bench: Bench) -> None:
    bench.join("a")
    bench.begin("a")
    assert bench.send("steer") is False
    assert bench.heard("a") == []
    bench.say("a", "calls")
    bench.end("a", Outcome.ALREADY_DONE)
    bench.use_tool("a")
    bench.begin("a")
    assert bench.heard("a") == ["text 1"]
    assert bench.close() == ["text 1"]


def test_a_letter_that_comes_twice_counts_once(bench: Bench) -> None:
    bench.join("a")
    letter = Letter("m", "text", "redirect")
    bench.begin("a")
    assert [bench.mail.add(letter), bench.mail.add(letter)] == [True, False]
    assert bench.end("a", Outcome.ABORTED) is True
    bench.begin("a")
    assert bench.heard("a") == ["text"]


def test_a_redirect_cuts_every_goal_that_asks_and_all_of_them_have_it_before_they_speak_again(bench: Bench) -> None:
    for name in "ab":
        bench.join(name)
        bench.begin(name)
    bench.say("b", "half")
    assert bench.send("redirect") is True
    bench.say("b", " LATE")
    bench.end("a", Outcome.ABORTED)
    bench.begin("a")  # and tells b, whose request has not ended yet
    assert bench.end("b", Outcome.ABORTED) is True
    bench.begin("b")
    for name in "ab":
        assert bench.heard(name) == ["text 1"]
        bench.say(name, "anew")
        assert bench.goals[name].rounds.messages()[-1] == {"role": "assistant", "content": "anew"}
        assert bench.goals[name].rounds.messages() == bench.folded(name)


def test_a_message_for_one_goal_leaves_the_others_alone(bench: Bench) -> None:
    for name in "ab":
        bench.join(name)
        bench.begin(name)
    assert bench.send("redirect", "b") is True
    assert (bench.calls["a"].scope.is_stopped, bench.calls["b"].scope.is_stopped) == (False, True)
    bench.end("b", Outcome.ABORTED)
    bench.begin("b")
    assert (bench.heard("a"), bench.heard("b")) == ([], ["text 1"])


def test_a_request_has_nothing_that_was_told_while_it_was_built(bench: Bench) -> None:
    for name in "ab":
        bench.join(name)
    bench.begin("b")  # it is confirmed, and not built yet
    bench.send("steer")
    bench.begin("a")
    assert (bench.heard("a"), bench.heard("b")) == (["text 1"], [])
    bench.say("b", "calls")
    bench.end("b", Outcome.ALREADY_DONE)
    bench.use_tool("b")
    bench.begin("b")
    assert bench.heard("b") == ["text 1"]


def test_an_answer_of_calls_alone_is_not_told_before_them_what_came_when_it_was_complete(bench: Bench) -> None:
    for name in "ab":
        bench.join(name)
    bench.begin("b")
    bench.end("b", Outcome.ALREADY_DONE)
    bench.send("steer")
    bench.begin("a")
    bench.use_tool("b")
    assert [each["role"] for each in bench.goals["b"].rounds.messages()] == ["assistant", "tool", "user"]


def test_the_next_attempt_after_a_failure_has_what_came_meanwhile(bench: Bench) -> None:
    for name in "ab":
        bench.join(name)
    bench.begin("b")
    bench.send("steer")
    bench.begin("a")
    bench.end("b", Outcome.FAILED)
    bench.begin("b")
    assert bench.heard("b") == ["text 1"]
    bench.say("b", "yes")
    assert bench.goals["b"].rounds.messages() == bench.folded("b")


def test_after_so_many_cuts_a_redirect_waits_and_an_answer_that_came_to_its_end_allows_them_again(bench: Bench) -> None:
    bench.join("a")
    for _ in range(MAX_CUTS):
        bench.begin("a")
        assert bench.mail.is_at_limit(None) is False
        assert bench.send("redirect") is True
        bench.end("a", Outcome.ABORTED)
    bench.begin("a")
    assert bench.mail.is_at_limit(None) is True
    assert bench.send("redirect") is False
    bench.end("a", Outcome.ALREADY_DONE)
    bench.begin("a")
    assert bench.mail.is_at_limit(None) is False


def test_a_goal_that_was_stopped_is_told_nothing_more(bench: Bench) -> None:
    bench.join("a")
    scope = bench.goals["a"].scope
    assert scope is not None
    bench.send("steer")
    scope.cancel(USER)
    with pytest.raises(Cancelled):
        bench.begin("a")
    assert bench.close() == []
    assert bench.log == []


# -- a delivery that comes to nothing -----------------------------------------------------------------------


def test_what_the_store_did_not_take_goes_in_with_a_later_request_and_in_order(bench: Bench) -> None:
    bench.join("a")
    for _ in range(3):
        bench.send("steer")
    bench.refusals = [StoreError(), StoreError(), None]
    bench.begin("a")
    assert bench.heard("a") == ["text 3"]
    bench.end("a", Outcome.FAILED)
    bench.begin("a")
    assert bench.heard("a") == ["text 3\n\ntext 1\n\ntext 2"]
    assert bench.close() == ["text 3", "text 1", "text 2"]


def test_what_was_withdrawn_or_met_the_turns_end_is_not_tried_again(bench: Bench) -> None:
    bench.join("a")
    bench.begin("a")
    bench.say("a", "half")
    bench.send("redirect")
    bench.end("a", Outcome.ABORTED)
    bench.refusals = [TurnIsOver()]
    bench.begin("a")
    assert (bench.heard("a"), bench.goals["a"].rounds.messages_to_ask()) == ([], [])
    bench.end("a", Outcome.ALREADY_DONE)
    bench.begin("a")
    assert (bench.heard("a"), bench.close()) == ([], [])


def test_a_goal_that_begins_while_a_delivery_is_on_its_way_waits_until_it_is_known_what_became_of_it(
    bench: Bench,
) -> None:
    bench.join("a")
    bench.send("steer")
    bench.send("steer")
    bench.pending = []
    with gate("mail.before_confirmation") as taken:
        asking = Later(lambda: bench.begin("a"))
        taken.wait_reached()
        joining = Later(lambda: bench.join("b"))
        durable, withdrawn = bench.pending
        durable.set_result(None)
        assert not joining.is_done
        withdrawn.set_exception(TurnIsOver())
        assert joining.result() == ["text 1"]
        taken.open()
        asking.result()
    assert (bench.heard("a"), bench.heard("b")) == (["text 1"], [])


def test_a_cut_wakes_whoever_waits_for_the_store_and_the_next_request_waits_again(bench: Bench) -> None:
    bench.join("a")
    bench.send("steer")
    bench.pending = []
    asking = Later(lambda: bench.begin("a"))
    wait_until(lambda: bench.pending, "the delivery")
    assert bench.send("redirect") is True
    with pytest.raises(Cancelled):
        asking.result()
    bench.end("a", Outcome.ABORTED)
    again = Later(lambda: bench.begin("a"))
    wait_until(lambda: len(bench.pending or ()) == 2, "the delivery of the correction")
    for future in bench.pending:
        assert not again.is_done
        future.set_result(None)
    again.result()
    assert bench.heard("a") == ["text 1\n\ntext 2"]


def test_the_turns_end_waits_for_what_is_being_written_and_nothing_goes_in_after_it(bench: Bench) -> None:
    bench.join("a")
    bench.send("steer")
    bench.pending = []
    scope = bench.goals["a"].scope
    assert scope is not None
    asking = Later(lambda: bench.begin("a"))
    wait_until(lambda: bench.pending, "the delivery")
    scope.cancel(USER)
    with pytest.raises(Cancelled):
        asking.result()
    closing = Later(bench.close)
    bench.pending[0].set_result(None)
    assert closing.result() == ["text 1"]
    assert bench.send("redirect") is False


def test_a_writer_that_does_not_come_to_a_delivery_has_it_taken_back_at_the_turns_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_module, "SETTLE_S", 0.01)
    bench.join("a")
    bench.send("steer")
    bench.pending = []
    asking = Later(lambda: bench.begin("a"))
    wait_until(lambda: bench.pending, "the delivery")
    bench.calls["a"].scope.cancel(Cause(CauseWord.USER))
    with pytest.raises(Cancelled):
        asking.result()
    assert bench.close() == []
    assert bench.pending[0].cancelled()


# -- memory and log -------------------------------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["steer", "redirect", "redirect", "say", "say", "tools", "silent tools", "fail", "ask", "ask"]),
        st.sampled_from("ab"), st.booleans(),
    ), max_size=25,
)  # fmt: skip


@given(MOVES)
@settings(max_examples=400, deadline=None)
def test_what_goals_have_in_memory_is_what_the_log_says_whatever_comes_in_which_order(
    moves: list[tuple[str, str, bool]],
) -> None:
    bench = Bench()
    for name in "ab":
        bench.join(name)
        bench.begin(name)
    for number, (move, name, is_for_one) in enumerate(moves):
        if move in ("steer", "redirect"):
            bench.send(move, name if is_for_one else None)
        elif name not in bench.calls:
            bench.begin(name)
        elif move == "say":
            bench.say(name, f"piece {number} ")
        elif move in ("tools", "silent tools"):
            if move == "tools":
                bench.say(name, "let me see")
            if not bench.end(name, Outcome.ALREADY_DONE):
                bench.use_tool(name)
        elif bench.calls[name].scope.is_stopped or move == "fail":
            bench.end(name, Outcome.ABORTED if bench.calls[name].scope.is_stopped else Outcome.FAILED)
        for each in "ab":
            assert bench.goals[each].rounds.messages() == bench.folded(each)
