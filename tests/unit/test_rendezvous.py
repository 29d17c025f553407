"""Ranks are stable, and where nothing decides them they follow the coordinator, the ordinal, the address."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.rendezvous import Candidate, address_key, seats


def test_the_coordinators_own_replica_comes_first_then_ordinals_then_addresses() -> None:
    candidates = [
        Candidate("far", "10.0.0.10"),
        Candidate("near", "10.0.0.9"),
        Candidate("second", "10.0.0.200", ordinal=1),
        Candidate("first", "10.0.0.201", ordinal=0),
        Candidate("home", "10.0.0.250", beside_coordinator=True),
    ]
    assert seats(candidates, 5) == ("home", "first", "second", "near", "far")


def test_addresses_are_compared_as_numbers() -> None:
    assert sorted(["10.0.9.126", "10.0.9.59", "fe80::2", "name", "9.0.0.1"], key=address_key) == [
        "9.0.0.1",
        "10.0.9.59",
        "10.0.9.126",
        "fe80::2",
        "name",
    ]


def test_a_replacement_takes_the_rank_of_the_one_it_replaces() -> None:
    candidates = [Candidate("a", "10.0.0.1"), Candidate("c", "10.0.0.3"), Candidate("new", "10.0.0.2")]
    assert seats(candidates, 3, previous=("a", "gone", "c")) == ("a", "new", "c")


def test_a_replica_keeps_the_rank_it_had_in_the_job_before() -> None:
    candidates = [Candidate("x", "10.0.0.1", last_rank=1), Candidate("y", "10.0.0.2", last_rank=0)]
    assert seats(candidates, 2) == ("y", "x")


def test_too_few_replicas_have_no_ranks() -> None:
    assert seats([Candidate("a")], 2) is None


_candidates = st.lists(
    st.builds(
        Candidate,
        replica_id=st.uuids().map(str),
        address=st.ip_addresses().map(str),
        last_rank=st.none() | st.integers(0, 9),
        beside_coordinator=st.booleans(),
        ordinal=st.none() | st.integers(0, 9),
    ),
    unique_by=lambda c: c.replica_id,
    max_size=12,
)


@given(_candidates, st.integers(1, 8), st.randoms())
def test_every_seat_is_filled_once_whatever_the_order_of_arrival(candidates, nodes, random) -> None:  # type: ignore[no-untyped-def]
    placed = seats(candidates, nodes)
    if len(candidates) < nodes:
        assert placed is None
        return
    assert placed is not None and len(set(placed)) == nodes
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert seats(shuffled, nodes) == placed


@given(_candidates, st.integers(1, 8))
def test_the_next_attempt_changes_no_rank_of_those_who_stayed(candidates, nodes) -> None:  # type: ignore[no-untyped-def]
    first = seats(candidates, nodes)
    if first is None:
        return
    again = seats(candidates[1:], nodes, previous=first)
    if again is not None:
        stayed = {c.replica_id for c in candidates[1:]}
        for rank, replica_id in enumerate(first):
            if replica_id in stayed:
                assert again[rank] == replica_id
