"""A server whose turns at work are talked to."""

from collections.abc import Iterator

import pytest

from tests.support.api_client import Api
from tests.support.model_server import ModelServer
from tests.support.servers import LocalServer
from tests.support.steering import check_quiet, talking_server


@pytest.fixture(scope="module")
def talking(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server for all tests of a file that do not end it."""
    with talking_server(tmp_path_factory.mktemp("talking"), models.url) as server:
        yield server


@pytest.fixture
def user(talking: LocalServer, key: str) -> Iterator[Api]:
    """A user who has nothing yet; nothing is left of the test."""
    yield talking.api(key)
    check_quiet(talking)
