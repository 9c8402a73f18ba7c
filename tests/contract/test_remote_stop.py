"""The documented stop route of a session, on the word of the service that holds the remote session API token."""

import requests

from tests.support.api_client import Api, make_token
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import start_silent
from tests.support.servers import REMOTE_TOKEN, ServerProcess

MESSAGE = "Plan stopped successfully"


def test_the_remote_route_stops_the_plan_of_its_session(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = start_silent(any_server.api(key), models, key)
    sibling = start_silent(any_server.api(key), models, f"{key}-sibling")
    remote = Api(any_server.url, REMOTE_TOKEN)
    answer = remote.post(f"/sessions/session/{run.session_id}/stop")
    assert (answer["message"], answer["stopped"], answer["run_id"]) == (MESSAGE, True, run.id)
    assert sibling.state == "running"
    five_checks(run, models, key)
    assert remote.post(f"/sessions/session/{run.session_id}/stop") == {"message": MESSAGE, "stopped": False}
    remote.post(f"/sessions/session/{sibling.session_id}/stop")
    five_checks(sibling, models, f"{key}-sibling")


def test_the_remote_route_takes_the_remote_token_only(server: ServerProcess, models: ModelServer, key: str) -> None:
    run = start_silent(server.api(key), models, key)
    path = f"/sessions/session/{run.session_id}/stop"
    for token in (make_token(key), f"{REMOTE_TOKEN}x", REMOTE_TOKEN[:-1], "é"):
        refused = Api(server.url, token.encode().decode("latin-1")).request("POST", path, json={})
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert requests.post(server.url + path, json={}, timeout=30).status_code == 401
    assert Api(server.url, REMOTE_TOKEN).request("POST", "/stopplan", json={}).status_code == 401
    assert Api(server.url, REMOTE_TOKEN).request("GET", run.path).status_code == 401
    unknown = Api(server.url, REMOTE_TOKEN).post("/sessions/session/nobody-knows-me/stop", expect=404)
    assert unknown["code"] == "not_found"
    assert run.state == "running"
    run.cancel()
    five_checks(run, models, key)
