"""The documented stop routes."""

from collections.abc import Callable
from typing import Any

from flask import current_app
from flask_openapi import APIBlueprint, Tag

from api.answers import STOP_PLAN_PROBLEMS, STOP_SESSION_PROBLEMS, StopPlanAnswer
from api.auth.jwt_middleware import current_caller
from api.schemas import BEARER, EmptyBody, SessionPath
from core.base.Main import Main, post_stopplan_data
from core.engine.stopping import StopAnswer

session_routes = APIBlueprint("session", __name__, abp_tags=[Tag(name="stop")], abp_security=BEARER)


@session_routes.post("/stopplan", responses={200: StopPlanAnswer, **STOP_PLAN_PROBLEMS})
def post_stopplan(body: EmptyBody) -> tuple[dict[str, Any], int]:
    """Stop the plan of the caller's session, else of the caller's newest turn."""
    return _stop(lambda main: main.stop_plan(current_caller()))


@session_routes.post(
    "/sessions/session/<session_id>/stop", responses={200: StopPlanAnswer, **STOP_SESSION_PROBLEMS}
)
def post_session_stop(path: SessionPath, body: EmptyBody) -> tuple[dict[str, Any], int]:
    """The same for one session, with the remote session API token."""
    return _stop(lambda main: main.stop_session(path.session_id))


def _stop(stop: Callable[[Main], StopAnswer | None]) -> tuple[dict[str, Any], int]:
    main: Main = current_app.extensions["runtime"].main
    _, data, error, status_code = post_stopplan_data(lambda: stop(main))
    if error is not None:
        raise error
    return data or {}, status_code
