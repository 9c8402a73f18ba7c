"""Bearer tokens at the edge: which route needs which, and who is calling.

Secure by default: a route that stands in none of the three tables below is refused, whatever the token.
An endpoint is named by its view function; the blueprint that it belongs to makes no difference.
"""

import hmac
import logging
from typing import Final

from flask import Flask, g, request

from api.auth.caller import RUNS_CREATE, RUNS_READ, RUNS_STOP, Caller
from api.auth.tokens import REALM, TokenVerifier, unauthenticated
from core.errors import Forbidden, NotFound
from core.settings import Settings

log = logging.getLogger(__name__)

_CREATE: Final = frozenset({RUNS_CREATE})
_READ: Final = frozenset({RUNS_READ})
_STOP: Final = frozenset({RUNS_CREATE, RUNS_STOP})

#: Open to everybody: health, metrics, the API's description, and the page, which holds no data of its own.
PUBLIC_ENDPOINTS: Final = frozenset({"livez", "readyz", "metrics", "openapi_json", "docs", "chat_page", "web_file"})
#: Blueprints that only show the API's description.
PUBLIC_BLUEPRINTS: Final = frozenset({"openapi", "swagger"})

#: What a user-session token may call -> the scopes of which it needs one; an empty set needs none.
USER_SESSION_ENDPOINTS: Final = {
    "post_stopplan": frozenset[str](),
    "create_run": _CREATE,
    "list_runs": _READ,
    "get_run": _READ,
    "post_input": _CREATE,
    "resume_run": _CREATE,
    "roll_back_run": _CREATE,
    "regenerate_run": _CREATE,
    "compact_run": _CREATE,
    "cancel_run": _STOP,
    "cancel_goal": _STOP,
    "cancel_call": _STOP,
    "terminate_run": _STOP,
    "get_events": _READ,
    "get_transcript": _READ,
    "get_plan": _READ,
    "get_receipts": _READ,
    "get_inbox": _READ,
    "get_message": _READ,
    "withdraw_message": _CREATE,
    "move_message": _CREATE,
    "list_interrupts": _READ,
    "resolve_interrupt": _CREATE,
    "list_tools": _READ,
    "export_session": _READ,
    "import_session": _CREATE,
}

#: What only the remote session API token may call.
REMOTE_SESSION_ENDPOINTS: Final = frozenset({"post_session_stop"})


class EndpointNotAllowed(Forbidden):
    """The route stands in no table, so that nobody has decided who may call it."""

    code, title = "endpoint_not_allowed", "No token opens this route"


def current_caller() -> Caller:
    """The caller of this request. Only inside a view of a protected route."""
    caller: Caller = g.caller
    return caller


def protect_routes(app: Flask, settings: Settings) -> None:
    """Put the guard before every view of the app, also of those that are added later.

    Call it before any other ``before_request`` hook, so that nothing is read for a stranger.
    """
    verifier = TokenVerifier(settings)
    secret = settings.remote_session_api_token
    remote_token = secret.get_secret_value() if secret is not None else None

    @app.before_request
    def guard() -> None:
        if request.routing_exception is not None or is_public(request.endpoint):
            return
        name = view_name(request.endpoint)
        if name in REMOTE_SESSION_ENDPOINTS:
            g.caller = _remote_caller(remote_token)
        else:
            g.caller = verifier.verify(_bearer())
            _require_scope(name, g.caller)


def is_public(endpoint: str | None) -> bool:
    """Whether the endpoint answers without a token."""
    blueprint = (endpoint or "").rpartition(".")[0]
    return view_name(endpoint) in PUBLIC_ENDPOINTS or blueprint in PUBLIC_BLUEPRINTS


def view_name(endpoint: str | None) -> str:
    """The view function's name of a Flask endpoint, which may carry the name of a blueprint."""
    return (endpoint or "").rpartition(".")[2]


def _bearer() -> str:
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if not header:
        raise unauthenticated("a bearer token is needed and none came")
    if scheme.lower() != "bearer" or not token or any(mark in token for mark in " ,\t"):
        raise unauthenticated("the header must be: Authorization: Bearer, a space, and one token")
    return token


def _remote_caller(remote_token: str | None) -> Caller:
    if remote_token is None:
        raise NotFound("The remote session route is off")
    # WSGI hands over the header's bytes as Latin-1; the comparison takes the same time wherever they differ.
    given = _bearer().encode("latin-1", "replace")
    if not hmac.compare_digest(given, remote_token.encode()):
        raise unauthenticated("the token is not the remote session API token")
    return Caller(sub="remote-session-api", scopes=frozenset(), kind="remote")


def _require_scope(name: str, caller: Caller) -> None:
    needed = USER_SESSION_ENDPOINTS.get(name)
    if needed is None:
        log.error("the route %s stands in no table of the guard and is refused", name)
        raise EndpointNotAllowed("No user-session token opens this route")
    _require_any_of(needed, caller)


def require_scopes(needed: frozenset[str]) -> None:
    """For a field that asks for more than its route does: one of these scopes, or 403."""
    _require_any_of(needed, current_caller())


def _require_any_of(needed: frozenset[str], caller: Caller) -> None:
    if not caller.has_any_of(needed):
        words = " or ".join(sorted(needed))
        error = Forbidden(f"The token lacks the scope {words}")
        error.headers["WWW-Authenticate"] = (
            f'Bearer realm="{REALM}", error="insufficient_scope", scope="{" ".join(sorted(needed))}"'
        )
        raise error
