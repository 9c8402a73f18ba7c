"""A disk that is full: refused in words, nothing acknowledged is lost, and all is well once there is space again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, event

from core.errors import StoreError
from core.events import Event, EventType
from core.store.commit import Transaction
from tests.support.api_client import PATIENCE_S, Api, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.servers import LocalServer, gate, wait_until

EVERYTHING = 1_073_741_823


class Disk:
    """The server's disk: full means that SQLite gets no further page."""

    def __init__(self, local: LocalServer) -> None:
        self._writer = local.main.writer
        self._limit = EVERYTHING

        def limit(connection: Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={self._limit}")

        event.listen(local.main.database, "begin", limit)

    def fill(self, run: Run) -> None:
        """No page is free any more, and no space in those that the run's events go to."""
        self._limit = 1  # SQLite takes the pages that there are
        for size in (4_000, 1_000, 200, 50, 10, 1):
            while self._takes(run, size):
                pass

    def _takes(self, run: Run, size: int) -> bool:
        filler = Event(run.id, EventType.RETRY, {"filler": "x" * size}, run.first_turn)

        def write(tx: Transaction) -> None:
            tx.emit(filler)

        try:
            self._writer.transact(write).result(PATIENCE_S)
        except StoreError:
            return False
        return True

    def has_space(self, run: Run) -> bool:
        """Whether the store takes anything."""
        return self._takes(run, 1)

    def empty(self) -> None:
        """Space again."""
        self._limit = EVERYTHING


@pytest.fixture
def disk(local: LocalServer) -> Iterator[Disk]:
    disk = Disk(local)
    yield disk
    disk.empty()


def _is_ready(api: Api) -> bool:
    answer = api.request("GET", "/readyz")
    assert answer.status_code in (200, 503)
    return answer.status_code == 200


def test_requests_are_refused_and_a_running_turn_keeps_what_it_said_and_ends_once_there_is_space(
    local: LocalServer, models: ModelServer, disk: Disk, key: str
) -> None:
    api = local.api()
    line = script("trickle", tokens=15, interval_ms=10, key=key)
    twin = api.start(line)
    twin.wait_parked()
    expected = twin.transcript()[-1]["content"]
    with gate("engine.began") as held:
        run = api.start(line)
        held.wait_reached()
        disk.fill(run)
        answer = api.request("POST", "/v1/runs", json={"input": "x" * 20_000, "planning": "none"})
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert "sqlite" not in answer.text.lower()
        assert not _is_ready(api)
        with gate("engine.before_final_write") as ending:
            held.open()
            ending.wait_reached()
            assert not local.main.writer.is_healthy, "what was said could not be written"
    models.wait_closed(2, key=key)
    assert not disk.has_space(run)
    assert local.main.engine.live_turn(run.id) is not None, "its end waits to be written"
    assert run.state in ("queued", "running")
    assert api.get("/v1/runs")["runs"][0]["run_id"] == run.id
    disk.empty()
    assert run.wait_parked() == "awaiting_input"
    assert run.transcript()[-1]["content"] == expected
    assert {goal["status"] for goal in run.goals().values()} == {"COMPLETED"}
    wait_until(lambda: _is_ready(api), "the server is ready again")
    assert twin.transcript()[-1]["content"] == expected
    five_checks(run, models, key)


def test_a_stop_holds_though_it_cannot_be_recorded_and_is_written_once_there_is_space(
    local: LocalServer, models: ModelServer, disk: Disk, key: str
) -> None:
    api = local.api()
    run = api.start(script("trickle", tokens=4_000, interval_ms=20, key=key))
    models.wait_tokens(3, key=key)
    disk.fill(run)
    answer = run.api.request("POST", f"{run.path}/cancel", json={})
    assert (answer.status_code, answer.json()["code"]) == (500, "stop_not_recorded")
    assert answer.json()["receipt"]
    models.wait_closed(1, key=key)
    disk.empty()
    assert run.wait_parked() == "awaiting_input"
    end = run.wait_event("turn_cancelled")
    assert end["cause"] == "user"
    assert run.transcript()[-1]["stopped"] is True
    five_checks(run, models, key)


def test_readiness_comes_back_by_itself_where_nothing_else_is_written(local: LocalServer, disk: Disk, key: str) -> None:
    api = local.api()
    run = api.start(script("trickle", tokens=2, interval_ms=1, key=key))
    run.wait_parked()
    disk.fill(run)
    assert not _is_ready(api)
    assert not _is_ready(api)
    disk.empty()
    assert _is_ready(api)
    with local.main.database.connect() as connection:
        names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE name LIKE 'writer%'").all()
    assert names == []
