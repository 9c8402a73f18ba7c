"""A database that somebody else holds, or that cannot be used: said in words and in bounded time, and nothing is lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from core.engine.stopping import STORE_TIMEOUT_S
from core.store.database import WRITES
from tests.support.api_client import PATIENCE_S, Run, in_threads
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer
from tests.support.plans import all_events, goal, say_done, seen_at, start_plan, start_streaming
from tests.support.problems import assert_problem
from tests.support.race_kit import Later
from tests.support.servers import LocalServer, ServerProcess

READS = ("", "/events", "/inbox", "/plan", "/receipts", "/transcript")


@contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """The database of a server, taken by somebody who gives it back only at the end."""
    database = sqlite3.connect(data_dir / "pythonserver.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        database.rollback()
        database.close()


# -- while the server runs -------------------------------------------------------------------------


def test_while_another_process_holds_the_database_writes_are_refused_in_words_and_reads_go_on(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    parked = own.api().start(say_done(key))
    parked.wait_parked()
    running = start_streaming(own.api(), models, key, tokens=150)
    waiting = running.say(say_done(key), client_message_id="early")["message_id"]
    before = {run.id: run.view() for run in (parked, running)}
    requests: list[Callable[[Run], Any]] = [
        lambda run: run.api.request("POST", "/v1/runs", json={"input": say_done(key), "planning": "none"}),
        lambda run: run.api.request("POST", f"{parked.path}/input", json={"text": "lost"}),
        lambda run: run.api.request("POST", f"{running.path}/input", json={"text": "lost"}),
        lambda run: run.api.request("POST", f"{parked.path}/terminate", json={}),
    ]
    with held(own.data_dir):
        for run in (parked, running):
            for path in READS[:1] + READS[2:]:
                assert run.api.request("GET", run.path + path).status_code == 200
            with run.stream() as reader:
                assert reader.collect_type("turn_started")["turn_id"] == run.first_turn
        began = time.monotonic()
        answers = in_threads(len(requests), lambda number: requests[number](seen_at(own, parked)))
        assert time.monotonic() - began < STORE_TIMEOUT_S
        for answer in answers:
            assert_problem(answer, 503, "store_unavailable")
        assert parked.view() == before[parked.id]
        assert own.api().request("GET", "/readyz").status_code == 503
    assert running.wait_parked() == "awaiting_input"
    assert own.api().request("GET", "/readyz").status_code == 200
    assert len(own.api().get("/v1/runs")["runs"]) == 2, "what was refused did not happen"
    events = all_events(running)
    assert "".join(each["text"] for each in events if each["type"] == "text" and each["turn_id"] == running.first_turn) == (
        "".join(f"t{number} " for number in range(1, 151))
    )
    assert [each["message_id"] for each in events if each["type"] == "message_delivered"] == [waiting]
    assert running.say("again", client_message_id="early")["disposition"] == "duplicate"
    assert seen_at(own, parked).view() == before[parked.id]
    for run in (parked, running):
        five_checks(run, models, key)


def test_stops_while_another_process_holds_the_database_reach_the_model_calls_and_say_that_they_are_not_recorded(
    own: ServerProcess, models: ModelServer, key: str
) -> None:
    runs = [
        start_streaming(own.api(f"{key}-{number}"), models, f"{key}-{number}", interactive=number != 3)
        for number in range(4)
    ]
    stops = ["cancel", "terminate", "/stopplan", "/stopplan"]
    seen = [run.events(lambda each: each["type"] == "text") for run in runs]
    with held(own.data_dir):
        paths = [stop if stop.startswith("/") else f"{runs[number].path}/{stop}" for number, stop in enumerate(stops)]
        answers = [
            Later(lambda run=run, path=path: run.api.request("POST", path, json={}))  # type: ignore[misc]
            for run, path in zip(runs, paths, strict=True)
        ]
        for number in range(4):
            models.wait_open(0, key=f"{key}-{number}")
        for run, answer in zip(runs, answers, strict=True):
            problem = assert_problem(answer.result(), 500, "stop_not_recorded")
            assert (problem["run_id"], problem["turn_id"], problem["stopped"]) == (run.id, run.first_turn, True)
            assert problem["receipt"][0]["kind"] == "model_call"
    for number, run in enumerate(seen_at(own, run) for run in runs):
        assert run.wait_parked() == ("awaiting_input" if number in (0, 2) else "cancelled")
        events = all_events(run)
        assert events[: len(seen[number])] == seen[number]
        assert [each["cause"] for each in events if each["type"] == "turn_cancelled"] == ["user"]
        assert [each["type"] for each in events].count("stop_requested") == 1
        assert len(models.calls(key=f"{key}-{number}")) == 1
        five_checks(run, models, f"{key}-{number}", is_batch=number in (1, 3))


class Tries:
    """Counts how often a server in this process tries to write, and sets how long each waits for the database."""

    def __init__(self, local: LocalServer, busy_ms: int) -> None:
        self.count = 0
        self.began = threading.Event()
        self._busy_ms = busy_ms
        event.listen(local.main.database, "before_cursor_execute", self._note)

    def _note(self, _connection: Connection, cursor: sqlite3.Cursor, statement: str, *_: Any) -> None:
        if statement == "BEGIN IMMEDIATE":
            cursor.execute(f"PRAGMA busy_timeout={self._busy_ms}")
            self.count += 1
            self.began.set()


def test_a_message_that_comes_while_the_database_is_held_for_a_moment_waits_and_is_taken(
    local: LocalServer, models: ModelServer, key: str, tmp_path: Path
) -> None:
    run = local.api().start(say_done(key))
    run.wait_parked()
    tries = Tries(local, busy_ms=round(PATIENCE_S * 1000))
    with held(tmp_path):
        tries.began.clear()
        sent = Later(lambda: run.say(say_done(key)))
        assert tries.began.wait(PATIENCE_S)
        assert not sent.is_done
    assert sent.result()["disposition"] == "started"
    five_checks(run, models, key)


def test_requests_that_wait_for_the_held_database_together_are_refused_together(
    local: LocalServer, tmp_path: Path
) -> None:
    tries = Tries(local, busy_ms=300)
    body = {"input": "x", "planning": "none"}
    with held(tmp_path):
        answers = in_threads(20, lambda _: local.api().request("POST", "/v1/runs", json=body))
        for answer in answers:
            assert_problem(answer, 503, "store_unavailable")
        assert tries.count < len(answers) / 2, "each waited for the lock by itself, one after the other"
    assert local.api().get("/v1/runs")["runs"] == []


def test_a_store_that_cannot_be_read_is_told_as_such_by_every_route_and_the_server_goes_on(
    local: LocalServer, models: ModelServer, key: str
) -> None:
    run = start_plan(local.api(), goal("a", say_done(key)))
    run.wait_parked()

    def fail(connection: Connection) -> None:
        if not connection.get_execution_options().get(WRITES):
            connection.exec_driver_sql("SELECT * FROM a_table_that_is_not_there")

    event.listen(local.main.database, "begin", fail)
    for path in ("/v1/runs", *(run.path + each for each in READS)):
        assert_problem(run.api.request("GET", path), 503, "store_unavailable")
    for path in ("/stopplan", f"{run.path}/cancel", f"{run.path}/terminate"):
        assert_problem(run.api.request("POST", path, json={}), 503, "store_unavailable")
    event.remove(local.main.database, "begin", fail)
    five_checks(run, models, key)


# -- at the start ---------------------------------------------------------------------------------------


def _refusal(server: ServerProcess) -> str:
    """The one line in which the server says why it does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "api"],
        env=server.environment, cwd=server.data_dir, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("pythonserver: ")
    return line


@pytest.fixture
def used(models: ModelServer, tmp_path: Path) -> ServerProcess:
    """A server that has run and ended, and has a run in its database."""
    server = ServerProcess(tmp_path, models.url)
    with server:
        server.api().start(say_done("used")).wait_parked()
    return server


def _change(server: ServerProcess, statement: str) -> None:
    with sqlite3.connect(server.data_dir / "pythonserver.db") as database:
        database.execute(statement)
    database.close()


def test_a_database_of_a_newer_version_is_refused_in_one_line_and_left_as_it_is(used: ServerProcess) -> None:
    with sqlite3.connect(used.data_dir / "pythonserver.db") as database:
        (version,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    database.close()
    _change(used, "UPDATE alembic_version SET version_num = '9999'")
    line = _refusal(used)
    assert "pythonserver.db was made by another version of this server" in line
    _change(used, f"UPDATE alembic_version SET version_num = '{version}'")
    with used:
        assert len(used.api().get("/v1/runs")["runs"]) == 1


def test_what_is_no_database_is_refused_in_one_line_and_left_as_it_is(models: ModelServer, tmp_path: Path) -> None:
    file = tmp_path / "pythonserver.db"
    file.write_bytes(b"a text\n" * 2_000)
    assert "pythonserver.db cannot be used (file is not a database)" in _refusal(ServerProcess(tmp_path, models.url))
    assert file.read_bytes() == b"a text\n" * 2_000


def test_a_damaged_database_is_refused_in_one_line(used: ServerProcess) -> None:
    file = used.data_dir / "pythonserver.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 40_000)
    assert "cannot be used (database disk image is malformed)" in _refusal(used)


def test_a_database_that_can_only_be_read_is_refused_in_one_line(used: ServerProcess) -> None:
    # By the address, since to root every file is writable.
    used.environment["DATABASE_URL"] = f"sqlite:///file:{used.data_dir}/pythonserver.db?mode=ro&uri=true"
    assert "cannot be used (attempt to write a readonly database)" in _refusal(used)


def test_a_start_while_another_process_holds_the_database_is_refused_in_one_line_and_the_next_one_works(
    used: ServerProcess,
) -> None:
    with held(used.data_dir):
        assert "cannot be used (database is locked)" in _refusal(used)
    with used:
        assert len(used.api().get("/v1/runs")["runs"]) == 1


def test_a_database_server_that_is_not_there_is_refused_in_one_line_without_the_password(
    models: ModelServer, tmp_path: Path
) -> None:
    url = "postgresql://alice:hunter2@127.0.0.1:9/pythonserver"
    line = _refusal(ServerProcess(tmp_path, models.url, DATABASE_URL=url))
    assert "alice:***@127.0.0.1:9/pythonserver cannot be used" in line
    assert "hunter2" not in line
