"""The fixtures that make hosts. Where the machine cannot, tests fail and say so: they never skip silently."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import MakeHosts, making

# The stand-in for a training environment is the service tests' own.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "service"))


@pytest.fixture
def hosts() -> Iterator[MakeHosts]:
    """A function: `hosts(3)` makes three hosts, see `namespaces.hosts`; they end with the test."""
    with making() as make:
        yield make


@pytest.fixture(scope="module")
def module_hosts() -> Iterator[MakeHosts]:
    """As `hosts`, for hosts that all tests of a file share."""
    with making() as make:
        yield make
