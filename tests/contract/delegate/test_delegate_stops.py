"""Sub-agents and stops: each reaches all of them, also those that are just being born."""


import time
from typing import Any

import pytest

from core.agent.agent import Reply
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import Api
from tests.support.delegating import ENDLESS, delegate_line, delegated, result_of, sub_goal
from tests.support.five_checks import five_checks, processes_of
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, cancel_goal, events_now, outcomes
from tests.support.plans import say_done
from tests.support.python_tools import call_line, give_tool
from tests.support.race_kit import Switch
from tests.support.servers import LocalServer, gate, wait_until

# -- stops ---------------------------------------------------------------------------------------------


def test_commands_of_sub_agents_are_killed_by_the_stop_of_the_turn(user: Api, models: ModelServer, key: str) -> None:
    command = script("toolcall", arguments={"command": "echo begun; setsid sleep 600 & sleep 600"}, key=f"{key}-s")
    run = user.start(delegate_line(key, sub_goal("a", command), sub_goal("b", command)))
    calls = events_now(run, "tool_output", 2)
    wait_until(lambda: len(processes_of([call | {"type": "tool_call"} for call in calls])) >= 6, "the commands' processes")
    answer = run.cancel(wait_ms=30_000)
    assert sorted(outcomes(answer["receipt"])) == [
        *[("goal", "cancelled")] * 3, ("sub_run", "cancelled"), *[("tool", "killed")] * 2
    ]  # fmt: skip
    assert {goal["cause"] for goal in delegated(run).values()} == {"user"}
    results = [event["content"].splitlines()[0] for event in of_type(run, "tool_result")]
    assert results == ["cancelled by operator"] * 3
    five_checks(run, models, key)


@pytest.mark.parametrize("how", ["terminate", "stopplan", "deadline"])
def test_whatever_ends_the_turn_ends_its_sub_agents(user: Api, models: ModelServer, key: str, how: str) -> None:
    fields = {"deadline_ms": 1500} if how == "deadline" else {}
    line = delegate_line(key, sub_goal("a", script("trickle", key=f"{key}-s", **ENDLESS)))
    run = user.start(line, session_id=f"s-{key}", **fields)
    models.wait_tokens(2, key=f"{key}-s")
    if how == "terminate":
        run.terminate()
    elif how == "stopplan":
        assert user.post("/stopplan")["stopped"] is True
    assert run.wait_parked() == ("cancelled" if how == "terminate" else "awaiting_input")
    (goal,) = delegated(run).values()
    assert (goal["status"], goal["cause"]) == ("CANCELLED", "deadline" if how == "deadline" else "user")
    five_checks(run, models, key)


def test_sub_agents_that_are_born_during_a_stop_are_refused_and_ask_nothing(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("delegation.before_spawn") as before:
        run = local.api().start(delegate_line(key, sub_goal("a", say_done(f"{key}-s"))))
        before.wait_reached()
        assert run.cancel()["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=f"{key}-s") == []
    assert run.goals()["answer"]["delegated"] == []
    assert [event["content"] for event in of_type(run, "tool_result")] == ["cancelled by operator"]
    five_checks(run, models, key)


def test_sub_agents_that_are_born_while_their_call_is_stopped_are_refused_and_the_model_goes_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    with gate("delegation.before_spawn") as before:
        run = local.api().start(delegate_line(key, sub_goal("a", say_done(f"{key}-s"))))
        before.wait_reached()
        (call,) = events_now(run, "tool_call")
        assert cancel_call(run, call["call_id"])["stopped"] is True
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=f"{key}-s") == []
    assert run.goals()["answer"]["delegated"] == []
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


def test_one_place_is_enough_for_sub_agents_three_deep(one_place: LocalServer, models: ModelServer, key: str) -> None:
    inner = delegate_line(f"{key}-2", *(sub_goal(name, say_done(f"{key}-3")) for name in "xyz"))
    run = one_place.api().start(delegate_line(key, sub_goal("a", inner), sub_goal("b", inner), sub_goal("c", inner)))
    assert run.wait_parked() == "awaiting_input"
    assert [goal["status"] for goal in result_of(run)["goals"]] == ["COMPLETED"] * 3
    assert len(models.calls(key=f"{key}-3")) == 9
    five_checks(run, models, key)


def test_sub_agents_that_wait_for_a_place_at_a_stop_never_begin(
    one_place: LocalServer, models: ModelServer, key: str
) -> None:
    lines = [script("silent", key=f"{key}-s")] * 5
    run = one_place.api().start(delegate_line(key, *(sub_goal(f"g{n}", line) for n, line in enumerate(lines))))
    models.wait_calls(1, key=f"{key}-s")
    answer = run.cancel(wait_ms=30_000)
    assert outcomes(answer["receipt"]).count(("goal", "not_started")) == 4
    assert len(models.calls(key=f"{key}-s")) == 1
    assert {(goal["status"], goal["cause"]) for goal in delegated(run).values()} == {("CANCELLED", "user")}
    five_checks(run, models, key)


@pytest.mark.parametrize("how", ["turn", "goal", "call"])
def test_a_sub_agent_with_a_deaf_tool_holds_up_no_stop(
    local: LocalServer, models: ModelServer, key: str, how: str
) -> None:
    switch = Switch()

    def deaf(_: ToolRun) -> ToolResult:
        switch.hold()
        return ToolResult("LATE")

    give_tool(local, "deaf", deaf)
    inner = delegate_line(f"{key}-2", sub_goal("leaf", call_line(f"{key}-3", "deaf")))
    run = local.api().start(delegate_line(key, sub_goal("middle", inner)))
    switch.wait_reached()
    asked_at = time.monotonic()
    if how == "turn":
        answer = run.cancel(wait_ms=30_000)
    elif how == "goal":
        answer = cancel_goal(run, delegated(run)["middle"]["id"], wait_ms=30_000)
    else:
        answer = cancel_call(run, events_now(run, "tool_call")[0]["call_id"], wait_ms=30_000)
    assert time.monotonic() - asked_at < 4  # 1.8 s, and what a busy machine takes
    assert ("tool", "abandoned") in outcomes(answer["receipt"])
    assert run.wait_parked() == "awaiting_input"
    five_checks(run, models, key)
    switch.open()
    wait_until(lambda: not local.main.engine.pool.abandoned, "the end of the thread that was left behind")
    assert "LATE" not in str(five_checks(run, models, key))


def test_work_of_a_sub_agent_that_never_listens_is_final_at_the_turns_end(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, agent = Switch(), local.main.agents["default"]
    ask = agent.ask

    def deaf(request: Any, asked: Any, port: Any) -> Reply:
        if request().messages[-1]["content"] != "deaf":
            return ask(request, asked, port)
        switch.hold()
        return Reply(["LATE"])

    monkeypatch.setattr(agent, "ask", deaf)
    inner = delegate_line(f"{key}-2", sub_goal("leaf", "deaf"), sub_goal("next", "p", "leaf"))
    run = local.api().start(delegate_line(key, sub_goal("middle", inner)))
    switch.wait_reached()
    answer = run.cancel(wait_ms=30_000)
    assert answer["parked"] is True
    assert ("goal", "abandoned") in outcomes(answer["receipt"])
    waiting = [*run.goals().values()]
    for goal in waiting:
        waiting += goal["delegated"]
    assert [(goal["status"], goal["cause"]) for goal in waiting] == [("CANCELLED", "user")] * 4
    five_checks(run, models, key)
    switch.open()
    wait_until(lambda: not local.main.engine.pool.abandoned, "the end of the thread that was left behind")
    assert "LATE" not in str(five_checks(run, models, key))
