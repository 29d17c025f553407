"""The store: SQLModel tables, queries, streams, one group-commit writer, Alembic migrations."""

from coordinator.store.engine import is_server
from coordinator.store.errors import Fenced, StoreClosed, StoreConflict, StoreError
from coordinator.store.store import Store

__all__ = ["Fenced", "Store", "StoreClosed", "StoreConflict", "StoreError", "is_server"]
