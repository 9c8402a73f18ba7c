"""A long session is taken in piece by piece: nobody sees it before it is whole, and no stop waits for all of it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from core.session import arrival
from core.store.tables import events
from tests.support.api_client import Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import start_streaming
from tests.support.portable import comparable, export_session, import_session, send_import, session_line, turn_line
from tests.support.problems import assert_problem
from tests.support.race_kit import Later
from tests.support.servers import LocalServer, gate

#: Events of a piece here; the turns below make five each.
PIECE = 7


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "PIECE", PIECE)


def _lines(session_id: str, turns: int = 20) -> list[dict[str, Any]]:
    goal = {
        **dict.fromkeys(("cause", "error", "started_at", "ended_at")), "id": "a", "title": "a", "prompt": "p",
        "depends_on": [], "goals": [], "status": "COMPLETED", "result": "fine",
    }  # fmt: skip
    said = [{"role": role, "content": text} for role, text in (("assistant", "b"), ("user", "c"), ("assistant", "d"))]
    return [session_line(session_id), *(turn_line(f"t{each}", goals=[goal], messages=said) for each in range(turns))]


def _event_count(server: LocalServer) -> int:
    with server.main.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(events)).scalar_one())


def _apart(api: Api) -> Api:
    """Over a connection of its own: the test uses the other one meanwhile."""
    return Api(api.url, api.token)


def test_what_was_taken_in_by_pieces_is_exported_as_it_came_and_goes_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    api = local.api()
    once = export_session(api, import_session(api, _lines(key)).session_id)
    run = import_session(api, once, f"?session_id=again-{key}")
    assert comparable(export_session(api, run.session_id)) == comparable(once)
    assert [each["content"] for each in run.transcript()] == [*"abcd"] * 20
    seqs = [event["seq"] for event in run.events()]
    assert seqs == list(range(1, len(seqs) + 1))
    five_checks(run, models, key)


def test_a_stop_is_recorded_between_two_pieces_and_nobody_sees_the_session_before_it_is_whole(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    api, other = local.api(), local.api("bob")
    run = start_streaming(other, models, key)
    before = _event_count(local)
    with gate("main.before_arrival") as written:
        importing = Later(lambda: import_session(_apart(api), _lines(key)))
        written.wait_reached()
        assert _event_count(local) > before + 50
        assert run.cancel(wait_ms=30_000)["stopped"] is True
        assert_problem(api.request("GET", f"/v1/sessions/{key}/export"), 404, "not_found")
        assert api.get("/v1/runs")["runs"] == []
        written.open()
        taken = importing.result()
    assert len(export_session(api, key)) == 21
    for each in (run, Run(api, {"run_id": taken.id, "session_id": key, "turn_id": ""})):
        five_checks(each, models, key)


def test_of_two_imports_under_one_id_one_is_whole_and_nothing_is_left_of_the_other(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    api = local.api()
    with gate("main.before_arrival") as written:
        late = Later(lambda: send_import(_apart(api), _lines(key)))
        written.wait_reached()
        run = import_session(api, _lines(key, turns=3))
        written.open()
        assert_problem(late.result(), 409, "session_exists")
    assert _event_count(local) == len(run.events())
    assert [each["content"] for each in run.transcript()] == [*"abcd"] * 3
    five_checks(run, models, key)


def test_a_shutdown_in_the_middle_leaves_nothing_of_the_session(local: LocalServer, key: str) -> None:
    with gate("main.before_arrival") as written:
        late = Later(lambda: send_import(local.api(), _lines(key)))
        written.wait_reached()
        local.main.engine.shut_down()
        written.open()
        assert_problem(late.result(), 503, "shutting_down")
    assert _event_count(local) == 0
