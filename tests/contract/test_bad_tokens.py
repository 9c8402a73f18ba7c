"""Tokens that are refused, each with a challenge."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.api_client import PATIENCE_S, SECRET, Api, make_token
from tests.support.model_server import ModelServer
from tests.support.servers import ServerProcess


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
        asked = {name: token}
        url = f"{server.url}/v1/runs"
        _assert_challenged(requests.get(url, params=asked, cookies=asked, timeout=PATIENCE_S))


@pytest.fixture(scope="module")
def public_key_server(
    models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, bytes, bytes]]:
    """A server that checks with a public key; the private and the public key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
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
