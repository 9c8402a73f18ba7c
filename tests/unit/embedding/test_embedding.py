"""Turns without HTTP: what they tell, what the next one sees of a stopped one, and many at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from core.errors import InvalidPlan, ServerError
from core.extensions.embedding import Executor, history_after
from core.interrupt import InterruptController
from core.plan.plan_spec import GoalSpec, PlanSpec, ToolSpec
from core.provider.failures import ServerUnreachable
from core.session.turn import Turn
from core.tool.tool import ToolResult
from tests.support.embedding_kit import Bench, calls, stop_of
from tests.support.race_kit import Later
from tests.support.scripted_provider import Answer, Output

# -- without a stop ----------------------------------------------------------------------------


def test_a_turn_answers_with_tools_and_tells_what_happens(bench: Bench, controller: InterruptController) -> None:
    events: list[Any] = []
    turn = bench.start("hello", controller=controller, on_event=events.append)
    bench.model("hello").go(calls(1))
    bench.tool(1).go(Output("half"))
    bench.tool(1).go(ToolResult("done"))
    bench.model("hello").go(Answer("fine"))
    outcome = turn.result()
    assert (outcome.state, outcome.order, outcome.receipt, outcome.error) == ("completed", None, None, None)
    assert outcome.messages[-1]["content"] == "fine"
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(event.at for event in events)
    assert [str(event.type) for event in events if event.type != "usage"] == [
        "plan_updated", "goal_status", "tool_call", "tool_output", "tool_result", "text", "goal_status"
    ]  # fmt: skip


def test_a_plan_of_several_goals_runs_and_a_wrong_one_is_refused(bench: Bench) -> None:
    goals = [GoalSpec(id="a", prompt="A", agent="other"), GoalSpec(id="b", prompt="B", depends_on=["a"])]
    turn = bench.start("both", plan=PlanSpec(goals=goals))
    bench.model("A").go(Answer("a's"))
    bench.model("B").go(Answer("b's"))
    assert turn.result().messages[-1]["content"].count("'s") == 2
    with pytest.raises(InvalidPlan, match="unknown agent"):
        bench.executor.run("x", plan=PlanSpec(goals=[GoalSpec(id="a", prompt="A", agent="nobody")]))
    with pytest.raises(InvalidPlan, match="the message is blank"):
        bench.executor.run("  ")


def test_a_goal_may_be_a_tool_of_the_first_agent_whatever_that_is_called(bench: Bench) -> None:
    bench.executor = Executor(bench.agents[1])
    plan = PlanSpec(goals=[GoalSpec(id="a", tool=ToolSpec(name="work", arguments={"n": 1}))])
    turn = bench.start("work", plan=plan)
    bench.tool(1).go(ToolResult("done"))
    assert turn.result().state == "completed"


def test_a_failed_turn_says_why(bench: Bench) -> None:
    turn = bench.start("hello")
    bench.model("hello").go(ServerUnreachable("nobody is there", is_retryable=False))
    outcome = turn.result()
    assert (outcome.state, outcome.error) == ("failed", "nobody is there")


# -- the history -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["nothing said", "half a text", "in a tool", "before the turn"])
def test_the_history_of_a_stopped_turn_is_right_for_the_next(
    bench: Bench, controller: InterruptController, where: str
) -> None:
    if where == "before the turn":
        controller.request()
    turn = bench.start("hello", controller=controller)
    if where == "half a text":
        bench.model("hello").go("half")
    if where == "in a tool":
        bench.model("hello").go(calls(1, 2))
        bench.tool(1)
        bench.tool(2)
    elif where != "before the turn":
        bench.model("hello")
    controller.request()
    history = history_after((), "hello", turn.result())
    assert [each["role"] for each in history][:2] == ["user", "assistant"]

    controller.clear()
    later = bench.start("and now?", history=history, controller=controller)
    gate = bench.model("and now?")
    assert [each["content"] for each in gate.subject.messages if each["role"] == "user"] == ["hello", "and now?"]
    gate.go(Answer("fine"))
    assert later.result().state == "completed"  # the bench checks each request against strict servers


def test_a_broken_history_is_repaired_and_its_system_message_kept(bench: Bench) -> None:
    history = [
        {"role": "system", "content": "Speak French."},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "work", "arguments": "{"}}
        ]},
        {"role": "user", "content": "well?"},
    ]  # fmt: skip
    turn = bench.start("now", history=history)
    gate = bench.model("now")
    assert "Speak French." in gate.subject.messages[0]["content"]
    gate.go(Answer("oui"))
    assert turn.result().state == "completed"


# -- many --------------------------------------------------------------------------------------


def test_a_stop_of_one_of_two_turns_of_an_agent_touches_nothing_of_the_other(bench: Bench) -> None:
    first, second = InterruptController(), InterruptController()
    a, b = bench.start("A", controller=first), bench.start("B", controller=second)
    bench.model("A").go(calls(1))
    a_tool = bench.tool(1)
    bench.model("B").go(calls(2))
    b_tool = bench.tool(2)
    second.request("only B")
    assert stop_of(b.result()) == ("cancelled", "only B")
    assert b_tool.call.scope.cause is not None
    assert (a_tool.call.scope.cause, a_tool.turn_scope.cause, first.is_set()) == (None, None, False)
    assert a_tool.is_held
    a_tool.go(ToolResult("a's"))
    a_model = bench.model("A")
    assert a_model.call.scope.cause is None
    first.request("now A")
    assert stop_of(a.result()) == ("cancelled", "now A")
    cause = b_tool.call.scope.cause
    assert cause is not None
    assert cause.reason == "only B"


def test_one_controller_stops_all_its_turns_and_stays_set_until_the_last_is_over(
    bench: Bench, controller: InterruptController
) -> None:
    turns = {name: bench.start(name, controller=controller) for name in ("A", "B")}
    gate_a, _ = bench.model("A"), bench.model("B")
    gate_a.manner = "is deaf"
    controller.request("both")
    assert stop_of(turns["B"].result()) == ("cancelled", "both")
    assert controller.is_set()
    gate_a.let_go()
    assert stop_of(turns["A"].result()) == ("cancelled", "both")
    assert not controller.is_set()


def test_the_next_message_runs_while_the_stopped_turn_still_unwinds(
    bench: Bench, controller: InterruptController
) -> None:
    old = bench.start("old", controller=controller)
    gate = bench.model("old")
    gate.manner = "is deaf"
    controller.request("the old one")
    assert bench.answer("new", controller=controller).state == "completed"
    assert not old.is_done
    gate.let_go()
    assert stop_of(old.result()) == ("cancelled", "the old one")


def test_many_turns_from_several_threads_leave_nothing_behind(bench: Bench) -> None:
    def chat(number: int) -> list[str]:
        controller, states = InterruptController(), []
        for turn_number in range(10):
            message = f"{number} {turn_number}"
            turn = bench.start(message, controller=controller)
            gate = bench.model(message)
            if turn_number % 2:
                controller.request()
            else:
                gate.go(Answer("fine"))
            states.append(turn.result().state)
        return states

    chats = [Later(partial(chat, number)) for number in range(6)]
    assert [each.result() for each in chats] == [["completed", "cancelled"] * 5] * 6


def test_an_error_that_nobody_expected_is_raised_and_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Turn, "fill_plan", fail)
    with pytest.raises(ZeroDivisionError):
        bench.executor.run("hello")


def test_a_refusal_of_our_own_is_an_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ServerError("no more")

    monkeypatch.setattr(Turn, "fill_plan", fail)
    outcome = bench.executor.run("hello")
    assert (outcome.state, outcome.error) == ("failed", "no more")
