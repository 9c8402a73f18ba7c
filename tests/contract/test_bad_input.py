"""What is wrong in a request is told by a problem document that names it; nothing else happens."""

import json
from typing import Any

import pytest

from tests.support.api_client import Api
from tests.support.plans import goal, say_done
from tests.support.problems import assert_problem

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [b"{", b"nonsense", b'{"input": "x"', b'{"input": NaN}', b"\xff\xfe", b'{"input": "\xc3"}', b"{'input': 'x'}",
     b'{"input": "x"}{}', b"[" * 5000, b'{"a":' * 500 + b"1" + b"}" * 500],
    ids=["cut", "word", "unclosed", "nan", "not-utf8", "bad-utf8-inside", "quotes", "two", "deep", "deep-objects"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/runs", "/stopplan"])
def test_what_is_no_json_is_refused_as_such(api: Api, path: str, body: bytes) -> None:
    assert_problem(api.request("POST", path, data=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"1", b"null", b"true"])
def test_json_that_is_no_object_has_the_wrong_shape(api: Api, body: bytes) -> None:
    for path in ("/v1/runs", "/stopplan"):
        assert_problem(api.request("POST", path, data=body, headers=JSON), 422, "invalid_request")


_ONE = goal("a", "x")
WRONG_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no-input": ({}, "input"),
    "empty-input": ({"input": ""}, "input"),
    "input-null": ({"input": None}, "input"),
    "input-number": ({"input": 5}, "input"),
    "input-list": ({"input": ["x"]}, "input"),
    "unknown-field": ({"input": "x", "inptu": "x"}, "inptu"),
    "session-with-slash": ({"input": "x", "session_id": "a/b"}, "session_id"),
    "session-empty": ({"input": "x", "session_id": ""}, "session_id"),
    "session-too-long": ({"input": "x", "session_id": "s" * 129}, "session_id"),
    "session-with-newline": ({"input": "x", "session_id": "s\n"}, "session_id"),
    "planning": ({"input": "x", "planning": "maybe"}, "planning"),
    "interactive": ({"input": "x", "interactive": "perhaps"}, "interactive"),
    "on-disconnect": ({"input": "x", "on_disconnect": "die"}, "on_disconnect"),
    "deadline-zero": ({"input": "x", "deadline_ms": 0}, "deadline_ms"),
    "deadline-negative": ({"input": "x", "deadline_ms": -1}, "deadline_ms"),
    "deadline-text": ({"input": "x", "deadline_ms": "soon"}, "deadline_ms"),
    "deadline-absurd": ({"input": "x", "deadline_ms": 10**30}, "deadline_ms"),
    "idle-negative": ({"input": "x", "idle_limit_ms": -1}, "idle_limit_ms"),
    "idle-text": ({"input": "x", "idle_limit_ms": "off"}, "idle_limit_ms"),
    "idle-truth": ({"input": "x", "idle_limit_ms": False}, "idle_limit_ms"),
    "idle-fraction": ({"input": "x", "idle_limit_ms": 0.5}, "idle_limit_ms"),
    "idle-too-long": ({"input": "x", "idle_limit_ms": 604_800_001}, "idle_limit_ms"),
    "metadata": ({"input": "x", "metadata": []}, "metadata"),
    "agent": ({"input": "x", "agent": "nobody"}, "agent"),
    "plan-is-list": ({"input": "x", "plan": []}, "plan"),
    "plan-without-goals": ({"input": "x", "plan": {"goals": []}}, "plan.goals"),
    "goal-without-id": ({"input": "x", "plan": {"goals": [{"prompt": "x"}]}}, "plan.goals.0.id"),
    "goal-unknown-field": ({"input": "x", "plan": {"goals": [{**_ONE, "promt": 1}]}}, "plan.goals.0.promt"),
    "half-a-character": ({"input": "half \ud83d"}, "input"),
}


@pytest.mark.parametrize("kind", WRONG_RUNS)
def test_a_wrong_shape_is_refused_by_the_name_of_the_field(api: Api, kind: str) -> None:
    body, field = WRONG_RUNS[kind]
    answer = api.request("POST", "/v1/runs", data=json.dumps(body), headers=JSON)
    problem = assert_problem(answer, 422, "invalid_request")
    assert field in [error["field"] for error in problem["errors"]]
    assert api.get("/v1/runs")["runs"] == []


@pytest.mark.parametrize(
    "goals",
    [
        [goal("a", "x"), goal("a", "y")],
        [goal("a", "x", "nobody")],
        [goal("a", "x", "a")],
        [goal("a", "x", "b"), goal("b", "x", "a")],
        [goal("a", goals=[goal("b", "x", "a")])],
        [goal("a", goals=[goal("b", "x", "c")]), goal("c", "x", "a")],
        [{"id": "a"}],
        [{"id": "a", "prompt": "x", "goals": [goal("b", "x")]}],
        [{"id": "a", "prompt": "x", "agent": "nobody"}],
    ],
    ids=["twice", "unknown", "itself", "cycle", "its-own-parent", "through-a-parent", "no-work", "both", "agent"],
)
def test_a_plan_that_cannot_run_is_refused_before_anything_starts(api: Api, goals: list[dict[str, Any]]) -> None:
    answer = api.request("POST", "/v1/runs", json={"input": "x", "plan": {"goals": goals}})
    assert "goal" in assert_problem(answer, 422, "invalid_plan")["detail"]
    assert api.get("/v1/runs")["runs"] == []


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("cancel", {"wait_ms": -1}, "wait_ms"),
        ("cancel", {"wait_ms": 30_001}, "wait_ms"),
        ("cancel", {"inbox": "burn"}, "inbox"),
        ("cancel", {"reason": 7}, "reason"),
        ("cancel", {"reason": "x" * 2000}, "reason"),
        ("cancel", {"if_trun": "t"}, "if_trun"),
        ("terminate", {"inbox": "keep"}, "inbox"),
        ("input", {"text": ""}, "text"),
        ("input", {}, "text"),
        ("input", {"text": "x", "mode": "shout"}, "mode"),
        ("input", {"text": "x", "client_message_id": ""}, "client_message_id"),
    ],
)
def test_a_wrong_shape_on_a_runs_routes_changes_nothing(
    api: Api, key: str, verb: str, body: dict[str, Any], field: str
) -> None:
    run = api.start(say_done(key))
    last = run.events()[-1]["seq"]
    answer = api.request("POST", f"{run.path}/{verb}", json=body)
    problem = assert_problem(answer, 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [field]
    assert run.view()["last_seq"] == last


def test_the_stop_route_takes_no_field(api: Api) -> None:
    problem = assert_problem(api.request("POST", "/stopplan", json={"run_id": "r"}), 422, "invalid_request")
    assert problem["errors"][0]["field"] == "run_id"


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1000", "state=asleep", "colour=red"])
def test_a_wrong_query_names_its_field(api: Api, query: str) -> None:
    problem = assert_problem(api.request("GET", f"/v1/runs?{query}"), 422, "invalid_request")
    assert problem["errors"][0]["field"] == query.partition("=")[0]
