"""Readers that come in a crowd are let in a few at a time, so that everybody else finds the server free."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.v1 import events
from tests.support.api_client import Api
from tests.support.core_kit import Started
from tests.support.model_server import ModelServer
from tests.support.plans import say_done, start_silent
from tests.support.servers import LocalServer, wait_until


@pytest.fixture
def full_doors() -> Iterator[list[None]]:
    """Others stand in every door, until the list is emptied."""
    others: list[None] = []
    for _ in range(events.DOORS):
        assert events._doors.acquire(timeout=10)
        others.append(None)
    yield others
    _let_go(others)


def _let_go(others: list[None]) -> None:
    while others:
        others.pop()
        events._doors.release()


def test_while_readers_wait_in_line_a_stop_is_answered_and_then_they_see_it(
    local: LocalServer, models: ModelServer, key: str, full_doors: list[None]
) -> None:
    api = local.api()
    run = start_silent(api, models, key)
    reading = Started(run.events)
    assert local.api().post("/stopplan")["stopped"] is True
    assert not reading.future.done()
    _let_go(full_doors)
    assert [event["type"] for event in reading.result()][-2:] == ["turn_cancelled", "awaiting_input"]


def test_nobody_stays_in_a_door_whatever_the_answer_is(local: LocalServer, models: ModelServer, key: str) -> None:
    run = local.api().start(say_done(key))
    run.wait_parked()
    path = f"{run.path}/events"
    for api, wanted, status in (
        (run.api, f"{path}?after=x", 422), (run.api, f"{path}?befor=1", 422), (run.api, "/v1/runs/r_0/events", 404),
        (local.api("bob"), path, 404), (Api(local.url, "no token"), path, 401),
    ):  # fmt: skip
        for _ in range(events.DOORS + 1):
            assert api.request("GET", wanted).status_code == status
    with run.stream() as one, run.stream() as other, run.stream() as third:  # open streams are through the door
        for reader in (one, other, third):
            reader.collect_type("awaiting_input")
        wait_until(lambda: events._doors._value == events.DOORS, "the doors are free")
