"""What the tests of the guard share: an app behind it, tokens, and what a refusal says."""

import time
from typing import Any

import jwt
from flask import Blueprint, Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.auth.jwt_middleware import (
    PUBLIC_ENDPOINTS,
    REMOTE_SESSION_ENDPOINTS,
    USER_SESSION_ENDPOINTS,
    current_caller,
    protect_routes,
)
from api.errors import register_error_handlers
from core.settings import Settings

SECRET = "a-shared-secret-of-some-length-for-the-tests-of-the-guard"


def make_settings(**values: Any) -> Settings:
    """Settings from these values alone."""
    return Settings(_env_file=None, **values)


def make_client(**values: Any) -> FlaskClient:
    """An app with one dummy route for every name in the tables, and one that stands in none."""
    app = Flask(__name__, static_folder=None)
    protect_routes(app, make_settings(**{"auth_jwt_secret": SECRET, **values}))
    register_error_handlers(app)

    def who() -> dict[str, Any]:
        caller = current_caller()
        return {"sub": caller.sub, "tenant": caller.tenant, "session": caller.session_id, "kind": caller.kind}

    inside = Blueprint("v1", __name__)
    for name in sorted({*USER_SESSION_ENDPOINTS, *REMOTE_SESSION_ENDPOINTS}):
        inside.add_url_rule(f"/{name}", name, who, methods=["GET", "POST"])
    for name in sorted(PUBLIC_ENDPOINTS):
        app.add_url_rule(f"/{name}", name, lambda: {"public": True})
    app.register_blueprint(inside)
    app.add_url_rule("/forgotten", "forgotten", who)
    return app.test_client()


def claims(**values: Any) -> dict[str, Any]:
    """Claims of a valid token of alice, with these changed."""
    return {"sub": "alice", "exp": int(time.time()) + 86_400, **values}


def sign(payload: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    """The token; keywords are members of its header."""
    return jwt.encode(payload, key, algorithm, headers=header or None)


def ask(client: FlaskClient, path: str, token: str | None) -> TestResponse:
    """A request with this token, or with none."""
    return client.get(path, headers={"Authorization": f"Bearer {token}"} if token is not None else {})


def refused(answer: TestResponse, status: int, code: str, word: str = "") -> None:
    """The answer is this problem; for a 401, ``word`` stands in its challenge."""
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")
    document = answer.get_json()
    assert (document["status"], document["code"]) == (status, code)
    challenge = answer.headers.get("WWW-Authenticate", "")
    if status == 401:
        assert challenge.startswith('Bearer realm="pythonserver", error="invalid_token", error_description="')
    assert word in challenge
