"""Runs whose log is made up: what no real server says at will, the page shows from this."""

import json
from typing import Any

from playwright.sync_api import Page, Route

from tests.browser.conftest import ChatServer

AT = "2026-11-30T02:00:00.000Z"
RUN, TURN = "r_01M8N3NHJPRWHJD0BKZT9YMNE6", "t_01M8N3NHJQR92QVAWA094631VG"
GOAL = {"id": "g", "title": "g", "depends_on": [], "goals": [], "status": "NOT_STARTED"}
STARTED: list[dict[str, Any]] = [
    {"type": "run_started", "session_id": "s", "interactive": True, "metadata": {}},
    {"type": "turn_started", "turn_id": TURN, "input": "Look it up", "number": 1},
    {"type": "plan_updated", "turn_id": TURN, "goals": [GOAL]},
    {"type": "goal_status", "turn_id": TURN, "goal_id": "g", "status": "IN_PROGRESS"},
]


def show_log(page: Page, server: ChatServer, events: list[dict[str, Any]]) -> None:
    """Open a run whose log is made up; its last event should end the run."""
    told = [{"seq": seq, "at": AT, "run_id": RUN, **event} for seq, event in enumerate(events, 1)]
    frames = [f"id: {each['seq']}\nevent: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in told]

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body="".join(frames))

    page.route(f"**/{RUN}/events", answer)
    page.goto(f"{server.url}#run={RUN}")
