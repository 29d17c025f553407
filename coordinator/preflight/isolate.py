"""Which replica, which link? After a collective among all has failed: the next round of groups, or the verdict.

A round tests disjoint groups at once. A group that passes proves its members and every link among them; a
group that fails holds a bad replica or a bad link. So: halve what failed; once a suspect is alone, pair it
with proven peers; where all members are proven and the group fails nevertheless, look for the link, halving
both sides of what is not proven together. Everything follows from the history, so the coordinator may be
killed between two rounds. Called by `stages/collective.py`; one bad replica or link among N takes log2 N + 1 rounds.

A replica is convicted only when it never passed and failed with three proven peers (with all of them, where
there are fewer). A link, when both of its ends are proven and the two fail together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

Pair = frozenset[str]

_WITNESSES = 3  # two bad links at one replica look like a bad replica to two witnesses
_MORE_ROUNDS = 6  # beyond log2 N, for several faults at once; then what is known is said


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One group of one round. A group of one is a replica tested within itself."""

    group: tuple[str, ...]
    ok: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rounds have shown.

    Attributes:
        kind: named (all failures are explained by `replicas` and `links`), everybody (no two replicas pass
            together), transient (whatever failed passes now), unfinished (`suspects` remain).
        proven: replicas that passed with others.
    """

    kind: Literal["named", "everybody", "transient", "unfinished"]
    replicas: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    suspects: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class NextRound:
    """Disjoint groups to test at once; replicas in none of them rest."""

    groups: tuple[tuple[str, ...], ...]


Round = Sequence[GroupResult]


def advance(replicas: Sequence[str], history: Sequence[Round]) -> NextRound | Verdict:
    """The next round, or the verdict. `replicas` in rank order; `history` begins with the round among all."""
    known = _Known(replicas, history)
    limit = math.ceil(math.log2(max(2, len(replicas)))) + _MORE_ROUNDS
    if known.rounds < limit and known.unexplained:
        groups = _Planner(known).groups()
        if groups:
            return NextRound(groups)
        known.settle()
    return known.verdict(exhausted=known.rounds >= limit)


class _Known:
    """What the history proves."""

    def __init__(self, replicas: Sequence[str], history: Sequence[Round]) -> None:
        self.replicas = tuple(replicas)
        self.rounds = max(0, len(history) - 1)
        self._place = {replica: at for at, replica in enumerate(replicas)}
        tested = [test for one in history for test in one]
        self.passed = [frozenset(test.group) for test in tested if test.ok and len(test.group) > 1]
        self.failed = [frozenset(test.group) for test in tested if not test.ok]
        self.alone = {test.group[0]: test.ok for test in tested if len(test.group) == 1}
        self.good: frozenset[str] = frozenset().union(*self.passed)
        self._partners = self._partners_of()
        self.convicted = {replica for replica, ok in self.alone.items() if not ok}
        self.convicted |= {r for r in self.replicas if r not in self.good and self._failures(r) >= _WITNESSES}
        self.bad_links = {
            group
            for group in self.failed
            if len(group) == 2 and group <= self.good and not self.together(*group)
        }
        self.unexplained = self._minimal()

    def together(self, one: str, other: str) -> bool:
        """Whether the two have passed in one group."""
        return other in self._partners.get(one, frozenset())

    def was_tested(self, group: Iterable[str]) -> bool:
        wanted = frozenset(group)
        return wanted in self.passed or wanted in self.failed

    def witnesses(self, replica: str) -> list[str]:
        """Proven peers that `replica` was not yet paired with, those farthest from it in rank first.

        Far ones share fewest of the groups that failed with it.
        """
        mine = self._place[replica]
        fresh = [peer for peer in self.good if peer != replica and not self.was_tested((peer, replica))]
        return sorted(fresh, key=lambda peer: (self._shared(peer, replica), -abs(self._place[peer] - mine)))

    def ordered(self, some: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(some, key=self._place.__getitem__))

    def settle(self) -> None:
        """Nothing is left to test: who failed with every proven peer there is, at least two, is convicted."""
        for replica in self.replicas:
            if replica not in self.good and self._failures(replica) >= 2 and not self.witnesses(replica):
                self.convicted.add(replica)
        self.unexplained = self._minimal()

    def verdict(self, *, exhausted: bool) -> Verdict:
        links = tuple(self.ordered(link) for link in self.bad_links)
        pairs = tuple(
            sorted(((a, b) for a, b in links), key=lambda p: (self._place[p[0]], self._place[p[1]]))
        )
        replicas = self.ordered(self.convicted)
        proven = self.ordered(self.good)
        suspects = self.ordered({r for group in self.unexplained for r in group - self.good} - self.convicted)
        found = Verdict("named", replicas, pairs, (), proven, self.rounds)
        if not self.unexplained:
            return found if replicas or pairs else Verdict("transient", proven=proven, rounds=self.rounds)
        if not self.good and not replicas:
            if len(self.replicas) == 2:
                one, other = self.replicas
                return Verdict("named", (), ((one, other),), (), (), self.rounds)
            return Verdict("everybody", suspects=self.replicas, rounds=self.rounds)
        if not suspects and not exhausted and not self._candidates_left():
            # All members are proven, and every pair of them: what failed once does not fail any more.
            return found if replicas or pairs else Verdict("transient", proven=proven, rounds=self.rounds)
        return Verdict("unfinished", replicas, pairs, suspects or self._around_links(), proven, self.rounds)

    def candidates(self, group: Set[str]) -> set[Pair]:
        """Pairs of a failed group that are not proven to work together."""
        members = self.ordered(group)
        return {
            frozenset((one, other))
            for at, one in enumerate(members)
            for other in members[at + 1 :]
            if not self.together(one, other)
        }

    def _candidates_left(self) -> bool:
        return any(self.candidates(group) for group in self.unexplained)

    def _around_links(self) -> tuple[str, ...]:
        return self.ordered(
            {end for group in self.unexplained for pair in self.candidates(group) for end in pair}
        )

    def _failures(self, replica: str) -> int:
        """Distinct proven peers it failed with, two by two."""
        return len({g for g in self.failed if len(g) == 2 and replica in g and g - {replica} <= self.good})

    def _shared(self, one: str, other: str) -> int:
        return sum(one in group and other in group for group in self.failed)

    def _partners_of(self) -> Mapping[str, Set[str]]:
        partners: dict[str, set[str]] = {}
        for group in self.passed:
            for replica in group:
                partners.setdefault(replica, set()).update(group)
        return partners

    def _minimal(self) -> tuple[frozenset[str], ...]:
        """Failed groups that nothing explains yet: no conviction in them, no smaller failed group."""
        found: list[frozenset[str]] = []
        for group in dict.fromkeys(self.failed):
            if group & self.convicted or any(link <= group for link in self.bad_links):
                continue
            if any(other < group for other in self.failed):
                continue
            found.append(group)
        return tuple(sorted(found, key=lambda group: sorted(map(self._place.__getitem__, group))))


@dataclass
class _Planner:
    """The groups of one round. Every replica takes part once, so what is planned first wins."""

    known: _Known
    used: set[str] = field(default_factory=set)
    planned: list[tuple[str, ...]] = field(default_factory=list)
    lonely: list[str] = field(default_factory=list)

    def groups(self) -> tuple[tuple[str, ...], ...]:
        known = self.known
        for group in known.unexplained:
            suspects = known.ordered(group - known.good)
            if len(suspects) > 2:
                for half in _halves(suspects):
                    self._test(half) if len(half) > 1 else self.lonely.extend(half)
            elif suspects:
                self.lonely.extend(suspects)
        unknown = set(known.replicas) - known.good - known.convicted
        self.lonely.extend(known.ordered(unknown - {r for group in known.unexplained for r in group}))
        self._pair_lonely()
        for group in known.unexplained:
            if group <= known.good:
                self._look_for_link(group)
        return tuple(self.planned) or self._last_resort()

    def _test(self, members: Sequence[str]) -> bool:
        if len(members) < 2 or self.used.intersection(members):
            return False
        self.used.update(members)
        self.planned.append(self.known.ordered(members))
        return True

    def _pair_lonely(self) -> None:
        """Each alone with a proven peer; where none is proven yet, with each other."""
        waiting = [r for r in dict.fromkeys(self.lonely) if r not in self.used]
        for replica in waiting:
            for peer in self.known.witnesses(replica):
                if self._test((replica, peer)):
                    break
        if self.known.good:
            return
        rest = [replica for replica in waiting if replica not in self.used]
        for replica in rest:
            for other in reversed(rest):
                if (
                    other != replica
                    and not self.known.was_tested((replica, other))
                    and self._test((replica, other))
                ):
                    break

    def _look_for_link(self, group: Set[str]) -> None:
        for sides in _pieces(self.known, self.known.candidates(group)):
            halves = [_halves(side) for side in sides]
            for members in zip(*halves, strict=True):
                self._test([replica for half in members for replica in half])

    def _last_resort(self) -> tuple[tuple[str, ...], ...]:
        """Nothing was ever proven: each within itself; then, if only one failure was seen, that once more."""
        known = self.known
        if known.good:
            return ()
        if not known.alone:
            return tuple((replica,) for replica in known.replicas)
        if len([group for group in known.failed if len(group) > 1]) == 1 and not known.convicted:
            return (known.replicas,)
        return ()


def _halves(members: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    middle = (len(members) + 1) // 2
    return members[:middle], members[middle:]


def _pieces(known: _Known, candidates: Set[Pair]) -> Iterable[tuple[Sequence[str], ...]]:
    """The connected parts of the graph of candidates: their two sides, or all members where it has no sides.

    Halving both sides at once and putting first halves together (and second ones) tests half of the
    candidates of a part; those that stay form parts again.
    """
    neighbours: dict[str, set[str]] = {}
    for one, other in map(tuple, candidates):
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    left = set(neighbours)
    for start in known.ordered(neighbours):
        if start not in left:
            continue
        side = {start: 0}
        frontier = [start]
        bipartite = True
        while frontier:
            at = frontier.pop()
            for other in neighbours[at]:
                if other not in side:
                    side[other] = 1 - side[at]
                    frontier.append(other)
                bipartite = bipartite and side[other] != side[at]
        left -= set(side)
        if bipartite:
            yield tuple(known.ordered(r for r in side if side[r] == which) for which in (0, 1))
        else:
            yield (known.ordered(side),)
