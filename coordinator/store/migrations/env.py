"""Alembic's entry: runs the revisions on the connection that `migrations.config` was given."""

from __future__ import annotations

from alembic import context

from coordinator.store.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,
    compare_type=True,
    transactional_ddl=True,
)

with context.begin_transaction():
    context.run_migrations()
