"""What the running server answers is what its description says: statuses, media types, and every field."""

from typing import Any

import pytest
import requests
from pydantic import BaseModel

from api import answers, inbox_answers
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.model_server import ModelServer, script
from tests.support.plans import goal, say_done, start_plan, start_streaming
from tests.support.servers import REMOTE_TOKEN, ServerProcess


class Described:
    """A user's view of a server that holds every answer against the description."""

    def __init__(self, server: ServerProcess, api: Api) -> None:
        self.api = api
        self._paths: dict[str, Any] = requests.get(f"{server.url}/openapi.json", timeout=PATIENCE_S).json()["paths"]

    def answer(self, method: str, route: str, expect: int, **options: Any) -> requests.Response:
        """Send a request; ``route`` is as the description names it; ``ids`` fill it in, ``query`` follows it."""
        path = route.format(**options.pop("ids", {})) + options.pop("query", "")
        answer = self.api.request(method, path, **options)
        assert answer.status_code == expect, answer.text
        declared = self._paths[route][method.lower()]["responses"]
        assert str(expect) in declared, f"{method} {route} answers {expect}, which is not declared"
        assert answer.headers["Content-Type"].partition(";")[0] in declared[str(expect)]["content"]
        return answer

    def get(self, route: str, shape: type[BaseModel], **options: Any) -> Any:
        """The answer of a route, of exactly this shape."""
        return exactly(shape, self.answer("GET", route, 200, **options))

    def refused(self, method: str, route: str, status: int, code: str, **options: Any) -> None:
        """The route refuses this, as declared."""
        answer = self.answer(method, route, status, **options)
        assert answers.Problem.model_validate_json(answer.text, strict=True).code == code


def exactly(shape: type[BaseModel], answer: requests.Response) -> Any:
    """The answer as ``shape``: every required field, no other field, no wrong type."""
    return shape.model_validate_json(answer.text, strict=True, extra="forbid")


@pytest.fixture
def described(server: ServerProcess, api: Api) -> Described:
    """The user of this test."""
    return Described(server, api)


def _all_views(described: Described, run: Run) -> dict[str, Any]:
    ids = {"run_id": run.id}
    return {
        "runs": described.get("/v1/runs", answers.RunsPage),
        "run": described.get("/v1/runs/{run_id}", answers.OneRun, ids=ids),
        "plan": described.get("/v1/runs/{run_id}/plan", answers.PlanView, ids=ids),
        "transcript": described.get("/v1/runs/{run_id}/transcript", answers.Transcript, ids=ids),
        "receipts": described.get("/v1/runs/{run_id}/receipts", answers.Receipts, ids=ids),
        "inbox": described.get("/v1/runs/{run_id}/inbox", inbox_answers.Inbox, ids=ids),
    }


def test_every_view_of_a_run_has_its_shape_from_the_start_to_the_end(
    described: Described, models: ModelServer, key: str
) -> None:
    prompt = script("trickle", tokens=400, interval_ms=50, key=key)
    run = start_plan(described.api, goal("first", prompt), goal("second", prompt, "first"))
    ids = {"run_id": run.id}
    models.wait_tokens(5, key=key)
    _all_views(described, run)

    queued = described.answer("POST", "/v1/runs/{run_id}/input", 202, ids=ids, json={"text": say_done(key)})
    assert exactly(answers.InputAccepted, queued).disposition == "queued"
    stop = described.answer("POST", "/v1/runs/{run_id}/cancel", 200, ids=ids, json={"wait_ms": 20_000})
    assert exactly(answers.StopAnswerBody, stop).parked
    parked = _all_views(described, run)
    assert [message.held for message in parked["inbox"].messages] == [True]
    assert [message.stopped for message in parked["transcript"].messages] == [None, True]
    assert [receipt.cause for receipt in parked["receipts"].receipts] == ["user"]
    assert len(parked["receipts"].receipts[0].receipt) == 3

    nothing = described.answer("POST", "/stopplan", 200, json={})
    assert exactly(answers.StopPlanAnswer, nothing).stopped is False
    later = described.answer("POST", "/v1/runs/{run_id}/input", 202, ids=ids, json={"text": prompt})
    assert exactly(answers.InputAccepted, later).disposition == "queued"  # the one that was held goes first
    delivered = run.wait_event("message_delivered", message_id=later.json()["message_id"])
    run.wait_event("text", after=delivered["seq"])
    assert exactly(answers.StopPlanAnswer, described.answer("POST", "/stopplan", 200, json={})).stopped

    over = described.answer("POST", "/v1/runs/{run_id}/terminate", 200, ids=ids, json={"wait_ms": 20_000})
    assert exactly(answers.StopAnswerBody, over).state == "cancelled"
    assert _all_views(described, run)["run"].ended_at is not None
    events = described.answer("GET", "/v1/runs/{run_id}/events", 200, ids=ids, query="?after=0")
    assert "event: run_cancelled" in events.text


def test_a_new_run_answers_in_both_of_its_forms(described: Described, key: str) -> None:
    body = {"input": say_done(key), "planning": "none", "interactive": False}
    created = described.answer("POST", "/v1/runs", 201, json=body, headers={"Idempotency-Key": key})
    exactly(answers.RunCreated, created)
    stream = described.answer("POST", "/v1/runs", 201, json=body, headers={"Accept": "text/event-stream"})
    assert "event: run_completed" in stream.text


def test_a_refusal_is_declared_where_it_happens(described: Described, models: ModelServer, key: str) -> None:
    run = start_streaming(described.api, models, key)
    ids = {"run_id": run.id}
    busy = {"input": "again", "session_id": run.session_id}
    described.refused("POST", "/v1/runs", 409, "session_is_busy", json=busy)
    described.refused("POST", "/v1/runs", 422, "invalid_request", json={"input": "x"}, headers={"Idempotency-Key": ""})
    described.refused("POST", "/v1/runs", 415, "unsupported_media_type", data="x", headers={"Content-Type": "text/x"})
    described.refused("POST", "/v1/runs", 400, "invalid_json", data="{", headers={"Content-Type": "application/json"})
    described.refused("POST", "/v1/runs", 413, "payload_too_large", json={"input": "x" * 1024 * 1024})
    described.refused("POST", "/stopplan", 422, "invalid_request", json={"run_id": run.id})
    described.refused("GET", "/v1/runs", 422, "invalid_request", query="?limit=0")
    described.refused("GET", "/v1/runs/{run_id}", 404, "not_found", ids={"run_id": "r_none"})
    described.refused("GET", "/v1/runs/{run_id}/events", 422, "invalid_request", ids=ids, headers={"Last-Event-ID": "x"})
    for _ in range(100):
        run.say(say_done(key))
    described.refused("POST", "/v1/runs/{run_id}/input", 429, "queue_full", ids=ids, json={"text": "one more"})
    run.cancel(inbox="drop", wait_ms=20_000)
    stale = {"if_turn": "t_none"}
    described.refused("POST", "/v1/runs/{run_id}/cancel", 409, "turn_is_over", ids=ids, json=stale)


def test_the_remote_route_and_the_health_routes_answer_as_described(
    server: ServerProcess, described: Described, key: str
) -> None:
    run = described.api.start(say_done(key))
    run.wait_parked()
    remote = Described(server, Api(server.url, REMOTE_TOKEN))
    route = "/sessions/session/{session_id}/stop"
    answer = remote.answer("POST", route, 200, ids={"session_id": run.session_id}, json={})
    assert exactly(answers.StopPlanAnswer, answer).stopped is False
    remote.refused("POST", route, 404, "not_found", ids={"session_id": "nobody-has-this"}, json={})
    described.refused("POST", route, 401, "unauthenticated", ids={"session_id": run.session_id}, json={})
    for path in ("/livez", "/readyz"):
        described.get(path, answers.Well)
    assert "pythonserver_live_turns" in described.answer("GET", "/metrics", 200).text
