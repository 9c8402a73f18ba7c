"""Alembic's entry: run by :func:`core.store.database.open_database`, on its connection."""

from alembic import context

from core.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
