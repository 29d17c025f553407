"""`SYS…`: codes about the service itself: membership, stores, access."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
