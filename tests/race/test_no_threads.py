"""A system that has no thread left for a turn, for a while: the turn waits for one, and can be stopped meanwhile."""

import threading

import pytest

from core.engine import embedded
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.plans import say_done, start_silent
from tests.support.servers import LocalServer


class Refusals:
    """How many threads of this name the system still refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = 0
        self.refused = threading.Event()

    def is_refused(self, thread: threading.Thread) -> bool:
        if not self.left or not thread.name.startswith(self.name):
            return False
        self.left -= 1
        self.refused.set()
        return True


def _refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> Refusals:
    refusals, start = Refusals(name), threading.Thread.start

    def maybe(thread: threading.Thread) -> None:
        if refusals.is_refused(thread):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", maybe)
    return refusals


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "RETRY_START_S", 0.05)


def test_a_turn_without_a_thread_gets_one_later_and_its_place_is_not_lost(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = local.main.engine
    places = engine._free_starts
    refusals = _refuse(monkeypatch, "turn-")
    refusals.left = 3
    runs = [local.api().start(say_done(f"{key}-{number}")) for number in range(3)]
    assert [run.wait_parked() for run in runs] == ["awaiting_input"] * 3
    assert refusals.left == 0
    assert engine._free_starts == places
    for number, run in enumerate(runs):
        five_checks(run, models, f"{key}-{number}")


def test_a_turn_that_is_stopped_while_it_has_no_thread_ends_when_there_is_one_and_asks_no_model(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = _refuse(monkeypatch, "turn-")
    refusals.left = 1_000_000
    run = local.api().start(say_done(key))
    assert refusals.refused.is_set()
    stopped = run.cancel()
    assert (stopped["stopped"], stopped["parked"]) == (True, False)
    refusals.left = 0
    assert run.wait_parked() == "awaiting_input"
    assert models.calls(key=key) == []
    five_checks(run, models, key)


def test_the_next_turn_without_a_thread_does_not_hold_up_the_end_of_the_one_before(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_silent(local.api(), models, key)
    run.say(say_done(key))
    refusals = _refuse(monkeypatch, "turn-")
    refusals.left = 3
    assert run.cancel(wait_ms=30_000)["parked"] is True
    run.say(say_done(key))  # lets go on what the stop has held
    run.wait_event("turn_completed")
    run.wait_parked()
    assert refusals.left == 0
    five_checks(run, models, key)


def test_a_deadline_without_a_thread_stops_the_turn_a_little_later(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = _refuse(monkeypatch, "deadline")
    refusals.left = 2
    run = local.api().start(script("silent", key=key), deadline_ms=100)
    assert run.wait_event("turn_cancelled")["cause"] == "deadline"
    assert refusals.left == 0
    run.wait_parked()
    five_checks(run, models, key)


def test_a_shutdown_without_threads_stops_the_turns_one_after_the_other(
    local: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [start_silent(local.api(), models, f"{key}-{number}") for number in range(2)]
    refusals = _refuse(monkeypatch, "shutdown")
    refusals.left = 2
    local.main.engine.shut_down()
    assert local.main.engine.wait_parked(30)
    assert refusals.left == 0
    assert [run.wait_event("turn_cancelled")["cause"] for run in runs] == ["shutdown"] * 2
