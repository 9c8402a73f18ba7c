"""Work that does not listen: abandoned at a bounded time, fenced, and its place given to somebody else."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.agent.agent import Agent, Reply
from core.plan.scheduler import ABANDON_AFTER_S
from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.race_kit import Switch, check_nothing_left
from tests.support.servers import LocalServer, wait_until

LATE = "what came too late"


@pytest.fixture
def one_place(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server that runs one call at a time."""
    with LocalServer(tmp_path, models.url, call_threads=1) as server:
        yield server
        check_nothing_left(server)


class Deaf:
    """Work that waits for the test, whatever happens, and then says and returns something."""

    def __init__(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        self.switch = Switch()
        self.raised: list[BaseException] = []
        self._original: Callable[..., Reply] = agent.ask
        monkeypatch.setattr(agent, "ask", self._ask)

    def _ask(self, request: Any, asked: Any, port: Any) -> Reply:
        if "deaf" not in request().messages[-1]["content"]:
            return self._original(request, asked, port)
        asked.on_text("before. ", asked.scope)
        self.switch.hold()
        try:
            asked.on_text(LATE, asked.scope)
        except BaseException as error:
            self.raised.append(error)
        return Reply([LATE])


@pytest.fixture
def deaf(one_place: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Deaf:
    """The agent's work is deaf if the message says so."""
    return Deaf(one_place.main.agents["default"], monkeypatch)


def _stop(run: Run, deaf: Deaf) -> dict[str, Any]:
    deaf.switch.wait_reached()
    stopped_at = time.monotonic()
    answer = run.cancel(wait_ms=30_000)
    took_s = time.monotonic() - stopped_at
    assert ABANDON_AFTER_S - 0.1 < took_s < ABANDON_AFTER_S + 1.2
    assert (answer["stopped"], answer["parked"]) == (True, True)
    return answer


@pytest.mark.parametrize("planning", ["none", "auto"])
def test_deaf_work_is_abandoned_and_its_place_serves_the_next_message(
    one_place: LocalServer, deaf: Deaf, models: ModelServer, key: str, planning: str
) -> None:
    run = one_place.api().start("deaf", planning)
    answer = _stop(run, deaf)
    (item,) = answer["receipt"]
    assert (item["kind"], item["outcome"]) == ("goal", "abandoned")
    pool = one_place.main.engine.pool
    assert (pool.busy, pool.abandoned) == (0, 1)
    five_checks(run, models, key)  # while it is still at work
    deaf.switch.open()
    wait_until(lambda: pool.abandoned == 0, "the end of the abandoned thread")
    last = run.view()["last_seq"]
    assert LATE not in str(run.events(lambda event: event["seq"] == last))
    assert LATE not in str(run.transcript())
    five_checks(run, models, key)


def test_what_deaf_work_said_before_the_stop_stays_and_what_it_says_later_raises(
    one_place: LocalServer, deaf: Deaf, models: ModelServer, key: str
) -> None:
    run = one_place.api().start("deaf")
    _stop(run, deaf)
    deaf.switch.open()
    wait_until(lambda: bool(deaf.raised), "the late text to be refused")
    assert not isinstance(deaf.raised[0], Exception)
    assert run.transcript()[-1]["content"] == "before. "
    assert run.goals()["answer"]["status"] == "CANCELLED"
    assert run.goals()["answer"]["result"] is None
    five_checks(run, models, key)


def test_deaf_work_that_comes_back_in_time_is_cancelled_and_not_abandoned(
    one_place: LocalServer, deaf: Deaf, models: ModelServer, key: str
) -> None:
    run = one_place.api().start("deaf")
    deaf.switch.wait_reached()
    run.cancel()
    deaf.switch.open()
    run.wait_parked()
    (item,) = run.wait_event("turn_cancelled")["receipt"]
    assert item["outcome"] == "cancelled"
    assert LATE not in str(run.transcript())
    five_checks(run, models, key)


def test_the_goals_beside_deaf_work_are_told_as_they_ended(
    deaf: Deaf, one_place: LocalServer, models: ModelServer, key: str
) -> None:
    plan = {"goals": [
        {"id": "deaf", "prompt": "deaf"},
        {"id": "never", "prompt": script("silent", key=key)},
        {"id": "after", "prompt": script("silent", key=key), "depends_on": ["deaf"]},
    ]}  # fmt: skip
    run = one_place.api().start("work", plan=plan)
    receipt = _stop(run, deaf)["receipt"]
    assert {item["id"]: item["outcome"] for item in receipt} == {
        "deaf": "abandoned", "never": "not_started", "after": "not_started",
    }  # fmt: skip
    assert models.calls(key=key) == []
    deaf.switch.open()
    five_checks(run, models, key)


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_stops_of_deaf_work_do_not_use_up_the_places(
    one_place: LocalServer, models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("core.plan.scheduler.ABANDON_AFTER_S", 0.02)
    release = threading.Event()
    agent = one_place.main.agents["default"]
    original: Callable[..., Reply] = agent.ask

    def ask(request: Any, asked: Any, port: Any) -> Reply:
        if "deaf" in request().messages[-1]["content"]:
            assert release.wait(100), "nobody let the work go on"
        return original(request, asked, port)

    monkeypatch.setattr(agent, "ask", ask)
    pool = one_place.main.engine.pool
    run = one_place.api().start("deaf")
    seen = 0
    for number in range(1, count + 1):
        run.wait_event("goal_status", after=seen, status="IN_PROGRESS")
        assert run.cancel(wait_ms=30_000)["parked"] is True
        seen = run.view()["last_seq"]
        assert (pool.busy, pool.abandoned) == (0, number)
        if number < count:
            run.say("deaf")
    release.set()
    wait_until(lambda: pool.abandoned == 0, "the end of all of them")
    assert models.calls(key=key) == []
    five_checks(run, models, key)
