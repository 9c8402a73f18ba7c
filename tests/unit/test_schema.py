"""The schema of the store: a database that is made at once is the one that the migrations make."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from core.store import schema
from core.store.database import open_database
from core.store.schema import NEWEST, migrate
from core.store.tables import metadata

MIGRATIONS = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
#: From the oldest to the newest.
REVISIONS = [script.revision for script in reversed(list(MIGRATIONS.walk_revisions()))]


@pytest.fixture
def engine(store_url: str | None, tmp_path: Path) -> Iterator[Engine]:
    """An empty database; where it is SQLite, the file in the test's folder that a server would open."""
    made = create_engine(store_url or f"sqlite:///{tmp_path / 'pythonserver.db'}")
    yield made
    made.dispose()


def _shape(connection: Connection) -> dict[str, Any]:
    """Every table with all that it consists of, whatever order its columns are in."""
    look = inspect(connection)
    return {name: _table(look, name) for name in look.get_table_names()}


def _table(look: Any, name: str) -> dict[str, Any]:
    # A reflected SQL condition is an object of its own each time.
    return {
        "columns": {
            each["name"]: (str(each["type"]), each["nullable"], each["default"], each.get("autoincrement"))
            for each in look.get_columns(name)
        },
        "primary key": look.get_pk_constraint(name)["constrained_columns"],
        "foreign keys": sorted(
            (each["constrained_columns"], each["referred_table"], each["referred_columns"])
            for each in look.get_foreign_keys(name)
        ),
        "unique": sorted(each["column_names"] for each in look.get_unique_constraints(name)),
        "indexes": sorted(
            (each["name"], each["column_names"], each["unique"], _conditions(each)) for each in look.get_indexes(name)
        ),
        "options": {key: str(value) for key, value in look.get_table_options(name).items()},
    }


def _conditions(index: dict[str, Any]) -> list[str]:
    found = index.get("dialect_options", {})
    return sorted(f"{key} {value}" for key, value in found.items())


def _open(url: str | None, folder: Path) -> dict[str, Any]:
    """The shape of the database after a server has opened it."""
    opened = open_database(url, folder)
    with opened.connect() as connection:
        assert connection.scalars(text("SELECT version_num FROM alembic_version")).all() == [NEWEST]
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        shape = _shape(connection)
    opened.dispose()
    return shape


def _migrate(engine: Engine, revision: str) -> dict[str, Any]:
    with engine.connect() as connection:
        migrate(connection, revision)
        connection.commit()
        return _shape(connection)


def test_the_newest_schema_is_that_of_the_last_migration() -> None:
    assert MIGRATIONS.get_heads() == [NEWEST]
    assert REVISIONS[-1] == NEWEST


def test_an_empty_database_gets_the_schema_that_the_migrations_make(
    engine: Engine, store_url: str | None, tmp_path: Path
) -> None:
    made = _open(store_url, tmp_path)
    assert len(made) > 5
    with engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))

    assert _migrate(engine, NEWEST) == made


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_of_an_older_version_is_brought_up_to_date_and_keeps_its_rows(
    engine: Engine, store_url: str | None, tmp_path: Path, revision: str
) -> None:
    _migrate(engine, revision)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO sessions (id, tenant, owner, created_at) VALUES ('s', 't', 'o', 1.5)"))

    shape = _open(store_url, tmp_path)

    with engine.connect() as connection:
        assert connection.execute(text("SELECT id, tenant, owner, created_at FROM sessions")).all() == [
            ("s", "t", "o", 1.5)
        ]
        assert _shape(connection) == shape
        metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
        connection.commit()
    assert _open(store_url, tmp_path) == shape  # made anew


def test_a_start_with_nothing_to_migrate_does_not_load_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from core.store.database import open_database\n"
        "for _ in range(2): open_database(None, Path(sys.argv[1])).dispose()\n"
        "print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
