"""The connection to the store, and its migrations."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, text

#: Any constant that no other application on the same PostgreSQL uses for its advisory locks.
_MIGRATION_LOCK = 0x50595356

#: Execution option of an engine that writes; see ``_begin``.
WRITES: Final = "pythonserver_writes"


def open_database(url: str | None, data_dir: Path) -> Engine:
    """The engine for ``url``, or for ``data_dir/pythonserver.db``; its schema is up to date on return."""
    data_dir.mkdir(parents=True, exist_ok=True)
    url = url or f"sqlite:///{data_dir / 'pythonserver.db'}"
    engine = _sqlite(url) if url.startswith("sqlite:") else create_engine(url, pool_size=16)
    with _migration_lock(engine, data_dir):
        _migrate(engine)
    return engine


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, pool_size=16, max_overflow=64)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        # The driver's own implicit BEGIN would break savepoints; SQLAlchemy begins explicitly (below).
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=5000", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # The writer reads before it writes; taking the write lock only then would not wait for busy_timeout.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")

    return engine


def _migrate(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()


@contextlib.contextmanager
def _migration_lock(engine: Engine, data_dir: Path) -> Iterator[None]:
    """One server migrates at a time; the lock goes with the process or the connection, however they end."""
    if engine.dialect.name == "sqlite":
        with open(data_dir / "migration.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})
