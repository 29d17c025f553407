"""`ENV…`: codes about facts of replicas and how they match."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
