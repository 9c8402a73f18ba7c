"""The documented stop route: the caller's plan, without an id."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_client import Api, make_token
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_silent, start_streaming
from tests.support.raw_server import Peer, RawServer
from tests.support.servers import LocalServer, ServerProcess, gate, wait_until

MESSAGE = "Plan stopped successfully"


def test_the_answer_is_the_documented_one_with_run_turn_and_receipt(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(server.api(key), models, key)
    answer = run.api.post("/stopplan")
    assert (answer["message"], answer["stopped"]) == (MESSAGE, True)
    assert (answer["run_id"], answer["turn_id"]) == (run.id, run.first_turn)
    assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["cancelled"]
    five_checks(run, models, key)


@pytest.mark.parametrize(
    "body",
    [{"json": {}}, {"data": b""}, {"data": b"{}", "headers": {"Content-Type": "application/json; charset=utf-8"}}],
    ids=["empty-object", "no-body", "with-a-charset"],
)
def test_the_body_is_an_empty_object_or_none(
    server: ServerProcess, models: ModelServer, key: str, body: dict[str, Any]
) -> None:
    run = start_silent(server.api(key), models, key)
    answer = run.api.request("POST", "/stopplan", **body)
    assert (answer.status_code, answer.json()["message"], answer.json()["stopped"]) == (200, MESSAGE, True)
    five_checks(run, models, key)


def test_without_anything_to_stop_it_succeeds_and_says_so(api: Api, key: str) -> None:
    assert api.post("/stopplan") == {"message": MESSAGE, "stopped": False}
    run = api.start(say_done(key))
    run.events()
    assert api.post("/stopplan") == {"message": MESSAGE, "stopped": False}
    run.say(say_done(key))
    assert run.events(after=run.view()["last_seq"] - 1)[-1]["type"] == "awaiting_input"


def test_a_token_without_any_scope_may_stop_its_users_plan(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(server.api(key), models, key)
    assert Api(server.url, make_token(key, scope="")).post("/stopplan")["stopped"] is True
    five_checks(run, models, key)


def test_without_a_session_claim_it_means_the_newest_turn_that_is_not_over(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = server.api(key)
    older, newer = start_silent(api, models, key), start_silent(api, models, key)
    newest = api.start(say_done(key))
    newest.events()
    assert api.post("/stopplan")["run_id"] == newer.id
    newer.wait_parked()
    assert older.state == "running"
    assert api.post("/stopplan")["run_id"] == older.id
    five_checks(older, models, key)


def test_a_turn_of_an_older_run_counts_by_its_own_age(server: ServerProcess, models: ModelServer, key: str) -> None:
    api = server.api(key)
    first = api.start(say_done(key))
    first.events()
    second = start_silent(api, models, key)
    first.say(script("silent", key=key))
    models.wait_open(2, key=key)
    assert api.post("/stopplan")["run_id"] == first.id
    first.wait_parked()
    assert second.state == "running"
    assert api.post("/stopplan")["run_id"] == second.id
    five_checks(first, models, key)


def test_with_a_session_claim_it_means_that_session_and_leaves_the_others_alone(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = server.api(key)
    mine = start_silent(api, models, key, session_id=f"mine-{key}")
    sibling = start_streaming(api, models, f"{key}-sibling", session_id=f"sibling-{key}", tokens=40)
    claimed = server.api(key, session_id=mine.session_id)
    assert claimed.post("/stopplan")["run_id"] == mine.id
    mine.wait_parked()
    assert claimed.post("/stopplan") == {"message": MESSAGE, "stopped": False}
    assert "turn_completed" in [event["type"] for event in sibling.events()]
    assert sibling.transcript()[-1]["content"].split()[-1] == "t40"
    five_checks(mine, models, key)


def test_nobody_stops_the_plan_of_somebody_else(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(f"{key}-b"), models, key)
    for stranger in (server.api(f"{key}-a"), server.api(f"{key}-a", session_id=run.session_id)):
        assert stranger.post("/stopplan") == {"message": MESSAGE, "stopped": False}
    assert server.api(f"{key}-b", tenant="another").post("/stopplan")["stopped"] is False
    assert run.state == "running"
    assert run.api.post("/stopplan")["stopped"] is True
    five_checks(run, models, key)


def test_a_batch_run_that_it_stops_ends_as_cancelled(any_server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(any_server.api(key), models, key, interactive=False)
    assert run.api.post("/stopplan")["stopped"] is True
    events = run.events(lambda event: event["type"] == "run_cancelled")
    assert [event["type"] for event in events[-2:]] == ["turn_cancelled", "run_cancelled"]
    five_checks(run, models, key, is_batch=True)


def test_it_answers_before_the_plan_has_unwound(local: LocalServer, models: ModelServer, key: str) -> None:
    run = start_silent(local.api(key), models, key)
    with gate("turn.before_finish") as unwinding:
        assert run.api.post("/stopplan")["stopped"] is True
        unwinding.wait_reached()
        assert run.state == "stopping"
        models.wait_open(0, key=key)
    five_checks(run, models, key)


def test_a_second_press_joins_the_first(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(key), models, key)
    first = run.api.post("/stopplan")
    second = run.api.post("/stopplan")
    assert second in (first, {"message": MESSAGE, "stopped": False})
    events = five_checks(run, models, key)
    assert [event["type"] for event in events].count("stop_requested") == 1


def test_the_gateway_is_asked_by_the_documented_request_for_what_is_in_progress_and_nothing_else(
    tmp_path: Path, key: str
) -> None:
    asked: list[tuple[str, bytes]] = []
    tokens: dict[str, str] = {}
    with RawServer(lambda peer: _gateway(peer, tokens, asked)) as gateway:
        with ServerProcess(tmp_path, gateway.url) as server:
            inner = goal("inner", goals=[goal("deep", "wait deep")])
            goals = (goal("done", "finish"), goal("a", "wait a", "done"), inner, goal("later", "wait later", "a"))
            run = start_plan(server.api(key), *goals)
            wait_until(lambda: {"wait a", "wait deep"} <= set(tokens), "both goals have asked")
            assert run.api.post("/stopplan")["stopped"] is True
            run.wait_parked()
            run.say("finish")
            assert run.events(after=run.view()["last_seq"] - 1)[-1]["type"] == "awaiting_input"
        expected = sorted(tokens[prompt] for prompt in ("wait a", "wait deep"))
        assert sorted(json.loads(body)["cancellation_token"] for _, body in asked) == expected
        assert all(json.loads(body).keys() == {"cancellation_token"} for _, body in asked)
        assert {line for line, _ in asked} == {"POST /v1/cancel HTTP/1.1"}
        assert set(tokens) == {"finish", "wait a", "wait deep"}


def test_only_calls_in_progress_are_asked_to_end(server: ServerProcess, models: ModelServer, key: str) -> None:
    waiting = script("silent", key=key)
    run = start_plan(server.api(key), goal("done", say_done(key)), goal("a", waiting, "done"), goal("b", waiting, "a"))
    models.wait_calls(2, key=key)
    run.wait_event("goal_status", goal_id="done", status="COMPLETED")
    run.api.post("/stopplan")
    run.wait_parked()
    done, a = models.wait_open(0, key=key)
    assert (done.asked_to_cancel_at, a.close_reason) == (None, "cancelled")
    assert a.asked_to_cancel_at is not None
    assert run.goals()["done"]["status"] == "COMPLETED"
    five_checks(run, models, key)


def _gateway(peer: Peer, tokens: dict[str, str], asked: list[tuple[str, bytes]]) -> None:
    """Finishes where the prompt says so, else waits for the hang-up; agrees to every cancel request."""
    for request in iter(peer.read_request, None):
        if request.path == "/v1/cancel":
            asked.append((request.line, request.body))
            peer.answer(b'{"status": "cancelled"}')
            continue
        body = json.loads(request.body)
        prompt = body["messages"][-1]["content"]
        tokens[prompt] = body["metadata"]["cancellation_token"]
        if prompt == "finish":
            peer.answer(json.dumps({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).encode())
            continue
        peer.reached.set()
        peer.wait_hang_up()
        return
