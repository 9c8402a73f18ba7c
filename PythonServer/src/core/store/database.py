"""The connection to the store, and its migrations."""

import contextlib
import fcntl
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from core.errors import ConfigurationError
from core.store.schema import UnknownSchema, bring_up_to_date

#: Any constant that no other application on the same PostgreSQL uses for its advisory locks.
_MIGRATION_LOCK = 0x50595356

#: Execution option of an engine that writes; see ``_begin``.
WRITES: Final = "pythonserver_writes"


def open_database(url: str | None, data_dir: Path) -> Engine:
    """The engine for ``url``, or for ``data_dir/pythonserver.db``; its schema is up to date on return.

    ``ConfigurationError`` if it cannot be used: nobody answers, it is no database, it takes no writes, it is newer.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    url = url or f"sqlite:///{data_dir / 'pythonserver.db'}"
    engine = _sqlite(url) if url.startswith("sqlite:") else create_engine(url, pool_size=16, hide_parameters=True)
    try:
        with _migration_lock(engine, data_dir), engine.connect() as connection:
            bring_up_to_date(connection)
            connection.commit()
        with engine.execution_options(**{WRITES: True}).begin() as connection:
            # A database may be open for reading only, and says so at the first write, of no row even.
            connection.execute(text("DELETE FROM alembic_version WHERE 1 = 0"))
    except UnknownSchema:
        engine.dispose()
        raise ConfigurationError(
            f"{_shown(engine)} was made by another version of this server, and this one does not know its schema: "
            "start that version, or set another DATA_DIR or DATABASE_URL"
        ) from None
    except DBAPIError as error:
        engine.dispose()
        reason = " ".join(str(error.orig).split())
        raise ConfigurationError(
            f"{_shown(engine)} cannot be used ({reason}): mend that, or set another DATA_DIR or DATABASE_URL"
        ) from None
    return engine


def is_busy(error: Exception) -> bool:
    """Whether another process holds the SQLite file, and was waited for: whoever tries again waits as long again."""
    code = getattr(error.orig, "sqlite_errorcode", 0) if isinstance(error, DBAPIError) else 0
    return code & 0xFF == sqlite3.SQLITE_BUSY


def _shown(engine: Engine) -> str:
    """The database as a start's refusal names it, without its password."""
    return f"the database {engine.url.render_as_string(hide_password=True)}"


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, pool_size=16, max_overflow=64, hide_parameters=True)

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
