"""Fixtures of the race tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.model_server import ModelServer
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process, whose gates a test can hold; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url) as server:
        yield server
        check_nothing_left(server)
