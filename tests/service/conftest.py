"""What service tests share: a PostgreSQL server that is started when the first asks for it, stores, and a small disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql import Server
from small import disk_of

from coordinator.store import Store


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rankcall.db"
    database: str = request.getfixturevalue("postgresql").database()
    return database


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Empty, on each kind of database."""
    opened = Store.open(database_url)
    yield opened
    opened.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", "4m") as disk:
        yield disk
