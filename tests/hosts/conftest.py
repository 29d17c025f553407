"""The fixture that makes hosts. Where the machine cannot, tests fail and say so: they never skip silently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from namespaces import CannotMakeHosts, Host
from namespaces import hosts as made

MakeHosts = Callable[..., tuple[Host, ...]]


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


@contextlib.contextmanager
def making() -> Iterator[MakeHosts]:
    with contextlib.ExitStack() as stack:

        def make(
            count: int, *, ipv4: bool = True, ipv6: bool = False, outside: bool = False
        ) -> tuple[Host, ...]:
            try:
                return stack.enter_context(made(count, ipv4=ipv4, ipv6=ipv6, outside=outside))
            except CannotMakeHosts as problem:
                pytest.fail(f"this machine cannot stand for several hosts: {problem}")

        yield make
