"""The messages of a run that wait: look at them, take one back, change their order."""

from typing import Any

from flask import current_app
from flask_openapi import APIBlueprint, Tag

from api.answers import READ_PROBLEMS, WITHDRAW_PROBLEMS, WRITE_PROBLEMS
from api.auth.jwt_middleware import current_caller
from api.inbox_answers import Inbox, MessageView, MessageWithdrawn
from api.schemas import BEARER, MessagePath, MoveMessageBody, RunPath
from core.engine.talking import Talking

inbox_routes = APIBlueprint("inbox", __name__, abp_tags=[Tag(name="inbox")], abp_security=BEARER)


def _talk() -> Talking:
    talk: Talking = current_app.extensions["runtime"].main.talk
    return talk


@inbox_routes.get("/v1/runs/<run_id>/inbox", responses={200: Inbox, **READ_PROBLEMS})
def get_inbox(path: RunPath) -> dict[str, Any]:
    """The messages that wait, in the order in which they will be delivered."""
    return _talk().get_inbox(current_caller(), path.run_id)


@inbox_routes.get("/v1/runs/<run_id>/inbox/<message_id>", responses={200: MessageView, **READ_PROBLEMS})
def get_message(path: MessagePath) -> dict[str, Any]:
    """A message of the run, and what became of it."""
    return _talk().get_message(current_caller(), path.run_id, path.message_id)


@inbox_routes.delete("/v1/runs/<run_id>/inbox/<message_id>", responses={200: MessageWithdrawn, **WITHDRAW_PROBLEMS})
def withdraw_message(path: MessagePath) -> dict[str, Any]:
    """Take a message back before it is delivered. Repeating it is harmless."""
    return _talk().withdraw_message(current_caller(), path.run_id, path.message_id)


@inbox_routes.patch("/v1/runs/<run_id>/inbox/<message_id>", responses={200: Inbox, **WRITE_PROBLEMS})
def move_message(path: MessagePath, body: MoveMessageBody) -> dict[str, Any]:
    """Put a message at another place among those that wait; the answer is their new order."""
    return _talk().move_message(current_caller(), path.run_id, path.message_id, body.position)
