"""Tokens that are signed with the keys of a key server, and a key server in trouble."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from api.auth.key_server import KeyServer
from tests.support.jwt_kit import ask, claims, make_client, refused, sign


class KeyServerDouble:
    """Publishes keys on loopback; counts how often it is asked; can be made to fail."""

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.asked = 0
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.was_asked_again = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.asked += 1
                if double.asked > 1:
                    double.was_asked_again.set()
                double.may_answer.wait(10)
                self.send_response(double.status)
                self.end_headers()
                self.wfile.write(double.document())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jwks"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def document(self) -> bytes:
        keys = [
            {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig"}
            for name, key in self.keys.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def add(self, name: str) -> rsa.RSAPrivateKey:
        self.keys[name] = rsa.generate_private_key(65537, 2048)
        return self.keys[name]


@pytest.fixture
def key_server() -> Iterator[KeyServerDouble]:
    double = KeyServerDouble()
    yield double
    double.server.shutdown()
    double.server.server_close()


def test_a_published_key_verifies_and_is_fetched_once(key_server: KeyServerDouble) -> None:
    private = key_server.add("one")
    client = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)

    for _ in range(3):
        assert ask(client, "/get_run", sign(claims(), private, "RS256", kid="one")).status_code == 200

    assert key_server.asked == 1


def test_an_unknown_key_is_refused_and_does_not_make_the_server_ask_for_each_token(
    key_server: KeyServerDouble,
) -> None:
    key_server.add("one")
    stranger = rsa.generate_private_key(65537, 2048)
    client = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)

    for kid in ("two", "three", "four"):
        token = sign(claims(), stranger, "RS256", kid=kid)
        refused(ask(client, "/get_run", token), 401, "unauthenticated", "unknown key")
    refused(ask(client, "/get_run", sign(claims(), stranger, "RS256")), 401, "unauthenticated", "unknown key")
    token = sign(claims(), stranger, "RS256", kid="one")
    refused(ask(client, "/get_run", token), 401, "unauthenticated", "signature")

    assert key_server.asked == 1


def test_an_old_key_is_used_at_once_and_fetched_anew_behind_the_back(
    key_server: KeyServerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeyServer, "RETRY_S", 0.0)
    monkeypatch.setattr(KeyServer, "FRESH_S", 0.0)
    private = key_server.add("one")
    client = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)
    token = sign(claims(), private, "RS256", kid="one")
    assert ask(client, "/get_run", token).status_code == 200

    key_server.may_answer.clear()
    assert ask(client, "/post_stopplan", token).status_code == 200
    assert key_server.was_asked_again.wait(10)
    assert ask(client, "/post_stopplan", token).status_code == 200
    key_server.may_answer.set()


def test_a_rotated_key_is_found(key_server: KeyServerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyServer, "RETRY_S", 0.0)
    first = key_server.add("one")
    client = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)
    assert ask(client, "/get_run", sign(claims(), first, "RS256", kid="one")).status_code == 200

    second = key_server.add("two")

    assert ask(client, "/get_run", sign(claims(), second, "RS256", kid="two")).status_code == 200


@pytest.mark.parametrize("trouble", ["gone", "status", "nonsense"])
def test_a_key_server_in_trouble_is_503_at_first_and_later_the_known_keys_go_on(
    key_server: KeyServerDouble, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(KeyServer, "RETRY_S", 0.0)
    private = key_server.add("one")
    client = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)
    token = sign(claims(), private, "RS256", kid="one")
    knowing = make_client(auth_jwt_secret=None, auth_jwks_url=key_server.url)
    assert ask(knowing, "/get_run", token).status_code == 200

    if trouble == "gone":
        key_server.server.shutdown()
        key_server.server.server_close()
    elif trouble == "status":
        key_server.status = 500
    else:
        monkeypatch.setattr(key_server, "document", lambda: b"<html>")

    refused(ask(client, "/get_run", token), 503, "key_server_unreachable")
    assert ask(knowing, "/get_run", token).status_code == 200
    monkeypatch.setattr(KeyServer, "FRESH_S", 0.0)
    assert ask(knowing, "/post_stopplan", token).status_code == 200
    monkeypatch.setattr(KeyServer, "STALE_S", 0.0)
    refused(ask(knowing, "/get_run", token), 503, "key_server_unreachable")
