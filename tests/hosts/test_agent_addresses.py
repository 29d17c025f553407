"""What a replica offers its peers, on hosts with interfaces of their own."""

from __future__ import annotations

import pytest
from namespaces import Host, MakeHosts

pytestmark = pytest.mark.hosts

OFFERED = """
import json, sys
from agent import addresses
found = addresses.offered(sys.argv[2] or None, sys.argv[1])
print(json.dumps([[one.address, one.interface, one.family] for one in found]))
"""


def offered(host: Host, url: str, override: str = "") -> list[list[str]]:
    found: list[list[str]] = host.json(OFFERED, url, override)
    return found


def test_a_replica_offers_the_address_of_its_own_interface(hosts: MakeHosts) -> None:
    first, second = hosts(2)
    assert offered(second, f"http://{first.address}:8000") == [[second.address, "eth0", "ipv4"]]
    assert offered(first, "http://127.0.0.1:8000") == [[first.address, "eth0", "ipv4"]]


def test_ipv6_is_offered_too_and_first_where_the_coordinator_is_reached_by_it(hosts: MakeHosts) -> None:
    first, second = hosts(2, ipv6=True)
    by_v4 = offered(second, f"http://{first.address}:8000")
    by_v6 = offered(second, f"http://[{first.address6}]:8000")
    assert [one[0] for one in by_v4] == [second.address, second.address6]
    assert [one[0] for one in by_v6] == [second.address6, second.address]


def test_a_second_interface_an_engines_bridge_and_one_that_is_down(hosts: MakeHosts) -> None:
    first, second = hosts(2)
    second.ip("link", "add", "net1", "type", "veth", "peer", "name", "peer1")
    second.ip("link", "add", "net2", "type", "veth", "peer", "name", "peer2")
    second.ip("addr", "add", "192.168.7.7/24", "dev", "net1")
    second.ip("link", "set", "net1", "up")
    second.ip("link", "set", "peer1", "up")
    second.ip("link", "add", "tools", "type", "bridge")
    second.ip("addr", "add", "172.17.0.1/16", "dev", "tools")
    second.ip("link", "set", "tools", "up")
    second.ip("addr", "add", "192.168.8.8/24", "dev", "net2")
    assert offered(second, f"http://{first.address}:8000") == [
        [second.address, "eth0", "ipv4"],
        ["192.168.7.7", "net1", "ipv4"],
    ]
    assert offered(second, "http://192.168.7.1:8000")[0] == ["192.168.7.7", "net1", "ipv4"]


def test_a_name_that_resolves_to_loopback_is_harmless(hosts: MakeHosts) -> None:
    first, second = hosts(2)
    second.resolve(f"127.0.0.1 {second.name}", f"{first.address} master")
    assert offered(second, "http://master:8000") == [[second.address, "eth0", "ipv4"]]


def test_an_address_that_is_translated_on_its_way_belongs_to_the_interface_of_the_route(
    hosts: MakeHosts,
) -> None:
    first, second = hosts(2)
    url = f"http://{first.address}:8000"
    assert offered(second, url, "203.0.113.9") == [["203.0.113.9", "eth0", "ipv4"]]
    assert offered(second, url, second.address) == [[second.address, "eth0", "ipv4"]]
    assert offered(second, url, "127.0.0.2") == [["127.0.0.2", "lo", "ipv4"]]
