"""The chat page: static files, under a strict content security policy."""

from pathlib import Path

from flask import Blueprint, Response, send_from_directory

WEB = Path(__file__).parent.parent / "web"

page_routes = Blueprint("page", __name__)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@page_routes.get("/")
def chat_page() -> Response:
    """The page itself."""
    return _send("index.html")


@page_routes.get("/web/<path:name>")
def web_file(name: str) -> Response:
    """What the page loads."""
    return _send(name)


def _send(name: str) -> Response:
    response = send_from_directory(WEB, name)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-cache"
    return response
