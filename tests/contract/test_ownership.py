"""What belongs to somebody else does not exist, on every route; claims and scopes narrow what a token opens."""

import re
from pathlib import Path

import pytest
import requests

from api.app import create_app
from core.settings import Settings
from tests.support.api_client import PATIENCE_S, SECRET, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import say_done, start_streaming
from tests.support.servers import ServerProcess

#: Routes that need no token: health, the API's description, the page.
OPEN = re.compile(r"/(livez|readyz|metrics|openapi\.json|docs.*|)|/web/.*|/static/.*")


#: What a route must be sent, or it does not look whose run it is.
BODIES = {
    ("POST", "input"): {"text": "hello"},
    ("POST", "resolve"): {"disposition": "declined"},
    ("PATCH", "<message_id>"): {"position": 0},
}


def _routes(folder: Path, models: ModelServer) -> list[tuple[str, str]]:
    """Method and path of every route of the app."""
    app = create_app(Settings(_env_file=None, data_dir=folder, llm_base_url=models.url, auth_jwt_secret=SECRET))
    app.extensions["runtime"].close(PATIENCE_S)
    return [
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
    ]


def test_every_route_that_acts_on_a_run_refuses_strangers_and_those_without_a_token(
    server: ServerProcess, models: ModelServer, tmp_path: Path, key: str
) -> None:
    run = start_streaming(server.api(key), models, key)
    stranger, elsewhere = server.api("mallory"), server.api(key, tenant="another")
    other_session = server.api(key, session_id="another-session")
    protected = [each for each in _routes(tmp_path, models) if not OPEN.fullmatch(each[1])]
    of_a_run = [each for each in protected if "<run_id>" in each[1]]
    assert len(of_a_run) >= 9
    for method, rule in protected:
        path = rule.replace("<run_id>", run.id).replace("<session_id>", run.session_id)
        assert requests.request(method, server.url + path, timeout=PATIENCE_S).status_code == 401, f"{method} {rule}"
    for method, rule in of_a_run:
        path = rule.replace("<run_id>", run.id)
        body = BODIES.get((method, rule.rpartition("/")[2]), {})
        for nosy in (stranger, elsewhere, other_session):
            answer = nosy.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), f"{method} {rule}"
            assert run.session_id not in answer.text
    assert run.state == "running"
    run.cancel()
    five_checks(run, models, key)


def test_somebody_elses_run_looks_absent_in_every_way(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_streaming(server.api(key), models, key, session_id=f"session-{key}")
    stranger = server.api(f"{key}-stranger")
    assert stranger.get("/v1/runs") == {"runs": [], "next_cursor": None}
    assert stranger.get(f"/v1/runs?session_id={run.session_id}")["runs"] == []
    assert stranger.get("/v1/runs?state=running")["runs"] == []
    assert stranger.post("/stopplan")["stopped"] is False
    taken = stranger.post("/v1/runs", {"input": "hello", "session_id": run.session_id}, expect=404)
    assert (taken["code"], "choose another id" in taken["detail"]) == ("not_found", True)
    absent = Run(stranger, {"run_id": run.id, "session_id": "", "turn_id": ""})
    assert absent.cancel(expect=404)["code"] == "not_found"
    assert absent.terminate(expect=404)["code"] == "not_found"
    assert run.state == "running"
    run.cancel()
    five_checks(run, models, key)


def test_a_session_claim_limits_what_is_seen_and_made(server: ServerProcess, key: str) -> None:
    mine, other = f"mine-{key}", f"other-{key}"
    everything, limited = server.api(key), server.api(key, session_id=mine)
    everything.start(say_done(key), session_id=other).events()
    made = limited.start(say_done(key))
    assert made.session_id == mine
    assert [run["session_id"] for run in limited.get("/v1/runs")["runs"]] == [mine]
    assert len(everything.get("/v1/runs")["runs"]) == 2
    assert limited.get(f"/v1/runs?session_id={other}")["runs"] == []
    assert limited.post("/v1/runs", {"input": "x", "session_id": other}, expect=404)["code"] == "not_found"
    made.events()


@pytest.mark.parametrize(
    ("scope", "may_read", "may_create", "may_stop"),
    [("", 0, 0, 0), ("runs:read", 1, 0, 0), ("runs:create", 0, 1, 1), ("runs:stop", 0, 0, 1), ("runs:creat", 0, 0, 0)],
)
def test_each_scope_opens_its_routes_only(
    server: ServerProcess, models: ModelServer, key: str, scope: str, may_read: int, may_create: int, may_stop: int
) -> None:
    run = start_streaming(server.api(key), models, key)
    limited = server.api(key, scope=scope)
    for is_allowed, method, path, body in (
        (may_read, "GET", run.path, None),
        (may_read, "GET", f"{run.path}/transcript", None),
        (may_read, "GET", f"{run.path}/inbox/m_none", None),
        (may_create, "DELETE", f"{run.path}/inbox/m_none", None),
        (may_create, "POST", f"{run.path}/compact", {}),
        (may_create, "PATCH", f"{run.path}/inbox/m_none", {"position": 0}),
        (may_create, "POST", f"{run.path}/input", {"text": say_done(key)}),
        (may_stop, "POST", f"{run.path}/cancel", {"inbox": "drop"}),
    ):
        answer = limited.request(method, path, json=body)
        assert (answer.status_code == 403) is not bool(is_allowed), f"{method} {path}: {answer.text}"
        if not is_allowed:
            assert answer.json()["code"] == "insufficient_scope"
            assert "insufficient_scope" in answer.headers["WWW-Authenticate"]
    run.cancel()
    five_checks(run, models, key)
