"""Sessions as a whole: take one away, bring one in."""

import json
from collections.abc import Iterator
from typing import Any

from flask import Response, current_app
from flask_openapi import APIBlueprint, Tag

from api.answers import JSON_LINES, READ_PROBLEMS, WRITE_PROBLEMS, Imported
from api.auth.jwt_middleware import current_caller
from api.schemas import BEARER, ImportBody, ImportQuery, SessionPath
from core.base.Main import Main

portable_routes = APIBlueprint("sessions", __name__, abp_tags=[Tag(name="sessions")], abp_security=BEARER)


@portable_routes.get("/v1/sessions/<session_id>/export", responses={200: JSON_LINES, **READ_PROBLEMS})
def export_session(path: SessionPath) -> Response:
    """The session as JSON Lines: the session, its turns with what was said and done, its waiting messages."""
    main: Main = current_app.extensions["runtime"].main
    lines = main.export_session(current_caller(), path.session_id)
    return Response(_encode(lines), mimetype="application/jsonl")


@portable_routes.post("/v1/sessions/import", responses={201: Imported, **WRITE_PROBLEMS})
def import_session(query: ImportQuery, body: ImportBody) -> tuple[dict[str, Any], int]:
    """Make a session of an export: one interactive run, parked, with the turns as they were."""
    main: Main = current_app.extensions["runtime"].main
    return main.import_session(current_caller(), query.session_id, body.lines), 201


def _encode(lines: list[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
