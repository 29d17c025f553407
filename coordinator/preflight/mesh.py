"""From links that fail to who is at fault: the smallest story that explains them. Called by `verdict.py`.

Two replicas are good together when each reaches the other. What is good together forms a group; a replica
alone beside a group of two or more is itself at fault, two groups are a split network, and a failing link
inside a group is only a link: nobody is convicted who has a proven peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

Link = tuple[str, str]  # from the prober to its target


class Scope(StrEnum):
    CUT_OFF = "cut off"
    UNREACHED = "unreached"
    UNREACHING = "unreaching"
    LINK = "link"
    DIRECTION = "direction"
    EVERYBODY = "everybody"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong, and the failing links it explains.

    Attributes:
        replicas: the replica at fault; the two ends of a link; all, for EVERYBODY.
        groups: of SPLIT, the groups that do not reach each other.
    """

    scope: Scope
    replicas: tuple[str, ...]
    links: tuple[Link, ...]
    groups: tuple[tuple[str, ...], ...] = ()


def explain(replicas: Sequence[str], bad: Set[Link]) -> tuple[Trouble, ...]:
    """The troubles behind the failing directed links `bad` among `replicas` (in rank order)."""
    if not bad:
        return ()
    if len(replicas) == 2:
        return tuple(_inside(replicas, bad))
    groups = _groups(replicas, bad)
    large = [group for group in groups if len(group) > 1]
    if not large:
        return (Trouble(Scope.EVERYBODY, tuple(replicas), _ordered(replicas, bad)),)
    core = max(large, key=len)
    lonely = [group[0] for group in groups if len(group) == 1]
    found: list[Trouble] = []
    if len(large) > 1:
        between = {link for link in bad if _apart(large, link)}
        everyone = tuple(replica for group in large for replica in group)
        found.append(Trouble(Scope.SPLIT, everyone, _ordered(replicas, between), tuple(large)))
    found += [_lone(replica, core, replicas, bad) for replica in lonely]
    for group in large:
        found += _inside(group, bad)
    return tuple(found)


def _lone(replica: str, core: Sequence[str], replicas: Sequence[str], bad: Set[Link]) -> Trouble:
    links = _ordered(replicas, {link for link in bad if replica in link})
    unreached = all((peer, replica) in bad for peer in core)
    unreaching = all((replica, peer) in bad for peer in core)
    if unreached == unreaching:  # both, or another direction with each peer: no link of it is whole
        return Trouble(Scope.CUT_OFF, (replica,), links)
    return Trouble(Scope.UNREACHED if unreached else Scope.UNREACHING, (replica,), links)


def _inside(group: Sequence[str], bad: Set[Link]) -> Iterable[Trouble]:
    """Failing links between replicas that reach each other some other way, or are only two."""
    for at, one in enumerate(group):
        for other in group[at + 1 :]:
            links = [link for link in ((one, other), (other, one)) if link in bad]
            if len(links) == 2:
                yield Trouble(Scope.LINK, (one, other), tuple(links))
            elif links:
                yield Trouble(Scope.DIRECTION, links[0], tuple(links))


def _groups(replicas: Sequence[str], bad: Set[Link]) -> list[tuple[str, ...]]:
    """Connected groups of the graph whose edges are the pairs good in both directions."""
    left = list(replicas)
    groups: list[tuple[str, ...]] = []
    while left:
        reached = {left[0]}
        frontier = [left[0]]
        while frontier:
            at = frontier.pop()
            new = [o for o in left if o not in reached and (at, o) not in bad and (o, at) not in bad]
            reached.update(new)
            frontier += new
        groups.append(tuple(replica for replica in left if replica in reached))
        left = [replica for replica in left if replica not in reached]
    return groups


def _apart(groups: Sequence[Sequence[str]], link: Link) -> bool:
    homes = [at for end in link for at, group in enumerate(groups) if end in group]
    return len(homes) == 2 and homes[0] != homes[1]


def _ordered(replicas: Sequence[str], links: Set[Link]) -> tuple[Link, ...]:
    place = {replica: at for at, replica in enumerate(replicas)}
    return tuple(sorted(links, key=lambda link: (place[link[0]], place[link[1]])))
