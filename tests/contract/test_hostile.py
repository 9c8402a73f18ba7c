"""What a hostile user found: each was a fault once."""

import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api import sse
from tests.support.api_client import Api, make_token
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import start_streaming
from tests.support.servers import LocalServer, ServerProcess


def test_a_run_that_was_stopped_with_a_full_queue_still_takes_the_next_message(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(server.api(), models, key)
    for number in range(100):
        run.say(script("strict", key=key), client_message_id=f"m{number}")
    assert server.api().request("POST", f"{run.path}/input", json={"text": "more"}).status_code == 429
    run.cancel(wait_ms=20_000)
    assert run.say(script("strict", key=key))["disposition"] == "queued"
    run.cancel(inbox="drop", wait_ms=20_000)
    run.wait_parked()
    five_checks(run, models, key)


def test_the_inbox_of_a_parked_run_can_be_dropped(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_streaming(server.api(), models, key)
    run.say("kept")
    run.cancel(wait_ms=20_000)
    assert len(server.api().get(f"{run.path}/inbox")["messages"]) == 1
    assert run.cancel(inbox="drop")["stopped"] is False
    assert server.api().get(f"{run.path}/inbox")["messages"] == []
    five_checks(run, models, key)


def test_an_audience_is_looked_at_only_where_one_is_configured(server: ServerProcess) -> None:
    api = Api(server.url, make_token(aud="somebody"))
    assert api.post("/stopplan")["stopped"] is False


def test_an_idempotency_key_does_not_reach_into_another_session(server: ServerProcess, key: str) -> None:
    bodies = []
    for name in ("one", "two"):
        api = server.api(session_id=f"{key}-{name}")
        answer = api.request("POST", "/v1/runs", json={"input": "hi"}, headers={"Idempotency-Key": key})
        assert answer.status_code == 201
        bodies.append(answer.json())
    assert bodies[0]["run_id"] != bodies[1]["run_id"]
    assert bodies[1]["session_id"] == f"{key}-two"


def test_the_same_client_message_id_in_another_run_is_another_message(server: ServerProcess, key: str) -> None:
    api = server.api()
    first = api.start(script("strict", key=key), session_id=key)
    first.wait_parked()
    assert first.say(script("strict", key=key), client_message_id="1")["disposition"] == "started"
    first.wait_parked()
    first.terminate()
    second = api.start(script("strict", key=key), session_id=key)
    second.wait_parked()
    assert second.say(script("strict", key=key), client_message_id="1")["disposition"] == "started"
    second.wait_parked()


def test_a_streamed_start_that_finds_no_place_starts_nothing(
    local: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = threading.BoundedSemaphore(1)
    taken.acquire()
    monkeypatch.setattr(sse, "_places", taken)
    headers = {"Accept": "Text/Event-Stream; charset=utf-8"}
    answer = local.api().request("POST", "/v1/runs", json={"input": "hi"}, headers=headers)
    assert answer.status_code == 503
    assert local.api().get("/v1/runs")["runs"] == []


@pytest.mark.parametrize(
    "fields",
    [{"deadline_ms": "5000"}, {"deadline_ms": True}, {"interactive": "yes"}, {"interactive": 0}, {"input": 7}],
)
def test_a_value_of_another_type_is_refused_and_not_guessed_at(server: ServerProcess, fields: dict[str, object]) -> None:
    answer = server.api().request("POST", "/v1/runs", json={"input": "hi", **fields})
    assert answer.status_code == 422
    assert next(iter(fields)) in answer.text


def test_odd_paths_and_numbers_are_problems(server: ServerProcess, models: ModelServer, key: str) -> None:
    api = server.api()
    run = api.start(script("strict", key=key))
    assert api.request("GET", f"{run.path}/events?after={10**20}").status_code == 422
    assert api.request("GET", "/v1//runs", allow_redirects=False).status_code == 404
    assert api.request("GET", f"/v1/runs/{'x' * 300}").status_code == 404
    five_checks(run, models, key)


def test_a_broken_chunk_is_a_bad_request(server: ServerProcess) -> None:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as sock:
        head = (
            f"POST /stopplan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {make_token()}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        )
        sock.sendall(head.encode())
        assert b" 400 " in sock.recv(65536).split(b"\r\n")[0]


def test_a_plan_as_deep_as_is_allowed_can_be_sent(server: ServerProcess, key: str) -> None:
    goal: dict[str, object] = {"id": "g100", "prompt": script("strict", key=key)}
    for level in range(99, 0, -1):
        goal = {"id": f"g{level}", "goals": [goal]}
    run = server.api().start("deep", plan={"goals": [goal]})
    run.wait_parked()
    assert run.goals()["g1"]["status"] == "COMPLETED"


def test_the_model_is_told_of_a_stop_though_the_turn_after_it_failed(
    server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_streaming(server.api(), models, key)
    run.cancel(wait_ms=20_000)
    run.say(script("error", status=400, key=key))
    run.wait_parked()
    run.say(script("strict", key=key))
    run.wait_parked()
    told = [any("was stopped" in str(m["content"]) for m in call.messages) for call in models.calls(key=key)]
    assert told == [False, True, True]
    five_checks(run, models, key)


@pytest.mark.slow
def test_requests_that_stall_in_the_middle_give_their_threads_back(
    tmp_path: Path, models: ModelServer
) -> None:
    with ServerProcess(tmp_path, models.url) as process:
        place = urlsplit(process.url)
        body = f"POST /stopplan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {make_token()}\r\nContent-Length: 9\r\n\r\n{{"
        for part in (b"GET /livez HTTP/1.1\r\nHos", body.encode()):
            with socket.create_connection((place.hostname, place.port), timeout=60) as sock:
                sock.sendall(part)
                answer = b""
                while piece := sock.recv(65536):  # ends when the server closes, well before the limit of the test
                    answer += piece
                assert b" 500 " not in answer
        assert process.api().post("/stopplan")["stopped"] is False
