"""Isolation by rounds of groups: few rounds, and never a healthy replica convicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.preflight.isolate import GroupResult, NextRound, Verdict, advance

Pair = frozenset[str]


def names(count: int) -> tuple[str, ...]:
    return tuple(f"r-{number:02d}" for number in range(count))


def passes(group: Iterable[str], bad: Set[str], links: Set[Pair]) -> bool:
    members = set(group)
    return len(members) == 1 or (not members & bad and not any(link <= members for link in links))


def isolate(count: int, bad: Set[str] = frozenset(), links: Set[Pair] = frozenset()) -> Verdict:
    replicas = names(count)
    history = [(GroupResult(replicas, passes(replicas, bad, links)),)]
    while True:
        step = advance(replicas, history)
        if isinstance(step, Verdict):
            return step
        members = [replica for group in step.groups for replica in group]
        assert len(members) == len(set(members)), "groups of a round are disjoint"
        assert step.groups
        history.append(tuple(GroupResult(group, passes(group, bad, links)) for group in step.groups))
        assert len(history) < 64


def limit(count: int) -> int:
    return math.ceil(math.log2(count)) + 1


@pytest.mark.parametrize("count", range(3, 65))
def test_one_bad_replica_is_named_in_log2_n_plus_one_rounds(count: int) -> None:
    for replica in names(count):
        verdict = isolate(count, {replica})
        assert (verdict.kind, verdict.replicas, verdict.links) == ("named", (replica,), ())
        assert verdict.rounds <= limit(count)


def name_links(count: int, step: int = 1) -> None:
    for one, other in list(combinations(names(count), 2))[::step]:
        verdict = isolate(count, links={frozenset((one, other))})
        assert (verdict.kind, verdict.replicas, verdict.links) == ("named", (), ((one, other),))
        assert verdict.rounds <= limit(count)


@pytest.mark.parametrize("count", range(3, 65))
def test_one_bad_link_is_named_in_log2_n_plus_one_rounds(count: int) -> None:
    name_links(count, step=1 if count <= 16 else 1 + count // 2)


@pytest.mark.long
@pytest.mark.parametrize("count", range(17, 65))
def test_one_bad_link_at_every_place_of_many_is_named(count: int) -> None:
    name_links(count)


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 15, 16])
def test_any_two_bad_replicas_are_named(count: int) -> None:
    for one, other in combinations(names(count), 2):
        verdict = isolate(count, {one, other})
        assert (verdict.kind, verdict.replicas, verdict.links) == ("named", (one, other), ())
        assert verdict.rounds <= 8


def test_of_two_replicas_that_fail_together_only_the_link_can_be_named() -> None:
    verdict = isolate(2, links={frozenset(names(2))})
    assert (verdict.kind, verdict.replicas, verdict.links) == ("named", (), (names(2),))
    assert verdict.rounds <= 2
    assert isolate(2, {names(2)[0]}).links == (names(2),)


def test_a_replica_that_fails_within_itself_is_named_even_of_two() -> None:
    one, other = names(2)
    history = [(GroupResult((one, other), False),), (GroupResult((one,), False), GroupResult((other,), True))]
    verdict = advance((one, other), history)
    assert isinstance(verdict, Verdict)
    assert (verdict.kind, verdict.replicas) == ("named", (one,))


@pytest.mark.parametrize("count", [3, 4, 8, 16])
def test_when_all_fail_it_is_everybody_and_nobody_is_convicted(count: int) -> None:
    verdict = isolate(count, set(names(count)))
    assert (verdict.kind, verdict.replicas, verdict.links) == ("everybody", (), ())


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_what_does_not_fail_again_is_transient(count: int) -> None:
    replicas = names(count)
    history = [(GroupResult(replicas, False),)]
    while isinstance(step := advance(replicas, history), NextRound):
        history.append(tuple(GroupResult(group, True) for group in step.groups))
        assert len(history) < 32
    assert (step.kind, step.replicas, step.links) == ("transient", (), ())


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_is_broken_a_healthy_replica_is_never_convicted(data: st.DataObject) -> None:
    """Healthy: not bad, and at most two of its links are (a replica with three bad links is as good as bad)."""
    count = data.draw(st.integers(5, 24))
    replicas = names(count)
    bad = data.draw(st.sets(st.sampled_from(replicas), max_size=count // 3))
    links = data.draw(
        st.sets(st.sampled_from([frozenset(pair) for pair in combinations(replicas, 2)]), max_size=2)
    )
    verdict = isolate(count, bad, links)
    assert set(verdict.replicas) <= bad, verdict
    assert all(frozenset(link) in links for link in verdict.links), verdict
    if not bad and not links:
        assert verdict.kind == "transient"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_two_bad_links_are_both_named_or_what_is_left_is_said(data: st.DataObject) -> None:
    count = data.draw(st.integers(4, 16))
    replicas = names(count)
    links = data.draw(
        st.sets(
            st.sampled_from([frozenset(pair) for pair in combinations(replicas, 2)]), min_size=2, max_size=2
        )
    )
    verdict = isolate(count, links=links)
    assert not verdict.replicas or count < 5, verdict
    assert {frozenset(link) for link in verdict.links} <= links
    assert verdict.links or verdict.kind == "unfinished"
