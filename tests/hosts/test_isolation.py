"""A failed collective is taken apart on real hosts until the replica or the link behind it is named."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from handshake import Handshake, probers
from namespaces import MakeHosts

pytestmark = pytest.mark.hosts

ROUND_S = 4.0


@pytest.fixture(scope="module")
def four(module_hosts: MakeHosts) -> Iterator[Handshake]:
    with probers(module_hosts(4)) as handshake:
        handshake.warm()
        yield handshake


@pytest.fixture
def handshake(four: Handshake) -> Iterator[Handshake]:
    yield four
    for prober in four.probers:
        prober.host.clear()


def rank(number: int) -> str:
    return f"r-{number:010d}"


def test_a_dead_link_is_named_and_both_its_ends_are_proven(handshake: Handshake) -> None:
    hosts = [prober.host for prober in handshake.probers]
    hosts[3].drop_from(hosts[1])
    verdict, (found,) = handshake.isolate(ROUND_S)
    assert (verdict.kind, verdict.links, verdict.replicas) == ("named", ((rank(1), rank(3)),), ())
    assert set(verdict.proven) == {rank(number) for number in range(4)}
    assert (found.code, found.replica) == ("COL021", None)
    assert "rank 1 (host-2) and rank 3 (host-4)" in found.message


def test_a_replica_that_loses_large_packets_is_named(handshake: Handshake) -> None:
    handshake.probers[2].host.drop_large()
    verdict, (found,) = handshake.isolate(ROUND_S)
    assert (verdict.kind, verdict.replicas, verdict.links) == ("named", (rank(2),), ())
    assert (found.code, found.replica) == ("COL020", rank(2))


def test_a_fault_that_is_gone_is_called_transient(handshake: Handshake) -> None:
    master = handshake.probers[0].host
    master.iptables("-A", "INPUT", "-p", "tcp", "-j", "DROP")
    began = time.monotonic()
    broken = handshake.collective(2.0)
    assert not any(result.ok for result in broken.values())
    assert time.monotonic() - began < 3.0
    master.clear()
    replicas = tuple(member.replica_id for member in handshake.members)
    verdict, (found,) = handshake.isolate(20.0, among_all=broken)
    assert (verdict.kind, found.code, found.severity) == ("transient", "COL023", "warning")
    assert set(verdict.proven) == set(replicas)
