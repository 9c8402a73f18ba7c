"""Fixtures of the contract tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_client import Api
from tests.support.launched import Launch, Launched
from tests.support.model_server import ModelServer
from tests.support.servers import Restart, ServerProcess


@pytest.fixture(params=["server", "openai_server"])
def any_server(request: pytest.FixtureRequest) -> ServerProcess:
    """Each way of cancelling: asking de2generator, and shutting the socket."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def api(server: ServerProcess, key: str) -> Api:
    """A user who has nothing yet: named after the test."""
    return server.api(key)


@pytest.fixture
def own(models: ModelServer, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may end."""
    with ServerProcess(tmp_path, models.url) as process:
        yield process


@pytest.fixture
def own_shell(models: ModelServer, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the shell that the test may end."""
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="shell") as process:
        yield process


@pytest.fixture
def own_asking(models: ModelServer, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose agents may ask, and that the test may end."""
    with ServerProcess(tmp_path, models.url, TOOLS_ALLOWED="ask_user,delegate,shell") as process:
        yield process


@pytest.fixture(params=["kill", "terminate"])
def restart(own_asking: ServerProcess, request: pytest.FixtureRequest) -> Restart:
    """Each way in which the server whose agents may ask goes."""

    def end_and_start() -> None:
        getattr(own_asking, request.param)()
        own_asking.start()

    return end_and_start


@pytest.fixture(scope="session")
def shell_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the shell, shared by the tests that do not end it."""
    with ServerProcess(tmp_path_factory.mktemp("shell-server"), models.url, TOOLS_ALLOWED="shell") as process:
        yield process


@pytest.fixture(scope="session")
def anthropic_server(models: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that speaks Anthropic's Messages API with the gateway."""
    folder = tmp_path_factory.mktemp("anthropic-server")
    with ServerProcess(folder, models.url, LLM_PROVIDER="anthropic", LLM_API_KEY="none") as process:
        yield process


@pytest.fixture(params=["server", "openai_server", "anthropic_server"])
def each_provider(request: pytest.FixtureRequest) -> ServerProcess:
    """A server of each kind of provider."""
    found: ServerProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts ``python -m api`` as often as it is called; all that is left of it ends with the test."""
    started: list[Launched] = []

    def start(*arguments: str, program: str | None = None, **variables: str) -> Launched:
        started.append(Launched(tmp_path, *arguments, program=program, **variables))
        return started[-1]

    yield start
    for server in started:
        server.close()
