"""Compacting the history of a parked run, and taking that back."""

from typing import Any

from flask import current_app
from flask_openapi import APIBlueprint, Tag

from api.answers import WRITE_PROBLEMS
from api.auth.jwt_middleware import current_caller
from api.compaction_answers import CompactionStarted, CompactionUndone
from api.schemas import BEARER, CompactBody, RunPath
from core.engine.compactions import Compactions

compaction_routes = APIBlueprint("compaction", __name__, abp_tags=[Tag(name="runs")], abp_security=BEARER)


@compaction_routes.post(
    "/v1/runs/<run_id>/compact", responses={202: CompactionStarted, 200: CompactionUndone, **WRITE_PROBLEMS}
)
def compact_run(path: RunPath, body: CompactBody) -> tuple[dict[str, Any], int]:
    """Have a summary sent to the model in the place of the middle of a long history. The transcript stays whole."""
    compactions: Compactions = current_app.extensions["runtime"].main.compactions
    if body.undo:
        return compactions.undo(current_caller(), path.run_id, body.if_turn), 200
    return compactions.start(current_caller(), path.run_id, body.if_turn), 202
