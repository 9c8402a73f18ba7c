"""Questions to the user: look at them, answer or decline one."""

from typing import Any

from flask import current_app
from flask_openapi import APIBlueprint, Tag

from api.answers import READ_PROBLEMS, RESOLVE_PROBLEMS
from api.auth.jwt_middleware import current_caller
from api.interrupt_answers import Interrupts, Resolved
from api.schemas import BEARER, InterruptPath, InterruptsQuery, ResolveBody, RunPath
from core.engine.answering import Answering
from core.errors import InvalidRequest
from core.session.questions import Resolution

interrupt_routes = APIBlueprint("interrupts", __name__, abp_tags=[Tag(name="interrupts")], abp_security=BEARER)


def _answering() -> Answering:
    answering: Answering = current_app.extensions["runtime"].main.answering
    return answering


@interrupt_routes.get("/v1/runs/<run_id>/interrupts", responses={200: Interrupts, **READ_PROBLEMS})
def list_interrupts(path: RunPath, query: InterruptsQuery) -> dict[str, Any]:
    """The questions of the run, newest first, and what became of each."""
    return _answering().list_questions(current_caller(), path.run_id, query.status)


@interrupt_routes.post(
    "/v1/runs/<run_id>/interrupts/<interrupt_id>/resolve", responses={200: Resolved, **RESOLVE_PROBLEMS}
)
def resolve_interrupt(path: InterruptPath, body: ResolveBody) -> dict[str, Any]:
    """Answer a question, or decline it. The first answer stands."""
    return _answering().resolve(current_caller(), path.run_id, path.interrupt_id, _resolution(body))


def _resolution(body: ResolveBody) -> Resolution:
    if body.disposition == "answered" and body.answer is None:
        raise _wrong_answer("an answer is needed")
    if body.disposition == "declined" and body.answer is not None:
        raise _wrong_answer("who declines gives no answer")
    return Resolution(body.disposition, body.answer, body.comment)


def _wrong_answer(message: str) -> InvalidRequest:
    return InvalidRequest(f"answer: {message}", errors=[{"field": "answer", "message": message}])
