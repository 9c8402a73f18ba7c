"""Plans that are handed in or made by a model: what runs when, what it is told, and how it ends."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, ServedCall, script
from tests.support.plans import goal, say_done, start_plan
from tests.support.servers import ServerProcess


def _statuses(run: Run) -> dict[str, str]:
    return {name: each["status"] for name, each in run.goals().items()}


def _end(run: Run) -> dict[str, Any]:
    events = run.events()
    (end,) = [e for e in events if e["type"] in ("turn_completed", "turn_cancelled", "turn_failed")]
    return end


def _system(call: ServedCall) -> str:
    return "\n".join(str(message["content"]) for message in call.messages if message["role"] == "system")


def test_goals_that_wait_for_nothing_run_side_by_side(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_plan(any_server.api(), *(goal(f"g{number}", script("silent", key=key)) for number in range(12)))
    models.wait_open(12, key=key)
    assert set(_statuses(run).values()) == {"IN_PROGRESS"}
    run.cancel()
    five_checks(run, models, key)


def test_a_goal_starts_only_after_all_that_it_depends_on(server: ServerProcess, models: ModelServer, key: str) -> None:
    slow = script("trickle", tokens=5, interval_ms=20, key=key)
    inner = goal("inner", goals=[goal("x", slow), goal("y", slow, "x")])
    run = start_plan(server.api(), goal("a", slow), inner, goal("last", slow, "a", "inner"))
    events = [event for event in run.events() if event["type"] == "goal_status"]
    order = [(event["goal_id"], event["status"]) for event in events]
    for before, after in (("a", "last"), ("inner", "last"), ("x", "y"), ("y", "inner")):
        later = (after, "COMPLETED" if after == "inner" else "IN_PROGRESS")
        assert order.index((before, "COMPLETED")) < order.index(later)
    assert ("inner", "CHILDREN_IN_PROGRESS") in order
    assert set(_statuses(run).values()) == {"COMPLETED"}


def test_a_plan_nested_fifty_deep_runs_on_one_thread_and_can_be_stopped_there(
    models: ModelServer, tmp_path: Path, key: str
) -> None:
    def nested(prompt: str) -> dict[str, Any]:
        tree = goal("leaf", prompt)
        for level in range(49):
            tree = goal(f"level{level}", goals=[tree, goal(f"side{level}", say_done(key))])
        return tree

    with ServerProcess(tmp_path, models.url, CALL_THREADS="1") as server:
        run = start_plan(server.api(), nested(say_done(key)))
        assert _end(run)["type"] == "turn_completed"
        assert len(run.goals()) == 99
        run = start_plan(server.api(), nested(script("silent", key=f"{key}-2")))
        models.wait_open(1, key=f"{key}-2")
        run.cancel()
        five_checks(run, models, f"{key}-2")


def test_what_depends_on_a_failed_goal_is_cancelled_and_siblings_go_on(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    done = say_done(key)
    bad = script("error", status=400, key=key)
    run = start_plan(
        any_server.api(),
        goal("bad", bad), goal("next", done, "bad"), goal("after", done, "next"),
        goal("inner", goals=[goal("inside", done)]) | {"depends_on": ["bad"]},
        goal("sibling", script("trickle", tokens=8, interval_ms=20, key=key)), goal("free", done, "sibling"),
    )  # fmt: skip
    assert _end(run)["type"] == "turn_completed"
    assert _statuses(run) == {
        "bad": "FAILED", "next": "CANCELLED", "after": "CANCELLED", "inner": "CANCELLED", "inside": "CANCELLED",
        "sibling": "COMPLETED", "free": "COMPLETED",
    }  # fmt: skip
    goals = run.goals()
    assert {goals[name]["cause"] for name in ("next", "after", "inner", "inside")} == {"dependency"}
    assert all(goals[name]["started_at"] is None for name in ("next", "after", "inner", "inside"))
    assert "400" in goals["bad"]["error"]


def test_a_goal_that_contains_others_is_failed_over_cancelled_over_completed(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    done, bad = say_done(key), script("error", status=400, key=key)
    run = start_plan(
        server.api(),
        goal("completed", goals=[goal("c1", done), goal("c2", done)]),
        goal("failed", goals=[goal("f1", bad), goal("f2", done, "f1"), goal("f3", done)]),
        goal("cancelled", goals=[goal("x1", done, "f1"), goal("x2", done)]),
        goal("around", goals=[goal("deeper", goals=[goal("d1", bad)]), goal("d2", done)]),
    )
    assert _end(run)["type"] == "turn_completed"
    found = _statuses(run)
    assert {name: found[name] for name in ("completed", "failed", "cancelled", "around", "deeper")} == {
        "completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED", "around": "FAILED", "deeper": "FAILED",
    }  # fmt: skip


@pytest.mark.parametrize("prompt", ["error status=400", "html"])
def test_a_turn_has_failed_only_if_no_goal_completed(
    any_server: ServerProcess, models: ModelServer, key: str, prompt: str
) -> None:
    bad = f"/script {prompt} key={key}"
    run = start_plan(any_server.api(), goal("a", bad), goal("b", bad), goal("c", say_done(key), "a"))
    end = _end(run)
    assert end["type"] == "turn_failed"
    assert end["error"]
    assert _statuses(run) == {"a": "FAILED", "b": "FAILED", "c": "CANCELLED"}
    five_checks(run, models, key)


def test_a_prompt_is_the_last_user_message_word_for_word_and_the_rest_is_in_the_system_message(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    first = script("trickle", tokens=3, interval_ms=0, key=key)
    second = f"  Sum up,\tplease. “{key}”\n\n{say_done(key)}\n "
    run = start_plan(
        server.api(), goal("facts", first), goal("sum", second, "facts"), text=f"the user's own words {key}"
    )
    assert _end(run)["type"] == "turn_completed"
    one, two = models.calls(key=key)
    assert [call.last_user_text for call in (one, two)] == [first, second]
    assert all(call.messages[-1]["role"] == "user" for call in (one, two))
    assert "t1 t2 t3" in _system(two)
    assert "t1 t2 t3" not in _system(one)
    assert f"the user's own words {key}" in _system(one)
    assert f"the user's own words {key}" in _system(two)


def test_the_results_of_an_inner_goal_and_of_what_an_outer_goal_depends_on_are_told(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    say = [script("trickle", tokens=count, interval_ms=0, key=key) for count in (3, 4)]
    inner = goal("inner", goals=[goal("in1", say[0]), goal("in2", say[1])])
    outer = goal("outer", goals=[goal("reader", script("trickle", tokens=1, key=f"{key}-r"))]) | {
        "depends_on": ["inner"]
    }
    run = start_plan(server.api(), inner, outer)
    assert _end(run)["type"] == "turn_completed"
    (reader,) = models.calls(key=f"{key}-r")
    assert "t1 t2 t3 \n" in _system(reader) + "\n"
    assert "t1 t2 t3 t4" in _system(reader)


def test_the_answer_of_a_plan_is_its_results_in_the_plans_order(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    slow = script("trickle", tokens=3, interval_ms=60, key=key)
    run = start_plan(server.api(), goal("slow", slow), goal("quick", say_done(key)))
    run.events()
    assert run.transcript()[-1]["content"] == "t1 t2 t3 \n\nt1 t2 "
    assert len(run.transcript()) == 2
    five_checks(run, models, key)


def test_a_wide_plan_of_a_hundred_goals_runs_and_a_second_one_is_stopped_whole(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = any_server.api()
    run = start_plan(api, *(goal(f"g{number}", say_done(key)) for number in range(100)))
    assert _end(run)["type"] == "turn_completed"
    assert list(_statuses(run).values()) == ["COMPLETED"] * 100
    run = start_plan(api, *(goal(f"g{number}", script("silent", key=f"{key}-2")) for number in range(100)))
    models.wait_open(100, key=f"{key}-2")
    answer = run.cancel(wait_ms=30_000)
    assert answer["parked"] is True
    kinds = [item["kind"] for item in answer["receipt"]]
    assert (kinds.count("model_call"), kinds.count("goal")) == (100, 100)
    five_checks(run, models, f"{key}-2")
