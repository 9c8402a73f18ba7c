"""The guard of the edge: who gets in where, and what a refusal says."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings, strategies

from api.auth.jwt_middleware import PUBLIC_ENDPOINTS, USER_SESSION_ENDPOINTS
from api.auth.tokens import TokenVerifier, mint
from core.errors import ConfigurationError, Unauthenticated
from tests.support.jwt_kit import SECRET, ask, claims, make_client, make_settings, refused, sign


@pytest.fixture
def client() -> FlaskClient:
    return make_client()


# -- getting in ------------------------------------------------------------------------------


def test_a_valid_token_gets_in_and_says_who_calls(client: FlaskClient) -> None:
    token = sign(claims(tenant="acme", session_id="chat-1"))

    answer = ask(client, "/get_run", token)

    assert answer.get_json() == {"sub": "alice", "tenant": "acme", "session": "chat-1", "kind": "user"}


def test_the_tenant_is_default_where_none_is_named(client: FlaskClient) -> None:
    assert ask(client, "/get_run", sign(claims())).get_json()["tenant"] == "default"


@pytest.mark.parametrize("header", ["bearer {}", "BEARER {}", "  Bearer   {}  "])
def test_the_scheme_is_read_without_regard_to_case_and_spaces(client: FlaskClient, header: str) -> None:
    answer = client.get("/get_run", headers={"Authorization": header.format(sign(claims()))})

    assert answer.status_code == 200


def test_the_public_routes_need_no_token(client: FlaskClient) -> None:
    for name in PUBLIC_ENDPOINTS:
        assert client.get(f"/{name}").status_code == 200


# -- secure by default -----------------------------------------------------------------------


def test_every_other_route_needs_a_token(client: FlaskClient) -> None:
    for name in [*USER_SESSION_ENDPOINTS, "forgotten"]:
        refused(ask(client, f"/{name}", None), 401, "unauthenticated", "none came")


def test_a_route_that_stands_in_no_table_is_refused_whatever_the_token(client: FlaskClient) -> None:
    token = sign(claims(scope="runs:create runs:read runs:stop admin"))

    refused(ask(client, "/forgotten", token), 403, "endpoint_not_allowed")


def test_an_unknown_route_is_404_with_and_without_a_token(client: FlaskClient) -> None:
    refused(ask(client, "/no/such/route", None), 404, "not_found")
    refused(ask(client, "/no/such/route", sign(claims())), 404, "not_found")


def test_nothing_of_the_body_is_read_for_a_stranger(client: FlaskClient) -> None:
    answer = client.post("/create_run", data="{broken", content_type="application/json")

    refused(answer, 401, "unauthenticated")


# -- tokens that do not verify ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (claims(exp=int(time.time()) - 60), "expired"),
        (claims(nbf=int(time.time()) + 3600), "not valid yet"),
        (claims(iat=int(time.time()) + 3600), "not valid yet"),
        ({"sub": "alice"}, "claim exp is missing"),
        (claims(exp="soon"), "malformed"),
        ({"exp": int(time.time()) + 600}, "claim sub is missing"),
        (claims(sub=""), "claim sub must be"),
        (claims(sub=" \t"), "claim sub must be"),
        (claims(sub=7), "claim sub must be"),
        (claims(sub=None), "claim sub is missing"),
        (claims(sub="a" * 256), "claim sub is longer"),
        (claims(sub="al\x00ice"), "claim sub is longer"),
        (claims(sub="\ud800"), "claim sub is longer"),
        (claims(tenant=""), "claim tenant"),
        (claims(tenant=None), "claim tenant"),
        (claims(session_id=""), "claim session_id"),
        (claims(session_id=None), "claim session_id"),
        (claims(session_id="a b"), "claim session_id"),
        (claims(session_id="a\n"), "claim session_id"),
        (claims(session_id="a" * 129), "claim session_id"),
        (claims(session_id=["a"]), "claim session_id"),
        (claims(scope=["runs:read"]), "claim scope"),
        (claims(scope=None), "claim scope"),
    ],
)
def test_a_wrong_claim_is_refused_and_named(client: FlaskClient, payload: dict[str, Any], word: str) -> None:
    refused(ask(client, "/get_run", sign(payload)), 401, "unauthenticated", word)


def test_clocks_may_differ_by_half_a_minute(client: FlaskClient) -> None:
    now = int(time.time())

    assert ask(client, "/get_run", sign(claims(exp=now - 20, nbf=now + 20))).status_code == 200


def test_another_signature_is_refused(client: FlaskClient) -> None:
    token = sign(claims(), "another-secret-that-is-long-enough-for-hs256")

    refused(ask(client, "/get_run", token), 401, "unauthenticated", "signature does not match")


def test_a_token_without_a_signature_is_refused(client: FlaskClient) -> None:
    token = jwt.encode(claims(), "", algorithm="none")

    refused(ask(client, "/get_run", token), 401, "unauthenticated", "algorithm")


def test_another_algorithm_is_refused_even_with_the_right_secret(client: FlaskClient) -> None:
    token = sign(claims(), SECRET * 2, "HS512")

    refused(ask(client, "/get_run", token), 401, "unauthenticated", "algorithm")


def test_a_public_key_does_not_pass_for_a_shared_secret() -> None:
    private = rsa.generate_private_key(65537, 2048)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    client = make_client(auth_jwt_secret=None, auth_jwt_public_key=pem.decode())
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, claims())
    )
    mac = hmac.new(pem, head + b"." + body, hashlib.sha256).digest()
    forged = b".".join([head, body, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()

    refused(ask(client, "/get_run", forged), 401, "unauthenticated", "algorithm")
    assert ask(client, "/get_run", sign(claims(), private, "RS256")).status_code == 200


def test_an_elliptic_key_verifies() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    client = make_client(auth_jwt_secret=None, auth_jwt_public_key=pem)

    assert ask(client, "/get_run", sign(claims(), private, "ES256")).status_code == 200


def test_issuer_and_audience_are_checked_where_they_are_configured() -> None:
    client = make_client(auth_issuer="https://id.example", auth_audience="pythonserver")
    good = {"iss": "https://id.example", "aud": ["other", "pythonserver"]}

    assert ask(client, "/get_run", sign(claims(**good))).status_code == 200
    for change, word in [
        ({"iss": "https://evil.example"}, "wrong issuer"),
        ({"aud": "other"}, "another audience"),
    ]:
        refused(ask(client, "/get_run", sign(claims(**{**good, **change}))), 401, "unauthenticated", word)
    refused(ask(client, "/get_run", sign(claims(aud="pythonserver"))), 401, "unauthenticated", "iss is missing")
    refused(
        ask(client, "/get_run", sign(claims(iss="https://id.example"))),
        401,
        "unauthenticated",
        "aud is missing",
    )


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a b", "Bearer a, Bearer b"])
def test_a_header_that_is_no_bearer_token_is_refused(client: FlaskClient, header: str) -> None:
    refused(client.get("/get_run", headers={"Authorization": header}), 401, "unauthenticated", "earer")


@given(token=strategies.text(strategies.characters(min_codepoint=33, max_codepoint=255), min_size=1))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_as_a_token_is_refused_and_never_breaks_the_server(client: FlaskClient, token: str) -> None:
    assert ask(client, "/get_run", token).status_code == 401


json_values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=5,
)
names = strategies.sampled_from(["sub", "exp", "nbf", "iat", "iss", "aud", "jti", "tenant", "session_id", "scope"])


@given(payload=strategies.dictionaries(names, json_values), header=strategies.dictionaries(
    strategies.sampled_from(["alg", "kid", "typ", "crit", "b64"]), json_values
))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_whatever_is_signed_is_either_a_caller_or_refused(payload: dict[str, Any], header: dict[str, Any]) -> None:
    verifier = TokenVerifier(make_settings(auth_jwt_secret=SECRET))
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", **header}, {"sub": "alice", "exp": 4_000_000_000, **payload})
    )
    mac = hmac.new(SECRET.encode(), head + b"." + body, hashlib.sha256).digest()
    token = b".".join([head, body, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()

    try:
        caller = verifier.verify(token)
    except Unauthenticated:
        return
    assert caller.sub.strip()
    assert caller.tenant.strip()


# -- scopes ----------------------------------------------------------------------------------

SCOPES = {
    "post_stopplan": {"", "runs:read", "runs:create", "runs:stop"},
    "create_run": {"runs:create"},
    **{
        name: {"runs:create"}
        for name in (
            "post_input",
            "withdraw_message",
            "move_message",
            "resolve_interrupt",
            "compact_run",
            "resume_run",
            "regenerate_run",
            "roll_back_run",
            "import_session",
        )
    },
    "cancel_run": {"runs:create", "runs:stop"},
    "cancel_goal": {"runs:create", "runs:stop"},
    "cancel_call": {"runs:create", "runs:stop"},
    "terminate_run": {"runs:create", "runs:stop"},
    **{
        name: {"runs:read"}
        for name in (
            "list_runs",
            "get_run",
            "get_events",
            "get_transcript",
            "get_plan",
            "get_receipts",
            "get_inbox",
            "get_message",
            "list_interrupts",
            "list_tools",
            "export_session",
        )
    },
}


def test_each_route_asks_for_its_scope_and_names_it_when_it_is_missing(client: FlaskClient) -> None:
    assert SCOPES.keys() == USER_SESSION_ENDPOINTS.keys()
    for name, enough in SCOPES.items():
        for scope in ("", "runs:read", "runs:create", "runs:stop", "runs"):
            answer = ask(client, f"/{name}", sign(claims(scope=scope)))
            if scope in enough or not USER_SESSION_ENDPOINTS[name]:
                assert answer.status_code == 200, (name, scope)
            else:
                refused(answer, 403, "insufficient_scope", "runs:")
                assert sorted(enough)[0] in answer.get_json()["detail"]


def test_a_token_without_a_scope_claim_may_create_and_read(client: FlaskClient) -> None:
    for name in USER_SESSION_ENDPOINTS:
        assert ask(client, f"/{name}", sign(claims())).status_code == 200


def test_scopes_are_words_not_parts_of_words(client: FlaskClient) -> None:
    refused(ask(client, "/get_run", sign(claims(scope="xruns:read runs:readx"))), 403, "insufficient_scope")


# -- the remote session route ----------------------------------------------------------------


def test_the_remote_session_route_is_off_without_its_token(client: FlaskClient) -> None:
    refused(ask(client, "/post_session_stop", sign(claims())), 404, "not_found")
    refused(ask(client, "/post_session_stop", None), 404, "not_found")


def test_only_the_remote_token_opens_the_remote_session_route_and_it_opens_no_other() -> None:
    client = make_client(remote_session_api_token="remote-tökén")
    token = "remote-tökén".encode().decode("latin-1")

    assert ask(client, "/post_session_stop", token).get_json()["kind"] == "remote"
    refused(ask(client, "/post_session_stop", sign(claims())), 401, "unauthenticated")
    refused(ask(client, "/post_session_stop", None), 401, "unauthenticated")
    refused(ask(client, "/post_session_stop", token[:-1]), 401, "unauthenticated")
    refused(ask(client, "/post_stopplan", token), 401, "unauthenticated")


# -- tokens of our own -----------------------------------------------------------------------


def test_a_minted_token_gets_in_with_the_development_secret(tmp_path: Path) -> None:
    values = {"auth_jwt_secret": None, "data_dir": tmp_path, "auth_issuer": "me", "auth_audience": "us"}
    token = mint(make_settings(**values), "alice", tenant="acme", session_id="s.1", scope="runs:read", hours=1)

    client = make_client(**values)

    assert ask(client, "/get_run", token).get_json()["session"] == "s.1"
    refused(ask(client, "/create_run", token), 403, "insufficient_scope")


def test_no_token_is_minted_for_nobody_or_with_a_key_that_is_not_ours(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"sub": " "}, {"sub": "a", "session_id": "x y"}, {"sub": "a", "tenant": ""}]
    for claim in wrong:
        with pytest.raises(ConfigurationError, match="claim"):
            mint(make_settings(data_dir=tmp_path), **claim)
    with pytest.raises(ConfigurationError, match="AUTH_JWT_SECRET"):
        mint(make_settings(auth_jwks_url="http://127.0.0.1:1/jwks"), "alice")
