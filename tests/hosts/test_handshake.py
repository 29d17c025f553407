"""Faults in real networks, each ending in time with a finding that names the right replica or link."""

from __future__ import annotations

import errno
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from handshake import PORT, Handshake, probers
from namespaces import Host, MakeHosts

from coordinator.core.process import every_process
from coordinator.core.protocol import Address, Finding
from coordinator.preflight.address import settle

pytestmark = pytest.mark.hosts

DEADLINE_S = 7.0


def rank(number: int) -> str:
    return f"r-{number:010d}"


def errors(findings: tuple[Finding, ...]) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.replica) for finding in findings if finding.severity == "error"]


@pytest.fixture(scope="module")
def warm_handshake(module_hosts: MakeHosts) -> Iterator[Handshake]:
    """Three hosts whose probers have torch imported, shared by the tests of the collective."""
    with probers(module_hosts(3)) as handshake:
        handshake.warm()
        yield handshake


@pytest.fixture
def warm(warm_handshake: Handshake) -> Iterator[Handshake]:
    yield warm_handshake
    for prober in warm_handshake.probers:
        prober.host.clear()
        prober.process.send_signal(signal.SIGCONT)
        prober.settle(15)
    assert not _rounds_running(warm_handshake), "no round is left running"


def test_healthy_hosts_pass_tcp_and_collective(warm: Handshake) -> None:
    assert warm.judged_tcp() == ()
    results = warm.collective()
    assert len(results) == len(warm.members)
    assert all(result.ok and result.values_ok for result in results.values()), results
    assert warm.judged_collective() == ()


def test_hosts_with_ipv6_only_pass(hosts: MakeHosts) -> None:
    with probers(hosts(2, ipv4=False, ipv6=True), family="ipv6") as handshake:
        assert handshake.judged_tcp() == ()
        handshake.warm()
        assert errors(handshake.judged_collective()) == []


Break = Callable[[tuple[Host, ...]], None]


def drop_one_direction(hosts: tuple[Host, ...]) -> None:
    hosts[2].drop_from(hosts[1])


def reject_one_link(hosts: tuple[Host, ...]) -> None:
    hosts[2].reject_from(hosts[1])
    hosts[1].reject_from(hosts[2])


def reject_one_direction(hosts: tuple[Host, ...]) -> None:
    hosts[2].reject_from(hosts[1])


def lose_large_packets(hosts: tuple[Host, ...]) -> None:
    hosts[2].drop_large()


def open_listed_ports_only(hosts: tuple[Host, ...]) -> None:
    hosts[2].open_only(8000, PORT)


def open_listed_ports_everywhere(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        host.open_only(8000, PORT)


def pull_the_plug(hosts: tuple[Host, ...]) -> None:
    hosts[2].ip("link", "set", "eth0", "down")


@pytest.mark.parametrize(
    ("broken", "code", "replica"),
    [
        (drop_one_direction, "NET005", None),
        (reject_one_link, "NET004", None),
        (reject_one_direction, "NET005", None),
        (lose_large_packets, "NET011", rank(2)),
        (open_listed_ports_only, "NET002", rank(2)),
        (open_listed_ports_everywhere, "NET006", None),
        (pull_the_plug, "NET001", rank(2)),
    ],
)
def test_a_broken_network_is_named(hosts: MakeHosts, broken: Break, code: str, replica: str | None) -> None:
    made = hosts(4)
    with probers(made) as handshake:
        broken(made)
        findings = handshake.judged_tcp(DEADLINE_S)
        assert handshake.took_s < DEADLINE_S
        assert errors(findings) == [(code, replica)], findings
        if "one" in broken.__name__:
            assert findings[0].evidence["replicas"] == [rank(1), rank(2)]


PROXY = """
import socket, sys
# Accepts for every address and says nothing, as a sidecar whose upstream hangs.
server = socket.create_server(("0.0.0.0", 15001))
kept = []
while True:
    kept.append(server.accept())
"""


def test_a_proxy_that_accepts_and_says_nothing_is_told_from_a_dead_replica(hosts: MakeHosts) -> None:
    made = hosts(3)
    with probers(made) as handshake:
        made[1].popen([sys.executable, "-c", PROXY])
        # What a sidecar does: what comes in for any port is turned to the proxy.
        made[1].iptables(
            "-t", "nat", "-A", "PREROUTING", "-d", made[1].address, "-p", "tcp", "-j", "REDIRECT",
            "--to-ports", "15001",
        )  # fmt: skip
        time.sleep(0.5)
        findings = handshake.judged_tcp(DEADLINE_S)
        assert errors(findings) == [("NET010", rank(1))], findings


def test_a_stopped_replica_is_named_and_the_others_are_not(hosts: MakeHosts) -> None:
    with probers(hosts(3)) as handshake:
        handshake.probers[1].process.send_signal(signal.SIGSTOP)
        findings = handshake.judged_tcp(6.0)
        handshake.probers[1].process.send_signal(signal.SIGCONT)
        assert {replica for _, replica in errors(findings)} == {rank(1)}, findings


def test_a_taken_rendezvous_port_is_found_without_binding_it(hosts: MakeHosts) -> None:
    made = hosts(2)
    with probers(made) as handshake:
        hold = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(60)"
        made[0].popen([sys.executable, "-c", hold])
        time.sleep(0.5)
        results = handshake.tcp()
        assert results[rank(0)].rendezvous_port == PORT + 1
        assert "socket.create_server" in results[rank(0)].port_holders[PORT]


def test_a_blocked_rendezvous_port_is_told_by_the_collective(warm: Handshake) -> None:
    master = warm.probers[0].host
    master.iptables("-A", "INPUT", "-i", "eth0", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    assert errors(warm.judged_tcp()) == []
    findings = warm.judged_collective(6.0)
    assert warm.took_s < 6.5
    assert errors(findings) == [("COL002", rank(0))], findings
    assert "timed out" in findings[0].message


def test_a_link_that_dies_between_tcp_and_collective_ends_in_time_and_leaves_nothing_running(
    warm: Handshake,
) -> None:
    dead = warm.probers[2].host
    dead.drop_from(warm.probers[1].host)
    findings = warm.judged_collective(6.0)
    assert warm.took_s < 6.5
    assert [code for code, _ in errors(findings)] in (["COL004"], ["COL005"]), findings
    assert not _rounds_running(warm)
    dead.clear()
    assert errors(warm.judged_collective()) == []


def test_a_replica_that_stops_answering_between_tcp_and_collective_is_named(warm: Handshake) -> None:
    assert errors(warm.judged_tcp()) == []
    warm.probers[2].process.send_signal(signal.SIGSTOP)
    findings = warm.judged_collective(5.0)
    assert errors(findings) == [("COL008", rank(2))], findings


def _rounds_running(handshake: Handshake) -> list[int]:
    """Children of the warm probe processes that still run on the hosts."""
    here = {pid for prober in handshake.probers for pid in prober.host.pids()}
    warm = {pid for pid in here if b"agent.probes.forked" in _command(pid)}
    return [found.id.pid for found in every_process() if found.parent in warm and found.running]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_hosts_are_apart_and_have_names_of_their_own(hosts: MakeHosts) -> None:
    one, other = hosts(2, ipv6=True)
    said = one.json(
        "import json, socket; print(json.dumps([socket.gethostname(), socket.gethostbyname(socket.gethostname())]))"
    )
    assert said == ["host-1", "127.0.0.1"]
    one.popen(
        [sys.executable, "-c", "import socket, time; s = socket.create_server(('', 4711)); time.sleep(60)"]
    )
    time.sleep(0.5)
    knock = "import json, socket, sys; print(json.dumps(socket.socket().connect_ex((sys.argv[1], 4711))))"
    assert other.json(knock, one.address) == 0
    assert other.json(knock, "127.0.0.1") == errno.ECONNREFUSED


def test_of_two_interfaces_the_one_that_leads_to_the_peers_is_settled_on(hosts: MakeHosts) -> None:
    """The second interface is up, has an address, and nobody can route to it."""
    made = hosts(3)
    for number, host in enumerate(made[:2], start=1):
        host.ip("link", "add", "eth1", "type", "veth", "peer", "name", "nowhere")
        host.ip("link", "set", "nowhere", "up")
        host.ip("addr", "add", f"10.99.{number}.1/24", "dev", "eth1")
        host.ip("link", "set", "eth1", "up")
        # What looks like a way there ends nowhere.
        host.ip("route", "add", "10.99.0.0/16", "dev", "eth1")
    with probers(made) as handshake:
        offers = {
            rank(number): (Address(address=f"10.99.{number + 1}.1", interface="eth1"),) if number < 2 else ()
            for number in range(3)
        }
        for member in handshake.members:
            offers[member.replica_id] += (Address(address=member.address, interface="eth0"),)
        settled = settle(offers, handshake.tcp(DEADLINE_S, offers=offers))
        assert handshake.took_s < DEADLINE_S
        assert {(a.address, a.interface) for a in settled.values()} == {(h.address, "eth0") for h in made}
