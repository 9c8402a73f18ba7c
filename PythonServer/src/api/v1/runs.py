"""Runs: start one, talk to it, stop it, end it, look at it."""

import contextlib
import hashlib
from typing import Any

from flask import Response, current_app, request
from flask_openapi import APIBlueprint, Tag

from api.answers import (
    INPUT_PROBLEMS,
    LIST_PROBLEMS,
    READ_PROBLEMS,
    STOP_PROBLEMS,
    WRITE_PROBLEMS,
    InputAccepted,
    OneRun,
    PartStopAnswer,
    PlanView,
    Receipts,
    Regenerated,
    Resumed,
    RolledBack,
    RunsPage,
    StopAnswerBody,
    Transcript,
    created_or_streamed,
)
from api.auth.caller import RUNS_CREATE
from api.auth.jwt_middleware import current_caller, require_scopes
from api.schemas import (
    BEARER,
    CallPath,
    CancelBody,
    CancelPartBody,
    CreateRunBody,
    CreateRunHeaders,
    GoalPath,
    GoBackBody,
    InputBody,
    PlanQuery,
    RunPath,
    RunsQuery,
    TerminateBody,
)
from api.sse import StreamPlace, event_stream, wants_stream
from core.base.Main import Main
from core.cancellation import Cause, CauseWord
from core.errors import ServerError
from core.ids import new_id
from core.session.foreign import read_history
from core.session.records import NewMessage, NewRun, StopOrder
from core.session.repair import repair

run_routes = APIBlueprint("runs", __name__, abp_tags=[Tag(name="runs")], abp_security=BEARER)

Answer = tuple[dict[str, Any], int]


def _main() -> Main:
    main: Main = current_app.extensions["runtime"].main
    return main


@run_routes.post("/v1/runs", responses={201: created_or_streamed(), **WRITE_PROBLEMS})
def create_run(body: CreateRunBody, header: CreateRunHeaders) -> Answer | Response:
    """Start a run. With Accept: text/event-stream the answer is the stream of its events, up to the parking."""
    place = StreamPlace() if wants_stream() else None
    try:
        created = _main().create_run(current_caller(), _new_run(body, header))
        return (created, 201) if place is None else _stream_turn(created, place, body.on_disconnect)
    except BaseException:
        if place is not None:
            place.release()
        raise


def _new_run(body: CreateRunBody, header: CreateRunHeaders) -> NewRun:
    return NewRun(
        input=body.input,
        session_id=body.session_id or current_caller().session_id or new_id("s"),
        interactive=body.interactive,
        agent=body.agent,
        planning=body.planning,
        plan=body.plan.model_dump(exclude_defaults=True) if body.plan is not None else None,
        busy_mode=body.busy_mode,
        deadline_ms=body.deadline_ms,
        idle_limit_ms=body.idle_limit_ms,
        on_server_lost=body.on_server_lost,
        history=_history(body.messages),
        metadata=body.metadata,
        idempotency_key=header.idempotency_key,
        body_hash=hashlib.sha256(request.get_data()).hexdigest(),
    )


def _history(handed_in: list[Any] | None) -> dict[str, Any] | None:
    if not handed_in:
        return None
    messages, system = read_history(handed_in)
    return {"system": system, "messages": repair(messages)}


def _stream_turn(created: dict[str, Any], place: StreamPlace, on_disconnect: str) -> Response:
    main, caller, run_id = _main(), current_caller(), created["run_id"]

    def stop_turn() -> None:
        with contextlib.suppress(ServerError):  # it had ended
            main.client_gone(caller, run_id, created["turn_id"])

    source = main.read_events(caller, run_id)
    on_gone = stop_turn if on_disconnect == "stop" else None
    response = event_stream(source, place, 0, until_parked=True, on_gone=on_gone)
    response.status_code = 201
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return response


@run_routes.get("/v1/runs", responses={200: RunsPage, **LIST_PROBLEMS})
def list_runs(query: RunsQuery) -> dict[str, Any]:
    """The caller's runs, newest first."""
    return _main().list_runs(current_caller(), query.session_id, query.state, query.cursor, query.limit)


@run_routes.get("/v1/runs/<run_id>", responses={200: OneRun, **READ_PROBLEMS})
def get_run(path: RunPath) -> dict[str, Any]:
    """One run."""
    return _main().get_run(current_caller(), path.run_id)


@run_routes.post("/v1/runs/<run_id>/input", responses={202: InputAccepted, **INPUT_PROBLEMS})
def post_input(path: RunPath, body: InputBody) -> Answer:
    """A message: starts a turn if the run is parked; else it waits, goes into the turn, or takes its place (mode)."""
    message = NewMessage(body.text, body.mode, body.goal_id, body.if_turn, body.client_message_id)
    return _main().talk.post_input(current_caller(), path.run_id, message), 202


@run_routes.post("/v1/runs/<run_id>/cancel", responses={200: StopAnswerBody, **STOP_PROBLEMS})
def cancel_run(path: RunPath, body: CancelBody) -> dict[str, Any]:
    """Stop the current turn; what was said stays, and the run parks."""
    if body.continue_with is not None:
        require_scopes(frozenset({RUNS_CREATE}))  # it starts something
    order = StopOrder(Cause(CauseWord.USER, body.reason), inbox=body.inbox, continue_with=body.continue_with)
    return _main().cancel_run(current_caller(), path.run_id, order, body.if_turn, body.wait_ms).to_json()


@run_routes.post("/v1/runs/<run_id>/goals/<goal_id>/cancel", responses={200: PartStopAnswer, **STOP_PROBLEMS})
def cancel_goal(path: GoalPath, body: CancelPartBody) -> dict[str, Any]:
    """Stop one goal of the current turn, with what it has delegated: dependents follow, siblings go on."""
    cause = Cause(CauseWord.USER, body.reason)
    return _main().cancel_goal(current_caller(), path.run_id, path.goal_id, cause, body.if_turn, body.wait_ms)


@run_routes.post("/v1/runs/<run_id>/calls/<call_id>/cancel", responses={200: PartStopAnswer, **STOP_PROBLEMS})
def cancel_call(path: CallPath, body: CancelPartBody) -> dict[str, Any]:
    """Stop one tool call of the current turn: the model is told, and goes on."""
    cause = Cause(CauseWord.USER, body.reason)
    return _main().cancel_call(current_caller(), path.run_id, path.call_id, cause, body.if_turn, body.wait_ms)


@run_routes.post("/v1/runs/<run_id>/terminate", responses={200: StopAnswerBody, **STOP_PROBLEMS})
def terminate_run(path: RunPath, body: TerminateBody) -> dict[str, Any]:
    """End the run, and the turn with it. Repeating it is harmless."""
    return _main().terminate_run(current_caller(), path.run_id, body.reason, body.wait_ms).to_json()


@run_routes.post("/v1/runs/<run_id>/resume", responses={202: Resumed, **WRITE_PROBLEMS})
def resume_run(path: RunPath, body: GoBackBody) -> Answer:
    """Take the newest turn up again where it was stopped or failed: finished goals are kept, the others made anew."""
    return _main().resume(current_caller(), path.run_id, body.if_turn), 202


@run_routes.post("/v1/runs/<run_id>/regenerate", responses={202: Regenerated, **WRITE_PROBLEMS})
def regenerate_run(path: RunPath, body: GoBackBody) -> Answer:
    """Ask the message of the newest turn again, in its place, however it ended."""
    return _main().regenerate(current_caller(), path.run_id, body.if_turn), 202


@run_routes.post("/v1/runs/<run_id>/rollback", responses={200: RolledBack, **WRITE_PROBLEMS})
def roll_back_run(path: RunPath, body: GoBackBody) -> dict[str, Any]:
    """Take the newest turn, which was stopped or failed, out of the transcript. It stays in the events."""
    return _main().roll_back(current_caller(), path.run_id, body.if_turn)


@run_routes.get("/v1/runs/<run_id>/plan", responses={200: PlanView, **READ_PROBLEMS})
def get_plan(path: RunPath, query: PlanQuery) -> dict[str, Any]:
    """The plan of a turn, by default the newest, with the state of each goal."""
    return _main().get_plan(current_caller(), path.run_id, query.turn_id)


@run_routes.get("/v1/runs/<run_id>/transcript", responses={200: Transcript, **READ_PROBLEMS})
def get_transcript(path: RunPath) -> dict[str, Any]:
    """What was said in the run's session."""
    return _main().get_transcript(current_caller(), path.run_id)


@run_routes.get("/v1/runs/<run_id>/receipts", responses={200: Receipts, **READ_PROBLEMS})
def get_receipts(path: RunPath) -> dict[str, Any]:
    """What each stop of the run found, and what became of it."""
    return _main().get_receipts(current_caller(), path.run_id)
