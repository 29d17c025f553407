"""The store: SQLModel tables, queries, streams, one group-commit writer, Alembic migrations."""

from coordinator.store.errors import StoreClosed, StoreConflict, StoreError
from coordinator.store.store import Store

__all__ = ["Store", "StoreClosed", "StoreConflict", "StoreError"]
