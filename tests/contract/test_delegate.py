"""Sub-agents over HTTP: a nested plan is the work of one tool call, and a stop reaches all of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api_client import Api, Run
from tests.support.delegating import ENDLESS, delegate_line, delegated, sub_goal
from tests.support.five_checks import five_checks
from tests.support.going_back import of_type
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess


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
    run = user.start(
        delegate_line(key, sub_goal("middle", inner), sub_goal("other", script("silent", key=f"{key}-o")))
    )
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
    (call,) = of_type_now(run, "tool_call")
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


def of_type_now(run: Run, kind: str) -> list[dict[str, Any]]:
    """The events of a type in a run that goes on."""
    run.wait_event(kind)
    last = run.view()["last_seq"]
    return [event for event in run.events(lambda event: event["seq"] >= last) if event["type"] == kind]
