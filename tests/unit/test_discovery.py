"""Where the coordinator is: by URL, by peers, alone; own addresses told from others'."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.discovery import hints_from
from agent.settings import AgentSettings, SettingsError
from coordinator.core.whereabouts import (
    BadHint,
    Hints,
    Peer,
    Place,
    Undecided,
    can_bind,
    decide,
    hints_of,
    next_of,
    parse_peers,
    reachable_address,
    recogniser,
    resolve,
    without_service_links,
)
from coordinator.role import settled

NAMES = {
    "10.0.0.4": ("10.0.0.4",),
    "10.0.0.5": ("10.0.0.5",),
    "fd00::4": ("fd00::4",),
    "train-0.train": ("10.0.0.4",),
    "train-1.train": ("10.0.0.5",),
    "tasks.train": ("10.0.0.10", "10.0.0.9"),
    "hub.example.com": ("93.184.216.34",),
}


def look(hints: Hints, own: str) -> Place | Undecided:
    return decide(hints, lambda name: NAMES.get(name, ()), lambda address: address == own)


def test_alone_it_is_its_own_coordinator() -> None:
    place = look(Hints(), "10.0.0.4")
    assert isinstance(place, Place)
    assert place.here
    assert place.url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("peers", "own", "here", "url"),
    [
        ("10.0.0.4,10.0.0.5", "10.0.0.4", True, "http://127.0.0.1:8000"),
        ("10.0.0.4,10.0.0.5", "10.0.0.5", False, "http://10.0.0.4:8000"),
        ("train-0.train train-1.train", "10.0.0.4", True, "http://127.0.0.1:8000"),
        ("train-0.train train-1.train", "10.0.0.5", False, "http://train-0.train:8000"),
        ("10.0.0.4:9000,10.0.0.5", "10.0.0.5", False, "http://10.0.0.4:9000"),
        ("[fd00::4]:9000 10.0.0.5", "10.0.0.5", False, "http://[fd00::4]:9000"),
        ("fd00::4, 10.0.0.5", "10.0.0.5", False, "http://[fd00::4]:8000"),
    ],
)
def test_the_first_of_the_peers_is_the_master(peers: str, own: str, here: bool, url: str) -> None:
    place = look(Hints(peers=parse_peers(peers)), own)
    assert isinstance(place, Place)
    assert (place.here, place.url) == (here, url)


def test_a_replica_that_is_not_among_the_peers_still_goes_to_the_first() -> None:
    place = look(Hints(peers=parse_peers("10.0.0.4,10.0.0.5")), "10.0.0.77")
    assert place == Place("http://10.0.0.4:8000", here=False, how="the first of RANKCALL_PEERS is 10.0.0.4")


def test_a_first_peer_whose_name_does_not_resolve_yet_is_waited_for() -> None:
    place = look(Hints(peers=parse_peers("later.train train-9.train")), "10.0.0.4")
    assert isinstance(place, Undecided)
    assert "later.train" in place.why


def test_who_finds_itself_further_down_need_not_wait_for_the_first_name() -> None:
    place = look(Hints(peers=parse_peers("later.train train-1.train")), "10.0.0.5")
    assert isinstance(place, Place)
    assert place.url == "http://later.train:8000"


def test_one_name_for_all_makes_the_numerically_first_address_master_once_all_are_there() -> None:
    hints = Hints(peers=parse_peers("tasks.train"), nodes=2)
    master = look(hints, "10.0.0.9")
    other = look(hints, "10.0.0.10")
    assert isinstance(master, Place)
    assert isinstance(other, Place)
    assert master.here
    assert other == Place(
        "http://10.0.0.9:8000", here=False, how="10.0.0.9 is the first address of tasks.train"
    )
    early = look(Hints(peers=parse_peers("tasks.train"), nodes=3), "10.0.0.9")
    assert isinstance(early, Undecided)
    assert "2 of 3" in early.why


@pytest.mark.parametrize(
    ("url", "own", "here"),
    [
        ("http://train-0.train:8000", "10.0.0.4", True),
        ("http://train-0.train:8000", "10.0.0.5", False),
        ("http://train-0.train:9000", "10.0.0.4", False),
        ("https://hub.example.com", "10.0.0.4", False),
    ],
)
def test_an_url_that_names_this_replica_and_its_port_makes_it_the_master(
    url: str, own: str, here: bool
) -> None:
    place = look(Hints(url=url), own)
    assert isinstance(place, Place)
    assert place.here is here


def test_each_replica_that_owns_one_of_several_urls_runs_a_coordinator_and_knows_the_others() -> None:
    urls = "http://train-0.train:8000, train-1.train:8000"
    hints = hints_of({"RANKCALL_URL": urls})
    assert hints.others == ("http://train-1.train:8000",)
    first, second, third = (look(hints, own) for own in ("10.0.0.4", "10.0.0.5", "10.0.0.6"))
    assert isinstance(first, Place) and isinstance(second, Place) and isinstance(third, Place)
    assert (first.here, first.others) == (True, ("http://train-1.train:8000",))
    assert (second.here, second.others) == (True, ("http://train-0.train:8000",))
    assert (third.here, third.urls) == (False, ("http://train-0.train:8000", "http://train-1.train:8000"))


def test_of_several_coordinators_the_next_is_asked_only_where_the_present_one_has_failed() -> None:
    urls = ("http://a", "http://b", "http://c")
    assert next_of(urls, "", failed=False) == "http://a"
    assert next_of(urls, "http://b", failed=False) == "http://b"
    assert next_of(urls, "http://b", failed=True) == "http://c"
    assert next_of(urls, "http://c", failed=True) == "http://a"
    assert next_of(("http://a",), "http://a", failed=True) == "http://a"


def test_hints_are_read_from_the_environment() -> None:
    hints = hints_of(
        {
            "RANKCALL_URL": "train-0:8000/",
            "RANKCALL_PEERS": "10.0.0.4, 10.0.0.5:9000",
            "RANKCALL_SHARED_DIR": "/mnt/all",
            "RANKCALL_PORT": "8100",
            "RANKCALL_ADDRESS": "127.0.0.2",
            "RANKCALL_NODES": "2",
        }
    )
    assert hints == Hints(
        url="http://train-0:8000",
        peers=(Peer("10.0.0.4"), Peer("10.0.0.5", 9000)),
        shared_dir=Path("/mnt/all"),
        port=8100,
        address="127.0.0.2",
        nodes=2,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANKCALL_URL", "ftp://somewhere"),
        ("RANKCALL_URL", "http://"),
        ("RANKCALL_URL", "http://host:port"),
        ("RANKCALL_PORT", "http"),
        ("RANKCALL_PORT", "70000"),
        ("RANKCALL_PEERS", "10.0.0.4:web"),
        ("RANKCALL_NODES", "two"),
    ],
)
def test_a_variable_that_cannot_be_understood_is_named(name: str, value: str) -> None:
    with pytest.raises(BadHint, match=name):
        hints_of({name: value})


def test_own_addresses_are_told_by_the_kernel() -> None:
    assert can_bind("127.0.0.1")
    assert can_bind(reachable_address())
    assert not can_bind("192.0.2.77")
    assert not can_bind("2001:db8::77")


def test_a_given_address_is_the_only_own_one() -> None:
    own = recogniser(Hints(address="127.0.0.2"))
    assert own("127.0.0.2")
    assert not own("127.0.0.1")


def test_names_resolve_to_addresses_or_to_none() -> None:
    assert resolve("127.0.0.1") == ("127.0.0.1",)
    assert resolve("no-such-name.invalid") == ()
    assert resolve("a" * 300) == ()


def test_the_port_variable_of_a_kubernetes_service_is_not_ours() -> None:
    assert without_service_links({"RANKCALL_PORT": "tcp://10.96.0.7:8000", "A": "1"}) == {"A": "1"}
    assert without_service_links({"RANKCALL_PORT": "8100"}) == {"RANKCALL_PORT": "8100"}


def test_a_replica_may_turn_out_to_be_the_master_but_what_is_decided_stays() -> None:
    here, there = (
        Place("http://127.0.0.1:8000", True, "first"),
        Place("http://10.0.0.4:8000", False, "second"),
    )
    away = Undecided("no name")
    assert settled(None, away) == away
    assert settled(away, there) == there
    assert settled(there, here) == here, "its own new address was not known to the name server before"
    assert settled(there, away) == there
    assert settled(here, there) == here
    assert settled(here, away) == here


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANKCALL_ADDRESS", "999.1.1.1"), ("RANKCALL_ADDRESS", "foo"), ("RANKCALL_ADDRESS", "0.0.0.0"),
        ("RANKCALL_DATA_ROOTS", "rel"), ("RANKCALL_DATA_ROOTS", "/data:~/x"), ("RANKCALL_ORDINAL", "x"),
        ("RANKCALL_ORDINAL", "-1"), ("RANKCALL_ORDINAL", "4096"), ("RANKCALL_ORDINAL", "²"), ("RANKCALL_NODES", "²"),
        ("RANKCALL_PEERS", "10.0.0.1:99999"), ("RANKCALL_PEERS", "10.0.0.1:0"), ("RANKCALL_PEERS", "999.1.1.1"),
        ("RANKCALL_PEERS", "a:b:c"), ("RANKCALL_URL", "http://999.1.1.1:8000"), ("RANKCALL_URL", "http://h:99999"),
    ],
)  # fmt: skip
def test_what_no_replica_could_use_is_refused_at_the_start_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadHint, match=name):
        hints_of({name: value})
    monkeypatch.setenv(name, value)
    with pytest.raises((BadHint, SettingsError), match=name) as caught:
        hints_from(AgentSettings.from_environment())
    assert str(caught.value).count(name) == 1
