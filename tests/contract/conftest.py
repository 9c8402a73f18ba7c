"""Fixtures of the contract tests."""

import pytest

from tests.support.api_client import Api
from tests.support.servers import ServerProcess


@pytest.fixture(params=["server", "openai_server"])
def any_server(request: pytest.FixtureRequest) -> ServerProcess:
    """Each way of cancelling: asking de2generator, and shutting the socket."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def api(server: ServerProcess, key: str) -> Api:
    """A user who has nothing yet: named after the test."""
    return server.api(key)
