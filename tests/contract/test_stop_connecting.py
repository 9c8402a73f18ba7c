"""A stop before the request has reached the model server: while connecting, and at a server that only listens."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.front import Front
from tests.support.model_server import ModelServer, script
from tests.support.raw_server import black_hole
from tests.support.servers import ServerProcess, wait_until
from tests.support.sockets import count_connections


@pytest.fixture(params=["de2generator", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    """Which way of cancelling."""
    found: str = request.param
    return found


@pytest.fixture
def front(models: ModelServer) -> Iterator[Front]:
    """A door before the gateway."""
    with Front(models.url) as door:
        yield door


def _server(folder: Path, url: str, provider: str) -> ServerProcess:
    return ServerProcess(folder, url + ("/v1" if provider == "openai" else ""), LLM_PROVIDER=provider)


def _assert_stops_at_once(run: Run) -> None:
    asked_at = time.monotonic()
    answer = run.cancel(wait_ms=30_000)
    assert time.monotonic() - asked_at < 2
    assert answer["parked"] is True
    assert [item["outcome"] for item in answer["receipt"] if item["kind"] == "model_call"] == ["aborted"]


def test_a_stop_while_a_server_lets_in_and_never_answers_is_bounded_and_the_next_message_works(
    front: Front, models: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    with _server(tmp_path, front.url, provider) as server:
        front.swallow()
        run = server.api().start(script("strict", key=key))
        front.wait_arrived(1)
        _assert_stops_at_once(run)
        assert models.calls(key=key) == []
        front.open()
        five_checks(run, models, key)


def test_a_stop_while_no_connection_comes_about_is_bounded_and_the_next_message_works(
    models: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    with contextlib.ExitStack() as stack:
        with black_hole() as port:
            server = stack.enter_context(_server(tmp_path, f"http://127.0.0.1:{port}", provider))
            run = server.api().start(script("strict", key=key))
            wait_until(lambda: _is_connecting(server, port), "the server connects to the model server")
            _assert_stops_at_once(run)
            wait_until(lambda: not _is_connecting(server, port), "the attempt to connect ends")
        stack.enter_context(Front(models.url, port))
        five_checks(run, models, key)


def test_a_stop_while_planning_at_a_server_that_never_answers_is_bounded(
    front: Front, models: ModelServer, tmp_path: Path, key: str, provider: str
) -> None:
    with _server(tmp_path, front.url, provider) as server:
        front.swallow()
        run = server.api().start(script("strict", key=key), planning="auto")
        front.wait_arrived(1)
        _assert_stops_at_once(run)
        front.open()
        five_checks(run, models, key)


def _is_connecting(server: ServerProcess, port: int) -> bool:
    return count_connections(server, f"http://127.0.0.1:{port}")["SYN_SENT"] > 0
