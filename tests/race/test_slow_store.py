"""A store that takes longer than anybody waits for it: what it writes then still happens, once, and can be stopped."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from core.engine import embedded, stopping
from core.errors import StoreError
from tests.support.api_client import PATIENCE_S, Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import delivered_up_to, say_done
from tests.support.problems import assert_problem
from tests.support.race_kit import Later
from tests.support.servers import LocalServer, gate

#: The next commit of the writer stands there: written, and not durable yet.
COMMIT = "store.before_commit"


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nobody waits long for the store; set when somebody has given it up."""
    result, gave_up = embedded.result_of, threading.Event()

    def noting(decided: Future[Any]) -> Any:
        try:
            return result(decided)
        except StoreError:
            gave_up.set()
            raise

    monkeypatch.setattr(stopping, "STORE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(embedded, "result_of", noting)
    return gave_up


def test_a_run_whose_start_is_written_late_runs_and_can_be_stopped(
    local: LocalServer, models: ModelServer, key: str, given_up: threading.Event
) -> None:
    api = local.api()
    body = {"input": script("silent", key=key), "planning": "none", "session_id": key}
    with gate(COMMIT) as held:
        assert_problem(api.request("POST", "/v1/runs", json=body), 503, "store_unavailable")
        assert given_up.is_set()
        held.wait_reached()
    models.wait_open(1, key=key)
    (view,) = api.get(f"/v1/runs?session_id={key}")["runs"]
    run = Run(api, view)
    answer = run.cancel(wait_ms=30_000)
    assert (answer["stopped"], answer["parked"]) == (True, True)
    five_checks(run, models, key)


def test_a_turn_whose_end_is_written_late_ends_once_and_the_message_that_waits_is_delivered(
    local: LocalServer, models: ModelServer, key: str, given_up: threading.Event
) -> None:
    with gate("engine.before_final_write") as ending:
        run = local.api().start(say_done(key))
        ending.wait_reached()
        waiting = run.say(say_done(key))["message_id"]
        with gate(COMMIT) as held:
            ending.open()
            held.wait_reached()
            assert given_up.wait(PATIENCE_S)
    assert delivered_up_to(run, waiting) == [waiting]
    assert run.wait_parked() == "awaiting_input"
    five_checks(run, models, key)


def test_a_message_that_is_taken_back_because_the_store_is_slow_starts_nothing(
    local: LocalServer, models: ModelServer, key: str, given_up: threading.Event
) -> None:
    api, other = local.api(), local.api()
    with gate(COMMIT) as held:
        writing = Later(lambda: other.request("POST", "/v1/runs", json={"input": say_done(key), "planning": "none"}))
        held.wait_reached()
        body = {"input": say_done(key), "planning": "none", "session_id": key}
        assert_problem(api.request("POST", "/v1/runs", json=body), 503, "store_unavailable")
    writing.result()
    assert api.get(f"/v1/runs?session_id={key}")["runs"] == []
