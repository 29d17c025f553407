"""`NET…`: codes about tcp links and ports."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
