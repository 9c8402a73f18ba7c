"""Who may use the server: tokens that are refused, and what belongs to somebody else."""

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from api.app import create_app
from core.settings import Settings
from tests.support.api_client import PATIENCE_S, SECRET, Api, Run, make_token
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import say_done, start_streaming
from tests.support.servers import ServerProcess

#: Routes that need no token: health, the API's description, the page.
OPEN = re.compile(r"/(livez|readyz|metrics|openapi\.json|docs.*|)|/web/.*|/static/.*")


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _signed_by_hand(secret: bytes, algorithm: str = "HS256", **claims: Any) -> str:
    """A token without the help, or the refusals, of a library."""
    text = f"{_part({'alg': algorithm, 'typ': 'JWT'})}.{_part({'exp': int(time.time()) + 600, **claims})}"
    signature = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


BAD_TOKENS = {
    "expired": make_token(exp=int(time.time()) - 600),
    "not-yet-valid": make_token(nbf=int(time.time()) + 600),
    "without-an-end": jwt.encode({"sub": "alice"}, SECRET, algorithm="HS256"),
    "foreign-signature": make_token(secret="another-secret-of-at-least-thirty-two-bytes"),
    "cut-signature": make_token()[:-4],
    "no-algorithm": f"{_part({'alg': 'none'})}.{_part({'sub': 'alice', 'exp': 9_999_999_999})}.",
    "no-algorithm-but-signed": _signed_by_hand(SECRET.encode(), "none", sub="alice"),
    "another-algorithm": jwt.encode({"sub": "alice", "exp": 9_999_999_999}, SECRET * 2, algorithm="HS512"),
    "no-user": _signed_by_hand(SECRET.encode()),
    "empty-user": make_token(""),
    "blank-user": make_token(" \t "),
    "user-is-a-number": _signed_by_hand(SECRET.encode(), sub=7),
    "user-is-null": _signed_by_hand(SECRET.encode(), sub=None),
    "user-is-a-list": _signed_by_hand(SECRET.encode(), sub=["alice"]),
    "empty-tenant": make_token(tenant=""),
    "bad-session": make_token(session_id="a/b"),
    "empty-session": make_token(session_id=""),
    "scope-is-a-list": make_token(scope=["runs:create"]),
    "no-token-at-all": "x",
    "three-empty-parts": "..",
    "no-object": f"{_part({'alg': 'HS256'})}.{base64.urlsafe_b64encode(b'[]').decode()}.AAAA",
}


def _assert_challenged(answer: requests.Response) -> None:
    assert answer.status_code == 401, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthenticated"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("kind", BAD_TOKENS)
def test_a_bad_token_is_refused_and_challenged(server: ServerProcess, kind: str) -> None:
    for method, path in (("GET", "/v1/runs"), ("POST", "/v1/runs"), ("POST", "/stopplan")):
        _assert_challenged(Api(server.url, BAD_TOKENS[kind]).request(method, path))


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic YWxpY2U6", f"Bearer {make_token()} x", f"Token {make_token()}"]
)
def test_a_missing_or_malformed_header_is_refused_and_challenged(server: ServerProcess, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    _assert_challenged(requests.get(f"{server.url}/v1/runs", headers=headers, timeout=PATIENCE_S))


def test_a_token_in_the_query_or_a_cookie_does_not_count(server: ServerProcess) -> None:
    token = make_token()
    for name in ("token", "access_token", "authorization"):
        asked = {"params": {name: token}, "cookies": {name: token}}
        _assert_challenged(requests.get(f"{server.url}/v1/runs", timeout=PATIENCE_S, **asked))


@pytest.fixture(scope="module")
def public_key_server(
    models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, bytes, bytes]]:
    """A server that checks with a public key; the private and the public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    folder = tmp_path_factory.mktemp("public-key")
    process = ServerProcess(folder, models.url, AUTH_JWT_PUBLIC_KEY=public.decode())
    del process.environment["AUTH_JWT_SECRET"]
    with process:
        yield process, private, public


def test_the_public_key_is_no_secret_to_sign_with(public_key_server: tuple[ServerProcess, bytes, bytes]) -> None:
    server, private, public = public_key_server
    good = jwt.encode({"sub": "alice", "exp": 9_999_999_999}, private, algorithm="RS256")
    assert Api(server.url, good).get("/v1/runs")["runs"] == []
    for secret in (public, public.strip(), public.replace(b"\n", b"\r\n")):
        _assert_challenged(Api(server.url, _signed_by_hand(secret, sub="alice")).request("GET", "/v1/runs"))
        forged = _signed_by_hand(secret, "RS256", sub="alice")
        _assert_challenged(Api(server.url, forged).request("GET", "/v1/runs"))


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
        _assert_challenged(requests.request(method, server.url + path, timeout=PATIENCE_S))
    for method, rule in of_a_run:
        path = rule.replace("<run_id>", run.id)
        body = {"text": "hello"} if rule.endswith("/input") else {}
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
    assert taken["code"] == "not_found"
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
