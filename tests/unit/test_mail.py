"""The messages of one turn by themselves: who is told, when, and what becomes of a delivery that came to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.agent.rounds import Rounds
from core.call import Outcome
from core.cancellation import Cancelled, Cause, CauseWord, Level
from core.errors import ServerError, StoreError, TurnIsOver
from core.plan.goal import Goal
from core.provider.model_call import ModelCall
from core.session import mail as mail_module
from core.session.delivery import Letter
from core.session.mail import MAX_CUTS, Mail
from core.session.said_log import _take_message
from tests.support.race_kit import USER, Later, add_goal, bare_plan
from tests.support.servers import gate, wait_until


class Wire:
    """Stands for a socket, and for a server that cannot be asked."""

    can_be_asked = False

    def shut(self) -> None:
        """Hang up."""

    def ask_cancel(self, call: ModelCall, timeout_s: float) -> str:
        """It cannot."""
        raise AssertionError


class Bench:
    """A turn of two goals, ``a`` and ``b``, whose writer does what the test says; keeps the log that it would write."""

    def __init__(self) -> None:
        plan = bare_plan()
        self.goals: dict[str, Goal] = {name: add_goal(plan, name) for name in "ab"}
        for goal in self.goals.values():
            goal.scope = plan.plan_goal.scope or plan.scope.open(Level.GOAL, goal.id)
        self.calls: dict[str, ModelCall] = {}
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        #: What the writer makes of the next deliveries, first to last; with nothing here they are durable at once.
        self.refusals: list[ServerError | None] = []
        #: The writer is slow: its answers, not given yet.
        self.pending: list[Future[None]] | None = None
        self.mail = Mail(SimpleNamespace(  # type: ignore[arg-type]
            start=SimpleNamespace(run_id="r", turn_id="t"), record=self._record, cancel_timeout_s=0.1,
        ))  # fmt: skip
        self._stack = ExitStack()
        self._numbers = 0

    def _record(self, decide: Any) -> Future[None]:
        future: Future[None] = Future()
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            future.set_exception(refusal)
            return future
        decide(self)
        if self.pending is None:
            future.set_result(None)
        else:
            self.pending.append(future)
        return future

    def deliver(self, letter: Letter, places: list[dict[str, Any]]) -> None:
        """What the writer writes."""
        about = {"message_id": letter.id, "text": letter.text, "mode": letter.mode, "goals": places}
        self.log.append(("message_delivered", "", about))

    def join(self, name: str) -> list[str]:
        """The goal begins; the texts that it finds in its history."""
        return [each.text for each in self._stack.enter_context(self.mail.joined(self.goals[name]))]

    def send(self, mode: str, goal: str | None = None) -> bool:
        """A message arrives; whether it cut something off."""
        self._numbers += 1
        return self.mail.add(Letter(f"m{self._numbers}", f"text {self._numbers}", mode, goal))

    def begin(self, name: str) -> None:
        """The goal asks; or its request was cut off before it left."""
        goal = self.goals[name]
        assert goal.scope is not None
        self.calls[name] = ModelCall(goal.scope.open(Level.CALL, "call"), name, Wire(), Wire(), 0.1)
        self.mail.begin_request(goal, self.calls[name])

    def say(self, name: str, text: str) -> None:
        """A token arrives; dropped behind a cut."""
        if not self.calls[name].scope.is_stopped:
            self.goals[name].rounds.say(text)
            self.log.append(("text", name, {"text": text}))

    def end(self, name: str, outcome: Outcome) -> bool:
        """The request is over; whether it was cut off."""
        call = self.calls.pop(name)
        call.settle(outcome, "")
        is_cut = call.scope.finish() is not None
        self.mail.end_request(self.goals[name], is_cut)
        if outcome is Outcome.FAILED and not is_cut:
            self.log.append(("retry", name, {}))
        return is_cut

    def use_tool(self, name: str) -> None:
        """The answer called one."""
        call_id = f"c{len(self.log)}"
        self.goals[name].rounds.call(call_id, "look", "{}")
        self.goals[name].rounds.answer(call_id, "done", is_error=False)
        self.log.append(("tool_call", name, {"name": "look", "arguments": "{}", "id": call_id}))
        self.log.append(("tool_result", name, {"content": "done", "is_error": False, "id": call_id}))

    def folded(self, name: str) -> list[dict[str, Any]]:
        """The rounds of a goal as a restart reads them."""
        rounds: dict[str, Rounds] = {}
        for kind, goal, data in self.log:
            if kind == "message_delivered":
                _take_message(data, [], rounds)
            else:
                rounds.setdefault(goal, Rounds()).take(kind, data.get("id"), data)
        return rounds.get(name, Rounds()).messages()

    def heard(self, name: str) -> list[str]:
        """What the goal's request has of the user."""
        asked = self.goals[name].rounds.messages_to_ask()
        return [each["content"] for each in asked if each["role"] == "user"]

    def close(self) -> list[str]:
        """The turn ends: the texts that went in."""
        told = [each.text for each in self.mail.close()]
        self._stack.close()
        return told


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
