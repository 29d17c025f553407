"""Who is at fault when links fail: never a replica that has a proven peer."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.preflight.mesh import Link, Scope, explain


def names(count: int) -> list[str]:
    return [f"r-{number:02d}" for number in range(count)]


def both_ways(*pairs: tuple[str, str]) -> set[Link]:
    return {link for one, other in pairs for link in ((one, other), (other, one))}


def around(replica: str, replicas: list[str], *, into: bool = True, out: bool = True) -> set[Link]:
    peers = [peer for peer in replicas if peer != replica]
    return {(peer, replica) for peer in peers if into} | {(replica, peer) for peer in peers if out}


def test_a_whole_mesh_has_no_trouble() -> None:
    assert explain(names(5), set()) == ()


@pytest.mark.parametrize(
    ("into", "out", "scope"),
    [(True, True, Scope.CUT_OFF), (True, False, Scope.UNREACHED), (False, True, Scope.UNREACHING)],
)
@pytest.mark.parametrize("count", [3, 4, 16])
def test_a_replica_without_any_whole_link_is_named_and_nothing_else(
    count: int, into: bool, out: bool, scope: Scope
) -> None:
    replicas = names(count)
    for replica in replicas:
        (trouble,) = explain(replicas, around(replica, replicas, into=into, out=out))
        assert trouble.scope is scope
        assert trouble.replicas == (replica,)


def test_of_two_replicas_neither_is_convicted() -> None:
    one, other = names(2)
    (trouble,) = explain([one, other], both_ways((one, other)))
    assert (trouble.scope, trouble.replicas) == (Scope.LINK, (one, other))
    (trouble,) = explain([one, other], {(other, one)})
    assert (trouble.scope, trouble.replicas) == (Scope.DIRECTION, (other, one))


def test_a_dead_link_among_many_is_a_link() -> None:
    replicas = names(6)
    (trouble,) = explain(replicas, both_ways((replicas[1], replicas[4])))
    assert (trouble.scope, trouble.replicas) == (Scope.LINK, (replicas[1], replicas[4]))


def test_when_nothing_works_it_is_everybody() -> None:
    replicas = names(4)
    (trouble,) = explain(replicas, set(permutations(replicas, 2)))
    assert trouble.scope is Scope.EVERYBODY


def test_two_halves_are_a_split_network() -> None:
    replicas = names(6)
    left, right = replicas[:4], replicas[4:]
    (trouble,) = explain(replicas, both_ways(*((one, other) for one in left for other in right)))
    assert trouble.scope is Scope.SPLIT
    assert trouble.groups == (tuple(left), tuple(right))


def test_two_bad_replicas_are_both_named() -> None:
    replicas = names(5)
    bad = around(replicas[0], replicas) | around(replicas[3], replicas, out=False)
    troubles = explain(replicas, bad)
    assert [(trouble.scope, trouble.replicas) for trouble in troubles] == [
        (Scope.CUT_OFF, (replicas[0],)),
        (Scope.UNREACHED, (replicas[3],)),
    ]


@given(st.data())
def test_every_failing_link_is_explained_and_nobody_with_a_proven_peer_is_convicted(
    data: st.DataObject,
) -> None:
    replicas = names(data.draw(st.integers(2, 8)))
    bad = data.draw(st.sets(st.sampled_from(list(permutations(replicas, 2)))))
    troubles = explain(replicas, bad)
    assert {link for trouble in troubles for link in trouble.links} == bad
    for trouble in troubles:
        if len(trouble.replicas) == 1:
            (replica,) = trouble.replicas
            assert all(
                (replica, peer) in bad or (peer, replica) in bad for peer in replicas if peer != replica
            )
