"""Real tools of embedded turns: each sees the event, the scope and the cause of its own turn, and ends at its stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.call import CallKind
from core.extensions.embedding import make_agent
from core.interrupt import InterruptController
from core.provider.provider import ToolCall
from core.tool.python_function import FunctionTool, tool
from core.tool.shell import Shell
from tests.support import own_tools
from tests.support.embedding_kit import Bench, open_bench, outcomes, stop_of
from tests.support.own_tools import stages
from tests.support.scripted_provider import Answer
from tests.support.shell_kit import Mark


@pytest.fixture
def bench() -> Iterator[Bench]:
    stages.clear()
    with open_bench(*(FunctionTool(each, 65536, 120_000) for each in (own_tools.asked, own_tools.until_told))) as bench:
        yield bench


def call(name: str, arguments: str) -> Answer:
    """The model calls one tool."""
    return Answer(calls=(ToolCall("m1", name, arguments),))


def test_a_function_ends_by_itself_when_its_event_is_set_and_what_it_has_is_kept(bench: Bench) -> None:
    controller = InterruptController()
    turn = bench.start("hello", controller=controller)
    bench.model("hello").go(call("asked", '{"stage": "A"}'))
    stages["A"].wait_begun()
    controller.request("Esc")
    outcome = turn.result()
    (result,) = (each["content"] for each in outcome.messages if each["role"] == "tool")
    assert result == "cancelled by operator\nhalf of it"
    assert outcomes(outcome)[CallKind.TOOL] == {"cancelled"}
    cause = stages["A"].cause
    assert cause is not None
    assert (cause.word, cause.reason) == ("user", "Esc")


def test_of_two_turns_of_one_agent_each_tool_sees_the_stop_of_its_own(bench: Bench) -> None:
    first, second = InterruptController(), InterruptController()
    a, b = bench.start("A", controller=first), bench.start("B", controller=second)
    for name in ("A", "B"):
        bench.model(name).go(call("until_told", f'{{"stage": "{name}"}}'))
        stages[name].wait_begun()
    event_a, event_b, scope_a, scope_b = (
        stages["A"].event, stages["B"].event, stages["A"].scope, stages["B"].scope
    )  # fmt: skip
    assert event_a is not None and event_b is not None and scope_a is not None and scope_b is not None
    assert event_a is not event_b and event_b is not second.event

    second.request("only B")

    assert (event_a.is_set(), event_b.is_set()) == (False, True)
    assert (scope_a.cause, getattr(scope_b.cause, "reason", None)) == (None, "only B")
    stages["B"].go.set()
    assert stop_of(b.result()) == ("cancelled", "only B")
    stages["A"].go.set()
    gate = bench.model("A")
    assert gate.subject.messages[-1]["content"] == "A in peace"
    gate.go(Answer("fine"))
    assert a.result().state == "completed"
    assert event_b.is_set()  # it was of that call alone, and stays what it was


def test_a_tool_may_stop_its_own_turn() -> None:
    controller = InterruptController()

    @tool
    def give_up(cancel_event: threading.Event) -> str:
        """Stops the turn that it runs in."""
        assert controller.request("the tool gave up")
        assert cancel_event.is_set()
        return "gave up"

    with open_bench(FunctionTool(give_up, 65536, 120_000)) as bench:
        turn = bench.start("hello", controller=controller)
        bench.model("hello").go(call("give_up", "{}"))
        assert stop_of(turn.result()) == ("cancelled", "the tool gave up")
        assert len(bench.requests) == 1


def test_a_running_command_is_gone_when_the_stopped_turn_is_over(tmp_path: Path) -> None:
    mark, printed, controller = Mark(), threading.Event(), InterruptController()
    with open_bench(Shell(tmp_path, mark.environment())) as bench:
        turn = bench.start(
            "hello", controller=controller, on_event=lambda event: printed.set() if event.type == "tool_output" else None
        )
        bench.model("hello").go(call("shell", f'{{"command": "echo begun; sleep {mark} & sleep {mark}"}}'))
        assert printed.wait(15)
        assert mark.alive()
        controller.request("Esc")
        outcome = turn.result()
        assert mark.alive() == []
        (result,) = (each["content"] for each in outcome.messages if each["role"] == "tool")
        assert result.startswith("cancelled by operator\n")
        assert '"interrupted": true' in result
        assert "begun" in result
        assert outcomes(outcome)[CallKind.TOOL] | outcomes(outcome).get(CallKind.PROCESS, set()) == {"killed"}


def test_an_agent_takes_marked_functions_and_tools_alike(bench: Bench, tmp_path: Path) -> None:
    agent = make_agent(bench.provider, own_tools.asked, Shell(tmp_path), name="helper", model="m")
    assert (agent.name, agent.profile.model, list(agent.profile.tools)) == ("helper", "m", ["asked", "shell"])
