"""Sessions and their runs: one live run at a time, a history that goes on, and requests that are sent twice."""

import pytest

from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done, start_streaming
from tests.support.servers import ServerProcess


def test_a_second_run_of_a_session_goes_on_with_its_history(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    api = any_server.api()
    first = api.start(say_done(key), session_id=f"session-{key}")
    first.wait_parked()
    first.terminate()
    second = api.start(say_done(key), session_id=f"session-{key}")
    second.wait_parked()
    assert [message["role"] for message in models.calls(key=key)[-1].messages[-3:]] == ["user", "assistant", "user"]
    assert second.transcript()[:2] == first.transcript()[:2]
    assert len(second.transcript()) == 4
    five_checks(second, models, key)


@pytest.mark.parametrize("name", ["silent", "strict"], ids=["running", "parked"])
def test_a_session_has_one_live_run(api: Api, models: ModelServer, key: str, name: str) -> None:
    session = f"session-{key}"
    run = api.start(script(name, key=key), session_id=session)
    models.wait_calls(1, key=key)
    if name == "strict":
        run.wait_parked()
    busy = api.post("/v1/runs", {"input": "x", "session_id": session}, expect=409)
    assert (busy["code"], busy["run_id"]) == ("session_is_busy", run.id)
    run.terminate(wait_ms=30_000)
    five_checks(run, models, key)


def test_a_batch_run_ends_with_its_turn_and_takes_no_message(api: Api, models: ModelServer, key: str) -> None:
    run = start_streaming(api, models, key, tokens=10, interactive=False)
    refused = api.post(f"{run.path}/input", {"text": "x"}, expect=409)
    assert refused["code"] in ("not_interactive", "run_is_over")
    events = run.events()
    assert [event["type"] for event in events[-2:]] == ["turn_completed", "run_completed"]
    assert run.state == "completed"
    assert api.post(f"{run.path}/input", {"text": "x"}, expect=409)["code"] == "run_is_over"
    failed = api.start(script("error", status=400, key=key), interactive=False)
    assert [event["type"] for event in failed.events()[-2:]] == ["turn_failed", "run_failed"]
    five_checks(run, models, key, is_batch=True)


def test_the_runs_are_listed_newest_first_and_in_pages(api: Api, models: ModelServer, key: str) -> None:
    runs = [api.start(say_done(key), session_id=f"{key}-{number}") for number in range(5)]
    for run in runs:
        run.wait_parked()
    found: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/v1/runs?limit=2{cursor}")
        found += [each["run_id"] for each in page["runs"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [run.id for run in reversed(runs)]
    assert [each["run_id"] for each in api.get(f"/v1/runs?session_id={key}-3")["runs"]] == [runs[3].id]
    runs[1].terminate()
    assert [each["run_id"] for each in api.get("/v1/runs?state=cancelled")["runs"]] == [runs[1].id]


def test_a_request_that_is_repeated_with_its_key_starts_one_run(server: ServerProcess, api: Api, key: str) -> None:
    body = {"input": say_done(key), "planning": "none"}
    headers = {"Idempotency-Key": key}
    first, second = (api.request("POST", "/v1/runs", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert len(api.get("/v1/runs")["runs"]) == 1
    other = api.request("POST", "/v1/runs", json={**body, "metadata": {"a": 1}}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    foreign = server.api(f"{key}-b").request("POST", "/v1/runs", json=body, headers=headers)
    assert foreign.json()["run_id"] != first.json()["run_id"]
    Run(api, first.json()).wait_parked()
