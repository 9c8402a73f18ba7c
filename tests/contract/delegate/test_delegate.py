"""Sub-agents over HTTP: a nested plan is the work of one tool call, and a stop reaches all of it."""


import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.delegating import ENDLESS, delegate_line, delegated, result_of, sub_goal
from tests.support.five_checks import five_checks, wait_no_process
from tests.support.going_back import go_back, of_type
from tests.support.model_server import ModelServer, script
from tests.support.part_stops import events_now
from tests.support.plans import say_done, seen_at
from tests.support.portable import comparable, export_session, import_session
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer, ServerProcess, gate


def test_sub_agents_work_in_the_order_of_their_dependencies_and_the_model_reads_what_they_came_to(
    user: Api, models: ModelServer, key: str
) -> None:
    first, second = script("trickle", tokens=2, key=f"{key}-a"), script("trickle", tokens=3, key=f"{key}-b")
    run = user.start(delegate_line(key, sub_goal("a", first), sub_goal("b", second, "a")))
    assert run.wait_parked() == "awaiting_input"
    assert result_of(run) == {
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
    result = {goal["id"]: goal for goal in result_of(run)["goals"]}
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
    assert result_of(run)["goals"][0]["status"] == "CANCELLED"
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
        ([sub_goal("a", "p", agent="nobody")], "the arguments do not fit the tool: goals/0: "),
        ([sub_goal("a b", "p")], "the goals are no plan: the model's plan has the wrong shape (goals.0.id"),
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
    result = {goal["id"]: goal for goal in result_of(run)["goals"]}
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
        (printed,) = [each for each in results if each != "cancelled: server_lost"]
        assert len(results) == 3
        assert printed.startswith('cancelled: server_lost\n{"stdout": "begun\\n"')
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
    assert (after["status"], result_of(run)["goals"][0]["status"]) == ("COMPLETED", "COMPLETED")
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
