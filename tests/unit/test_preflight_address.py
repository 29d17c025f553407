"""Addresses are numeric, of one family for all, and lead to another machine."""

from __future__ import annotations

from coordinator.core.protocol import Address, Registration
from coordinator.preflight.address import choose, judge, offers


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
