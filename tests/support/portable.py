"""Taking a session out of one server and into another."""

from __future__ import annotations

import json
from typing import Any

import requests

from tests.support.api_client import Api, Run

JSON_LINES = {"Content-Type": "application/jsonl"}

Lines = list[dict[str, Any]]


def export_session(api: Api, session_id: str) -> Lines:
    """The lines of a session."""
    answer = api.request("GET", f"/v1/sessions/{session_id}/export")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("application/jsonl")
    return [json.loads(line) for line in answer.text.splitlines()]


def send_import(api: Api, lines: Lines, query: str = "") -> requests.Response:
    """``POST /v1/sessions/import``."""
    body = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode()
    return api.request("POST", f"/v1/sessions/import{query}", data=body, headers=JSON_LINES)


def import_session(api: Api, lines: Lines, query: str = "") -> Run:
    """The run of a session that was taken in."""
    answer = send_import(api, lines, query)
    assert answer.status_code == 201, answer.text
    return Run(api, {**answer.json(), "turn_id": ""})


def session_line(session_id: str) -> dict[str, Any]:
    """The first line of a session without a title."""
    at = "2026-01-01T00:00:00Z"
    return {"type": "session", "format": 1, "session_id": session_id, "title": None, "created_at": at}


def turn_line(turn_id: str, **fields: Any) -> dict[str, Any]:
    """A turn that was completed, with as little in it as may be."""
    nothing = dict.fromkeys(("cause", "reason", "error", "receipt", "usage", "note", "history", "left_out", "ended_at"))
    return {
        "type": "turn", "turn_id": turn_id, "run_id": "r_1", "state": "completed", "input": "a", "messages": [],
        "goals": [], "started_at": "2026-01-01T00:00:00Z", **nothing, **fields,
    }  # fmt: skip


def comparable(lines: Lines) -> Lines:
    """The lines without what is new in every import; turns are numbered instead of named."""
    numbers = {line["turn_id"]: number for number, line in enumerate(lines) if line["type"] == "turn"}
    made = []
    for line in lines:
        kept = {name: value for name, value in line.items() if name not in ("session_id", "run_id", "turn_id", "held")}
        if line["type"] == "turn":
            kept |= {"number": numbers[line["turn_id"]], "resumes": numbers.get(line["resumes"])}
        made.append(kept)
    return made
