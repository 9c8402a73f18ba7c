"""The one table from what went wrong to the problem document (RFC 9457) that the caller gets."""

import json
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from api.json_body import MAX_BODY_BYTES, install_json_bodies
from core.errors import ServerError

log = logging.getLogger(__name__)

#: Statuses that the framework raises by itself -> code, title, and what to say; ``mebibytes`` is the route's limit.
HTTP_PROBLEMS = {
    400: ("bad_request", "The request is malformed", "The request could not be understood"),
    404: ("not_found", "There is no such thing", "There is no such route"),
    405: ("method_not_allowed", "The route has no such method", "See the Allow header for those it has"),
    413: ("payload_too_large", "The body is too large", "A body may be {mebibytes} MiB at most"),
    415: (
        "unsupported_media_type", "The body is no JSON",
        "Send it with Content-Type: application/json (an export: application/jsonl)",
    ),
}
#: The members of RFC 9457 and ``code``: no further member may take their place.
FIXED_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "instance"})
MAX_FIELD_ERRORS = 20


def register_error_handlers(app: Flask) -> None:
    """Answer every error with a problem document, and check every body. Call it after ``protect_routes``."""
    app.register_error_handler(ServerError, server_error_response)
    app.register_error_handler(HTTPException, http_error_response)
    app.register_error_handler(Exception, unexpected_error_response)
    install_json_bodies(app)


def problem(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """A response with the document; ``extra`` become further members."""
    document = {
        "type": f"urn:pythonserver:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "instance": request.path,
        **{name: value for name, value in (extra or {}).items() if name not in FIXED_MEMBERS},
    }
    response = Response(json.dumps(document), status=status, content_type="application/problem+json")
    response.headers.extend(dict(headers or {}))
    return response


def server_error_response(error: ServerError) -> Response:
    """One of our own errors: it knows its status and code, and its words are public."""
    if error.status >= 500:
        log.warning("answered %s %s to %s %s", error.status, error.code, request.method, request.endpoint)
    return problem(error.status, error.code, error.title, error.detail, headers=error.headers, extra=error.extra)


def http_error_response(error: HTTPException) -> Response | HTTPException:
    """An error of the framework, in our words, with its own headers (``Allow``, ``Retry-After``)."""
    status = error.code
    if status is None or status < 400:
        return error
    name = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    code, title, detail = HTTP_PROBLEMS.get(status, (_code_of(name), name, name))
    ours = {"content-type", "content-length"}
    headers = {name: value for name, value in error.get_headers() if name.lower() not in ours}
    limit = request.max_content_length or MAX_BODY_BYTES
    return problem(status, code, title, detail.format(mebibytes=limit // 1024**2), headers=headers)


def _code_of(phrase: str) -> str:
    return re.sub(r"[^a-z ]", "", phrase.lower()).replace(" ", "_")


def unexpected_error_response(error: Exception) -> Response:
    """A fault of ours: logged with its traceback, told without it."""
    log.error("unexpected error in %s %s", request.method, request.endpoint, exc_info=error)
    return problem(500, "internal_error", "Internal error", "The server failed; the log says why")


def validation_error_response(error: ValidationError) -> Response:
    """For flask-openapi's ``validation_error_callback``: 422 with each wrong field, never its value."""
    found = error.errors(include_input=False, include_context=False, include_url=False)
    errors = [
        {"field": ".".join(str(part) for part in each["loc"])[:200], "message": each["msg"][:300]}
        for each in found[:MAX_FIELD_ERRORS]
    ]
    named = ", ".join(each["field"] for each in errors if each["field"]) or "the request"
    detail = f"{named}: {errors[0]['message']}" if len(errors) == 1 else f"Wrong: {named}"
    return problem(422, "invalid_request", "The request has the wrong shape", detail, extra={"errors": errors})
