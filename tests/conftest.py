"""Fixtures for all tests: one gateway a session, a server of each kind, a key that keeps parallel tests apart."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.model_server import ModelServer
from tests.support.servers import LocalServer, ServerProcess

#: Part of a test's name -> what the tests with it share, too dear to have in several processes.
SHARED = {"tests/browser/": "chromium", "[postgresql": "PostgreSQL"}

#: Seconds that a test of the long suites may take.
LONG_S = 1800

_keys = itertools.count(1)


class _ByFile(LoadFileScheduling):
    """Where several processes run the tests, a file is one's: its servers are started once."""

    def _split_scope(self, nodeid: str) -> str:
        found = [shared for part, shared in SHARED.items() if part in nodeid]
        return found[0] if found else super()._split_scope(nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``spread(3)``: every third row of a test's table is for each run, all of them for the long suites. With
    ``of="file"`` the rows are the tests of a file.
    """
    rows: Counter[str] = Counter()
    for item in items:
        spread = item.get_closest_marker("spread")
        if spread is None:
            continue
        table = item.nodeid.partition("::" if spread.kwargs.get("of") == "file" else "[")[0]
        if rows[table] % spread.args[0]:
            item.add_marker(pytest.mark.slow)
        rows[table] += 1
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """How pytest-xdist deals them out."""
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def models() -> Iterator[ModelServer]:
    """A gateway that is strict about every request."""
    with ModelServer(strict=True) as server:
        yield server


@pytest.fixture
def key() -> str:
    """Marks this test's calls in the gateway's log."""
    return f"k{os.getpid()}-{next(_keys)}"


@pytest.fixture(scope="session")
def server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server process in front of the gateway, shared by the tests that do not end it."""
    with ServerProcess(tmp_path_factory.mktemp("server"), models.url) as process:
        yield process


@pytest.fixture(scope="session")
def openai_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same with the gateway as a plain OpenAI-compatible server: stopped by shutting the socket."""
    folder = tmp_path_factory.mktemp("openai-server")
    with ServerProcess(folder, f"{models.url}/v1", LLM_PROVIDER="openai") as process:
        yield process


@pytest.fixture(scope="session")
def anthropic_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same with the gateway as a server of the Anthropic Messages API."""
    folder = tmp_path_factory.mktemp("anthropic-server")
    with ServerProcess(folder, models.url, LLM_PROVIDER="anthropic", LLM_API_KEY="a-test-key") as process:
        yield process


@pytest.fixture
def local(models: ModelServer, tmp_path: Path) -> Iterator[LocalServer]:
    """A server in this process, whose gates a test can hold."""
    with LocalServer(tmp_path, models.url) as server:
        yield server
