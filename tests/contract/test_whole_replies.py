"""A model server that answers a streamed request in one piece, and one that says when to come back."""

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.servers import LocalServer

PROVIDERS = ("de2generator", "openai", "anthropic")


@pytest.fixture(scope="module", params=PROVIDERS)
def server(
    request: pytest.FixtureRequest, models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server for each kind of provider, with a tool."""
    url = models.url + ("/v1" if request.param == "openai" else "")
    settings = {"llm_provider": request.param, "llm_api_key": "none", "tools_allowed": ("shell",)}
    with LocalServer(tmp_path_factory.mktemp("whole"), url, **settings) as local:
        yield local


def test_an_answer_in_one_piece_is_an_answer(server: LocalServer, models: ModelServer, key: str) -> None:
    run = server.api(key).start(script("nonstream", delay_ms=10, tokens=3, key=key))
    run.wait_parked()
    assert run.transcript()[-1]["content"] == "t1 t2 t3 "
    five_checks(run, models, key)


def test_tool_calls_in_one_piece_are_called_and_answered(server: LocalServer, models: ModelServer, key: str) -> None:
    line = script("toolcall", whole=1, text=1, count=2, tokens=2, interval_ms=0, arguments={"command": "echo hi"}, key=key)
    run = server.api(key).start(line)
    events = run.events()
    results = [event["content"] for event in events if event["type"] == "tool_result"]
    assert len(results) == 2
    assert all("hi" in result for result in results)
    assert [message["role"] for message in run.transcript()] == ["user", "assistant", "tool", "tool", "assistant"]
    assert run.transcript()[-1]["content"] == "t1 t2 "
    five_checks(run, models, key)


def test_a_stop_before_the_one_piece_comes(server: LocalServer, models: ModelServer, key: str) -> None:
    run = server.api(key).start(script("nonstream", delay_ms=60_000, key=key))
    models.wait_open(1, key=key)
    assert run.cancel(wait_ms=30_000)["parked"] is True
    five_checks(run, models, key)


@pytest.mark.parametrize("is_date", [False, True], ids=["seconds", "date"])
@pytest.mark.parametrize(("seconds", "is_capped"), [(300_000, True), (45, False)])
def test_the_wait_that_a_server_asks_for_is_shown_capped_and_over_at_once_when_stopped(
    server: LocalServer, models: ModelServer, key: str, seconds: int, is_capped: bool, is_date: bool
) -> None:
    wish = formatdate(time.time() + seconds, usegmt=True) if is_date else seconds
    run = server.api(key).start(script("busy", retry_after_s=wish, key=key))
    retry = run.wait_event("retry")
    assert retry["capped"] is is_capped
    if is_capped:
        assert retry["wait_ms"] == 60_000
    else:
        assert 20_000 < retry["wait_ms"] <= 45_000
    answer = run.cancel(wait_ms=30_000)
    assert answer["parked"] is True
    (wait,) = (item for item in answer["receipt"] if item["kind"] == "wait")
    assert wait["outcome"] == "cancelled"
    assert wait["took_ms"] < 1000
    assert len(models.calls(key=key)) == 1
    five_checks(run, models, key)


@pytest.mark.parametrize("status", [401, 500])
def test_a_web_page_in_place_of_an_error_is_not_shown(
    server: LocalServer, models: ModelServer, key: str, status: int
) -> None:
    run = server.api(key).start(script("html", status=status, key=key))
    error = run.wait_event("turn_failed" if status == 401 else "retry")
    words = error["error"] if status == 401 else error["reason"]
    assert "HTML" in words
    assert "<" not in words
    assert len(words) < 500
    run.cancel(wait_ms=30_000)
    five_checks(run, models, key)
