"""What service tests share: a PostgreSQL server that is started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgresql import Server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with Server() as server:
        yield server
