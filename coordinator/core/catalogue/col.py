"""`COL…`: codes about the collective check."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
