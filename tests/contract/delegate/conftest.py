"""Servers whose agents may delegate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import Api
from tests.support.model_server import ModelServer
from tests.support.race_kit import check_nothing_left
from tests.support.servers import LocalServer, ServerProcess


@pytest.fixture(scope="module")
def delegating(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose agents may delegate, and use the shell."""
    folder = tmp_path_factory.mktemp("delegating")
    with ServerProcess(folder, models.url, TOOLS_ALLOWED="delegate,shell") as process:
        yield process


@pytest.fixture
def user(delegating: ServerProcess, key: str) -> Api:
    """A user of that server."""
    return delegating.api(key)


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process whose agents may delegate; afterwards nothing may be left in it."""
    with LocalServer(tmp_path, models.url, tools_allowed=("delegate",)) as server:
        yield server
        check_nothing_left(server)


@pytest.fixture
def one_place(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """The same with one place for calls."""
    with LocalServer(tmp_path, models.url, tools_allowed=("delegate",), call_threads=1) as server:
        yield server
        check_nothing_left(server)
