"""A stop in every phase of a model call, over real sockets, against a real server process."""

import time

import pytest

from tests.support.api_client import Run
from tests.support.five_checks import five_checks
from tests.support.model_server import ModelServer, script
from tests.support.servers import ServerProcess


@pytest.fixture(params=["server", "openai_server"])
def any_server(request: pytest.FixtureRequest) -> ServerProcess:
    """Each way of cancelling: asking de2generator, and shutting the socket."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found


def _stop(run: Run) -> float:
    stopped_at = time.time()
    answer = run.cancel()
    assert answer["stopped"] is True
    return stopped_at


def test_a_stop_in_the_middle_of_a_stream_closes_it_and_at_most_two_more_tokens_are_written(
    any_server: ServerProcess, models: ModelServer, key: str
) -> None:
    run = any_server.api().start(script("trickle", tokens=400, interval_ms=50, key=key))
    models.wait_tokens(10, key=key)
    stopped_at = _stop(run)
    (call,) = models.wait_closed(1, key=key)
    assert call.closed_at is not None
    assert call.closed_at - stopped_at < 0.5
    assert call.tokens_after(stopped_at) <= 2
    five_checks(run, models, key)
