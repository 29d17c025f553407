"""Addresses are numeric, of one family for all, and lead to another machine."""

from __future__ import annotations

from coordinator.core.protocol import Address, LinkResult, Member, Registration, TcpResult
from coordinator.preflight.address import choose, judge, offers, settle
from coordinator.preflight.plan import tcp_targets, with_offers


def replica(*addresses: str) -> Registration:
    offered = []
    for text in addresses:
        address, interface = text.split("%")
        family = "ipv6" if ":" in address else "ipv4"
        offered.append(Address.model_validate({"address": address, "interface": interface, "family": family}))
    return Registration(replica_id="r-0123456789", fingerprint="f", incarnation=1, addresses=tuple(offered))


def chosen(**replicas: Registration) -> dict[str, str]:
    return {name: address.address for name, address in choose(replicas).items()}


def test_the_first_offer_of_the_common_family_is_taken() -> None:
    found = chosen(a=replica("10.0.0.1%eth0", "fd00::1%eth0"), b=replica("fd00::2%eth0", "10.0.0.2%eth1"))
    assert found == {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_ipv6_is_taken_where_not_all_have_ipv4() -> None:
    found = chosen(a=replica("10.0.0.1%eth0", "fd00::1%eth0"), b=replica("fd00::2%eth0"))
    assert found == {"a": "fd00::1", "b": "fd00::2"}


def test_bridges_link_local_addresses_and_names_are_never_offered() -> None:
    registration = replica(
        "172.17.0.1%docker0",
        "fe80::1%eth0",
        "169.254.1.1%eth0",
        "node-7%eth0",
        "127.0.0.1%lo",
        "10.0.0.1%eth0",
    )
    assert [address.address for address in offers(registration)] == ["10.0.0.1"]


def test_loopback_counts_where_all_are_on_one_machine() -> None:
    replicas = {"a": replica("127.0.0.1%lo"), "b": replica("127.0.0.2%lo")}
    assert {name: address.address for name, address in choose(replicas).items()} == {
        "a": "127.0.0.1",
        "b": "127.0.0.2",
    }
    assert judge(replicas) == ()


def test_loopback_beside_real_addresses_is_an_error_of_that_replica() -> None:
    (found,) = judge({"a": replica("10.0.0.1%eth0"), "b": replica("127.0.0.1%lo")})
    assert (found.code, found.replica) == ("NET041", "b")


def test_a_replica_without_a_usable_address_is_named() -> None:
    (found,) = judge({"a": replica("10.0.0.1%eth0"), "b": replica("172.17.0.1%docker0")})
    assert (found.code, found.replica) == ("NET041", "b")
    assert "172.17.0.1 on docker0" in found.message


def reached(*pairs: tuple[str, str, bool]) -> TcpResult:
    return TcpResult(links=tuple(LinkResult(replica_id=r, address=a, ok=ok) for r, a, ok in pairs))


def test_the_address_that_most_peers_reach_is_settled_on() -> None:
    offered = {
        "a": offers(replica("192.168.0.1%eth1", "10.0.0.1%eth0")),
        "b": offers(replica("10.0.0.2%eth0")),
        "c": offers(replica("10.0.0.3%eth0")),
    }
    results = {
        "b": reached(("a", "192.168.0.1", False), ("a", "10.0.0.1", True), ("c", "10.0.0.3", True)),
        "c": reached(("a", "192.168.0.1", True), ("a", "10.0.0.1", True), ("b", "10.0.0.2", True)),
        "a": reached(("b", "10.0.0.2", True), ("c", "10.0.0.3", True)),
    }
    settled = settle(offered, results)
    assert {name: (a.address, a.interface) for name, a in settled.items()} == {
        "a": ("10.0.0.1", "eth0"),
        "b": ("10.0.0.2", "eth0"),
        "c": ("10.0.0.3", "eth0"),
    }


def test_the_family_in_which_the_links_work_is_settled_on_for_all() -> None:
    offered = {
        name: offers(replica(f"10.0.0.{n}%eth0", f"fd00::{n}%eth0")) for name, n in (("a", 1), ("b", 2))
    }
    results = {
        "a": reached(("b", "10.0.0.2", False), ("b", "fd00::2", True)),
        "b": reached(("a", "10.0.0.1", False), ("a", "fd00::1", True)),
    }
    assert {name: a.address for name, a in settle(offered, results).items()} == {
        "a": "fd00::1",
        "b": "fd00::2",
    }


def test_of_addresses_that_not_all_peers_reach_the_one_in_the_peers_network_is_spoken_of() -> None:
    offered = {
        "a": offers(replica("10.77.1.1%eth0", "10.88.0.1%eth1")),
        "b": offers(replica("10.88.0.2%eth1", "10.77.1.2%eth0")),
        "c": offers(replica("10.77.1.3%eth0")),
    }
    results = {
        "a": reached(("b", "10.88.0.2", True), ("b", "10.77.1.2", True), ("c", "10.77.1.3", True)),
        "b": reached(("a", "10.77.1.1", True), ("a", "10.88.0.1", True), ("c", "10.77.1.3", False)),
        "c": reached(("a", "10.77.1.1", True), ("b", "10.88.0.2", False), ("b", "10.77.1.2", False)),
    }
    assert {name: address.interface for name, address in settle(offered, results).items()} == {
        "a": "eth0",
        "b": "eth0",
        "c": "eth0",
    }


def test_where_nothing_was_reached_the_first_offer_stays() -> None:
    offered = {"a": offers(replica("10.0.0.1%eth0", "10.1.0.1%eth1")), "b": offers(replica("10.0.0.2%eth0"))}
    assert settle(offered, {})["a"].address == "10.0.0.1"


def test_every_offer_of_a_peer_is_a_target_and_none_of_ones_own() -> None:
    members = [Member(replica_id=name, rank=rank, address="x") for rank, name in enumerate("ab")]
    offered = {"a": offers(replica("10.0.0.1%eth0", "10.1.0.1%eth1")), "b": offers(replica("10.0.0.2%eth0"))}
    targets = tcp_targets(with_offers(members, offered))
    assert [(t.replica_id, t.address) for t in targets["b"]] == [("a", "10.0.0.1"), ("a", "10.1.0.1")]
    assert [(t.replica_id, t.address) for t in targets["a"]] == [("b", "10.0.0.2")]
