"""`RUN…`: codes about training, its processes and its result."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
