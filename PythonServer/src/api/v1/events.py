"""The event log of a run as server-sent events."""

from flask import Response, current_app, request
from flask_openapi import APIBlueprint, Tag

from api.auth.jwt_middleware import current_caller
from api.schemas import PROTECTED, EventsQuery, RunPath
from api.sse import event_stream
from core.base.Main import Main
from core.errors import InvalidRequest

event_routes = APIBlueprint("events", __name__, abp_tags=[Tag(name="events")], **PROTECTED)


@event_routes.get("/v1/runs/<run_id>/events")
def get_events(path: RunPath, query: EventsQuery) -> Response:
    """Every event of the run behind ``Last-Event-ID`` or ``after``, as it is committed; ends with the run."""
    main: Main = current_app.extensions["runtime"].main
    after = _last_event_id()
    if after is None:
        after = query.after or 0
    return event_stream(main.read_events(current_caller(), path.run_id), after)


def _last_event_id() -> int | None:
    given = request.headers.get("Last-Event-ID", "").strip()
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InvalidRequest("Last-Event-ID must be the id of an event, a whole number")
    return int(given)
