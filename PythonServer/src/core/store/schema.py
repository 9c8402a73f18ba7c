"""The schema of the store: made at once in an empty database, brought up to date by migrations in an older one.

Alembic is loaded only where there is something to migrate: it takes a fifth of a start.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, Index, MetaData, String, Table, insert, inspect, select
from sqlalchemy.schema import CreateIndex, CreateTable

from core.store.tables import metadata

#: The newest of the migrations. A database that is made from :mod:`core.store.tables` has it.
NEWEST: Final = "0004"

#: As Alembic makes it.
_version: Final = Table("alembic_version", MetaData(), Column("version_num", String(32), nullable=False, primary_key=True))


class UnknownSchema(Exception):
    """The database was made by another version of this server."""


def bring_up_to_date(connection: Connection) -> None:
    """Make or migrate the tables; the caller commits, and sees to it that nobody else does the same meanwhile."""
    found = inspect(connection).get_table_names()
    if not found:
        _make(connection)
        _version.create(connection)
        connection.execute(insert(_version).values(version_num=NEWEST))
    elif "alembic_version" not in found or connection.scalars(select(_version.c.version_num)).all() != [NEWEST]:
        migrate(connection, NEWEST)


def _make(connection: Connection) -> None:
    """Tables and indexes, always in the same order: of two indexes that fit a query, SQLite takes the one made last, and
    those over some of the rows only are made for the queries that they fit.
    """
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table))
        for index in sorted(table.indexes, key=_order):
            connection.execute(CreateIndex(index))


def _order(index: Index) -> tuple[bool, str]:
    is_partial = index.dialect_options["sqlite"].get("where") is not None
    return is_partial, str(index.name)


def migrate(connection: Connection, revision: str) -> None:
    """Run the migrations up to ``revision``. ``UnknownSchema`` if the database is at none of them."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise UnknownSchema from error
