"""Sub-agents over HTTP: a nested plan is the work of one tool call, and a stop reaches all of it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.agent.agent import Reply
from core.tool.tool import ToolResult, ToolRun
from tests.support.api_client import Api, Run
from tests.support.delegating import ENDLESS, delegate_line, delegated, sub_goal
from tests.support.five_checks import five_checks, processes_of, wait_no_process
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import cancel_call, cancel_goal, events_now, outcomes
from tests.support.plans import say_done, seen_at
from tests.support.portable import comparable, export_session, import_session
from tests.support.python_tools import call_line, give_tool
from tests.support.race_kit import Switch, check_nothing_left
from tests.support.servers import LocalServer, ServerProcess, gate, wait_until


@pytest.fixture(scope="module")
def delegating(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose agents may delegate, and use the shell."""
    folder = tmp_path_factory.mktemp("delegating")
    with ServerProcess(folder, models.url, TOOLS_ALLOWED="delegate,shell") as process:
        yield process


@pytest.fixture
def user(delegating: ServerProcess, key: str) -> Api:
    """A user of that server."""
    return delegating.api(key)


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process whose agents may delegate; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url, tools_allowed=("delegate",)) as server:
        yield server
        check_nothing_left(server)


@pytest.fixture
def one_place(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """The same with one place for calls."""
    with LocalServer(tmp_path, models.url, tools_allowed=("delegate",), call_threads=1) as server:
        yield server
        check_nothing_left(server)


def _result(run: Run) -> dict[str, Any]:
    (message,) = [each for each in run.transcript() if each["role"] == "tool"]
    return json.loads(message["content"].partition("\n")[2] or message["content"])  # type: ignore[no-any-return]


def test_sub_agents_work_in_the_order_of_their_dependencies_and_the_model_reads_what_they_came_to(
    user: Api, models: ModelServer, key: str
) -> None:
    first, second = script("trickle", tokens=2, key=f"{key}-a"), script("trickle", tokens=3, key=f"{key}-b")
    run = user.start(delegate_line(key, sub_goal("a", first), sub_goal("b", second, "a")))
    assert run.wait_parked() == "awaiting_input"
    assert _result(run) == {
        "goals": [
            {"id": "a", "status": "COMPLETED", "result": "t1 t2 "},
            {"id": "b", "status": "COMPLETED", "result": "t1 t2 t3 "},
        ]
    }
    (asked,) = models.calls(key=f"{key}-b")
    assert "Result of “a”:\nt1 t2 " in asked.messages[0]["content"]
    assert key in asked.last_user_text
    goals = delegated(run)
    assert {goal["status"] for goal in goals.values()} == {"COMPLETED"}
    (call,) = of_type(run, "tool_call")
    assert {goal["call_id"] for goal in goals.values()} == {call["call_id"]}
    assert [message["role"] for message in run.transcript()] == ["user", "assistant", "tool", "assistant"]
    five_checks(run, models, key)


def test_a_stop_reaches_sub_agents_three_deep_and_the_receipt_names_each(
    user: Api, models: ModelServer, key: str
) -> None:
    inner = delegate_line(f"{key}-2", sub_goal("leaf", script("trickle", key=f"{key}-3", **ENDLESS)))
    run = user.start(delegate_line(key, sub_goal("middle", inner), sub_goal("other", script("silent", key=f"{key}-o"))))
    models.wait_tokens(2, key=f"{key}-3")
    models.wait_calls(1, key=f"{key}-o")
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    kinds = [(item["kind"], item["outcome"]) for item in answer["receipt"]]
    assert kinds.count(("model_call", "cancelled")) == 2
    assert kinds.count(("sub_run", "cancelled")) == 2
    assert kinds.count(("goal", "cancelled")) == 4
    models.wait_open(0, key=f"{key}-3")
    models.wait_open(0, key=f"{key}-o")
    five_checks(run, models, key)


def test_a_sub_agent_that_is_stopped_alone_is_a_result_for_its_parent(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(
        delegate_line(
            key,
            sub_goal("long", script("trickle", key=f"{key}-l", **ENDLESS)),
            sub_goal("after", script("trickle", tokens=1, key=f"{key}-n"), "long"),
            sub_goal("short", script("trickle", tokens=1, key=f"{key}-s")),
        )
    )
    models.wait_tokens(2, key=f"{key}-l")
    goal_id = delegated(run)["long"]["id"]
    answer = user.post(f"{run.path}/goals/{goal_id}/cancel", {"wait_ms": 30_000})
    assert (answer["stopped"], answer["ended"], answer["goal_id"]) == (True, True, goal_id)
    assert run.wait_parked() == "awaiting_input"
    result = {goal["id"]: goal for goal in _result(run)["goals"]}
    assert (result["long"]["status"], result["long"]["cause"]) == ("CANCELLED", "user")
    assert result["long"]["partial"].startswith("t1 t2")
    assert (result["after"]["status"], result["after"]["cause"]) == ("CANCELLED", "dependency")
    assert result["short"]["status"] == "COMPLETED"
    assert models.calls(key=f"{key}-n") == []
    assert of_type(run, "turn_completed")
    five_checks(run, models, key)


def test_a_delegate_call_that_is_stopped_alone_stops_its_goals_and_the_model_goes_on(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(delegate_line(key, sub_goal("long", script("trickle", key=f"{key}-l", **ENDLESS))))
    models.wait_tokens(2, key=f"{key}-l")
    (call,) = events_now(run, "tool_call")
    answer = user.post(f"{run.path}/calls/{call['call_id']}/cancel", {"wait_ms": 30_000})
    assert (answer["stopped"], answer["ended"]) == (True, True)
    assert [(item["kind"], item["outcome"]) for item in answer["receipt"]] == [
        ("sub_run", "cancelled"), ("model_call", "cancelled"), ("goal", "cancelled"),
    ]  # fmt: skip
    assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    assert result["content"].startswith("cancelled by operator\n")
    assert _result(run)["goals"][0]["status"] == "CANCELLED"
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


# -- what is refused -----------------------------------------------------------------------------------


def test_sub_agents_that_delegate_too_deep_are_refused_and_do_the_part_themselves(
    user: Api, models: ModelServer, key: str
) -> None:
    too_deep = delegate_line(f"{key}-3", sub_goal("never", say_done(f"{key}-4")))
    middle = delegate_line(f"{key}-2", sub_goal("deep", too_deep))
    run = user.start(delegate_line(key, sub_goal("middle", middle)))
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=f"{key}-4") == []
    refused = of_type(run, "tool_result")[0]
    assert (refused["content"], refused["is_error"]) == (
        "sub-agents may not delegate deeper than 2: do this part yourself", True
    )  # fmt: skip
    assert len(models.calls(key=f"{key}-3")) == 2  # the model has read it, and gone on
    assert [result["is_error"] for result in of_type(run, "tool_result")] == [True, False, False]
    five_checks(run, models, key)


def test_more_goals_than_a_turn_may_delegate_are_refused_and_the_next_turn_has_all_of_them_again(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with LocalServer(tmp_path, models.url, tools_allowed=("delegate",), delegate_goals=3) as server:
        two = [sub_goal(name, say_done(f"{key}-s")) for name in "ab"]
        run = server.api().start(delegate_line(key, *two, rounds=2))
        for number in range(2):
            assert run.wait_parked() == "awaiting_input"
            results = of_type(run, "tool_result")[2 * number :]
            assert [result["is_error"] for result in results] == [False, True]
            assert results[1]["content"] == "a turn may delegate 3 goals, and 2 were: do it yourself"
            assert len(models.calls(key=f"{key}-s")) == 2 * (number + 1)
            if not number:
                run.say(delegate_line(key, *two, rounds=2))
        five_checks(run, models, key)
        check_nothing_left(server)


@pytest.mark.parametrize(
    ("goals", "words"),
    [
        ([sub_goal("a", "p", "b"), sub_goal("b", "p", "a")], "the goals are no plan: goals wait for each other: "),
        ([sub_goal("a", "p", "nobody")], "the goals are no plan: goal 'a' depends on unknown 'nobody'"),
        ([sub_goal("a", "p"), sub_goal("a", "q")], "the goals are no plan: "),
        ([sub_goal("a", "p", agent="nobody")], "there is no agent 'nobody'"),
        ([sub_goal("a b", "p")], "the arguments do not fit the tool: goals/0/id: "),
        ([sub_goal("a", "")], "the arguments do not fit the tool: goals/0/prompt: "),
        ([sub_goal("a", "p", tool={"name": "shell"})], "the arguments do not fit the tool: goals/0: "),
        ([], "the arguments do not fit the tool: goals: "),
        ([sub_goal(f"g{number}", "p") for number in range(33)], "the arguments do not fit the tool: goals: "),
    ],
    ids=["circle", "unknown", "twice", "agent", "id", "prompt", "tool", "none", "many"],
)
def test_goals_that_are_no_plan_are_an_error_that_the_model_reads(
    user: Api, models: ModelServer, key: str, goals: list[dict[str, Any]], words: str
) -> None:
    run = user.start(delegate_line(key, *goals))
    assert run.wait_parked() == "awaiting_input"
    (result,) = of_type(run, "tool_result")
    assert result["is_error"] is True
    assert result["content"].startswith(words)
    assert delegated(run) == {}
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


def test_sub_agents_that_fail_are_a_result_and_not_the_end_of_their_parent(
    user: Api, models: ModelServer, key: str
) -> None:
    broken = script("error", status=400, key=f"{key}-b")
    run = user.start(
        delegate_line(
            key,
            sub_goal("broken", broken),
            sub_goal("after", say_done(f"{key}-n"), "broken"),
            sub_goal("fine", say_done(f"{key}-f")),
        )
    )
    assert run.wait_parked() == "awaiting_input"
    result = {goal["id"]: goal for goal in _result(run)["goals"]}
    assert result["broken"]["status"] == "FAILED" and "400" in result["broken"]["error"]
    assert (result["after"]["status"], result["after"]["cause"]) == ("CANCELLED", "dependency")
    assert result["fine"] == {"id": "fine", "status": "COMPLETED", "result": "t1 t2 "}
    (told,) = of_type(run, "tool_result")
    assert told["is_error"] is False
    assert of_type(run, "turn_completed")
    run.say(delegate_line(key, sub_goal("broken", broken)))
    run.wait_parked()
    assert of_type(run, "tool_result")[1]["is_error"] is True
    assert len(of_type(run, "turn_completed")) == 2
    five_checks(run, models, key)


# -- stops ---------------------------------------------------------------------------------------------


def test_commands_of_sub_agents_are_killed_by_the_stop_of_the_turn(user: Api, models: ModelServer, key: str) -> None:
    command = script("toolcall", arguments={"command": "echo begun; setsid sleep 600 & sleep 600"}, key=f"{key}-s")
    run = user.start(delegate_line(key, sub_goal("a", command), sub_goal("b", command)))
    calls = events_now(run, "tool_output", 2)
    assert len(processes_of([call | {"type": "tool_call"} for call in calls])) >= 6
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
    assert [goal["status"] for goal in _result(run)["goals"]] == ["COMPLETED"] * 3
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
        if request.messages[-1]["content"] != "deaf":
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


# -- afterwards ----------------------------------------------------------------------------------------


def test_a_kill_while_sub_agents_run_leaves_every_goal_final_and_every_call_with_a_result(
    models: ModelServer, key: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="delegate,shell") as server:
        command = script("toolcall", arguments={"command": "echo begun; sleep 600"}, key=f"{key}-s")
        inner = delegate_line(f"{key}-2", sub_goal("shell", command), sub_goal("later", "p", "shell"))
        run = server.api().start(delegate_line(key, sub_goal("quick", say_done(f"{key}-q")), sub_goal("middle", inner)))
        run.wait_event("tool_output", text="begun\n")
        run.wait_event("goal_status", goal_id=delegated(run)["quick"]["id"], status="COMPLETED")
        server.kill()
        server.start()
        run = seen_at(server, run)
        wait_no_process(run)
        assert run.state == "awaiting_input"
        goals = delegated(run)
        assert (goals["quick"]["status"], goals["quick"]["result"]) == ("COMPLETED", "t1 t2 ")
        assert (goals["middle"]["status"], goals["middle"]["cause"]) == ("CANCELLED", "server_lost")
        inside = {goal["title"]: goal for goal in goals["middle"]["delegated"]}
        assert {goal["cause"] for goal in inside.values()} == {"server_lost"}
        results = [event["content"] for event in of_type(run, "tool_result")]
        assert results == ["cancelled: server_lost"] * 3
        assert [message["role"] for message in run.transcript()] == ["user", "assistant", "tool"]
        five_checks(run, models, key)


def test_a_turn_with_sub_agents_is_resumed_with_new_ones(user: Api, models: ModelServer, key: str) -> None:
    line = delegate_line(key, sub_goal("a", script("trickle", key=f"{key}-s", tokens=60, interval_ms=20)))
    run = user.start(line)
    models.wait_tokens(2, key=f"{key}-s")
    run.cancel(wait_ms=30_000)
    (before,) = delegated(run).values()
    go_back(run, "resume")
    assert run.wait_parked() == "awaiting_input"
    (after,) = delegated(run).values()
    assert after["id"] != before["id"]
    assert (after["status"], _result(run)["goals"][0]["status"]) == ("COMPLETED", "COMPLETED")
    assert delegated_before(run)["a"] == before
    five_checks(run, models, key)


def delegated_before(run: Run) -> dict[str, dict[str, Any]]:
    """The sub-agents of the run's first turn."""
    return {goal["title"]: goal for goal in run.goals(run.first_turn)["answer"]["delegated"]}


def test_a_session_with_sub_agents_is_exported_from_its_copy_as_from_the_original(
    user: Api, models: ModelServer, key: str
) -> None:
    run = user.start(delegate_line(key, sub_goal("a", say_done(f"{key}-s"))))
    run.wait_parked()
    run.say(delegate_line(key, sub_goal("a", script("trickle", key=f"{key}-l", **ENDLESS))))
    models.wait_tokens(2, key=f"{key}-l")
    run.cancel(wait_ms=30_000)
    lines = export_session(user, run.session_id)
    copy = import_session(user, lines, f"?session_id=copy-{key}")
    assert comparable(export_session(user, copy.session_id)) == comparable(lines)
    assert [each | {"turn_id": ""} for each in copy.transcript()] == [
        each | {"turn_id": ""} for each in run.transcript()
    ]
    assert list(delegated(copy)) == ["a"]
    five_checks(copy, models, key)
    five_checks(run, models, key)


def test_what_sub_agents_used_is_in_the_sums_of_their_turn(user: Api, models: ModelServer, key: str) -> None:
    run = user.start(delegate_line(key, *(sub_goal(name, say_done(f"{key}-s")) for name in "ab")))
    run.wait_parked()
    assert run.view()["usage"]["calls"] == 4
    assert {event["goal_id"] for event in of_type(run, "usage")} >= {goal["id"] for goal in delegated(run).values()}


def test_calls_that_delegate_at_the_same_time_lose_none_of_their_goals(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    """The plan is published by each; the newest in the log must show both."""
    both = [{"goals": [sub_goal(name, script("silent", key=f"{key}-s"))]} for name in "ab"]
    with gate("delegation.before_spawn") as first:
        run = local.api().start(script("toolcall", name=["delegate"] * 2, arguments=[*map(_json, both)], key=key))
        first.wait_reached()
        models.wait_calls(1, key=f"{key}-s")
    models.wait_calls(2, key=f"{key}-s")
    assert set(delegated(run)) == {"a", "b"}
    run.cancel(wait_ms=30_000)
    assert {goal["status"] for goal in delegated(run).values()} == {"CANCELLED"}
    five_checks(run, models, key)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
