"""The event log of a run as server-sent events."""

import threading
from typing import Final

from flask import Response, current_app, g
from flask_openapi import APIBlueprint, Tag

from api.answers import EVENT_STREAM, READ_PROBLEMS
from api.auth.jwt_middleware import current_caller
from api.schemas import BEARER, EventsHeaders, EventsQuery, RunPath
from api.sse import StreamPlace, event_stream
from core.base.Main import Main
from core.errors import InvalidRequest

event_routes = APIBlueprint("events", __name__, abp_tags=[Tag(name="events")], abp_security=BEARER)

#: Readers that are let in at the same time. When a thousand come at once, because a network is back, the others wait
#: here, without wanting the interpreter, which a stop needs.
DOORS: Final = 2

_doors = threading.BoundedSemaphore(DOORS)


@event_routes.before_request
def _enter() -> None:
    # The place first: whoever waits at the door holds a thread, and the last threads are kept for requests.
    g.stream_place = StreamPlace()
    _doors.acquire()
    g.is_in_the_door = True


@event_routes.teardown_request
def _leave_the_door(_: BaseException | None) -> None:
    if g.pop("is_in_the_door", False):  # teardown comes also for those whom the guard turned away
        _doors.release()
    place = g.pop("stream_place", None)
    if place is not None:  # no stream has taken it
        place.release()


@event_routes.get("/v1/runs/<run_id>/events", responses={200: EVENT_STREAM, **READ_PROBLEMS})
def get_events(path: RunPath, query: EventsQuery, header: EventsHeaders) -> Response:
    """Every event of the run behind Last-Event-ID or after, as it is committed; ends with the run."""
    main: Main = current_app.extensions["runtime"].main
    after = _last_event_id(header.last_event_id or "")
    if after is None:
        after = query.after or 0
    stream = event_stream(main.read_events(current_caller(), path.run_id), g.stream_place, after)
    g.pop("stream_place")
    return stream


def _last_event_id(given: str) -> int | None:
    given = given.strip()
    if not given:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InvalidRequest("Last-Event-ID must be the id of an event, a whole number")
    return int(given)
