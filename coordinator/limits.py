"""How much of the service one address may use: requests it makes unnamed, and guesses at a token.

A token bucket for each address, in memory. Replicas and administrators are not counted: a replica's token has
192 random bits and cannot be guessed, and whoever has the admin token may start processes anyway. What is
counted is who has shown nothing yet, viewers, and each wrong token. Called by
`auth.py`, `api/edge.py` and `api/wire.py`.
"""

from __future__ import annotations

import functools
import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from coordinator.core.clock import monotonic_s
from coordinator.core.problem import ProblemError, problem


@dataclass(frozen=True, slots=True)
class Limits:
    """Judgements, in one place.

    Attributes:
        guesses, guesses_per_s: wrong tokens an address may send at once, and after that. A person mistypes
            a few times. The right token is answered all the same: many people share an address, and one of them
            must not lock the others out. Against guessing stands the token's length
            (`settings.SHORTEST_TOKEN`).
        requests, requests_per_s: of an address without a token, or with a viewer's. A page loads forty files and holds
            one stream; a few dozen people may come through one proxy.
        addresses: that are remembered; beyond it the one not seen for longest is forgotten.
        head_bytes: largest request line and headers. Cookies and proxies stay far below it.
        head_s: how long a request's head may take to arrive; a connection that says nothing is closed after it.
        connections: of all addresses together; None: what the limit of open files leaves.
        connections_share: the part of them that one address may hold, unless it is this machine's.
    """

    guesses: int = 10
    guesses_per_s: float = 0.2
    requests: int = 400
    requests_per_s: float = 100.0
    addresses: int = 4096
    head_bytes: int = 32 << 10
    head_s: float = 20.0
    connections: int | None = None
    connections_share: float = 0.5


@dataclass(slots=True)
class Allowance:
    """Token buckets by address."""

    burst: int
    per_s: float
    most: int
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait_s(self, host: str) -> float:
        """How long until this address may do it (again); 0.0: now."""
        left = self._now(network_of(host), monotonic_s())
        return 0.0 if left >= 1.0 else (1.0 - left) / self.per_s

    def take(self, host: str) -> None:
        """It has done it once."""
        key, now_s = network_of(host), monotonic_s()
        self._left[key] = max(0.0, self._now(key, now_s) - 1.0), now_s
        self._left.move_to_end(key)
        while len(self._left) > self.most:
            self._left.popitem(last=False)

    def _now(self, key: str, now_s: float) -> float:
        left, at_s = self._left.get(key, (float(self.burst), now_s))
        return min(float(self.burst), left + (now_s - at_s) * self.per_s)


class Rates:
    """The two allowances of one app."""

    def __init__(self, limits: Limits) -> None:
        self._guesses = Allowance(limits.guesses, limits.guesses_per_s, limits.addresses)
        self._requests = Allowance(limits.requests, limits.requests_per_s, limits.addresses)

    def request(self, host: str) -> None:
        """Count a request of somebody who may not make as many as he likes.

        Raises:
            ProblemError: 429 where it is one too many.
        """
        wait_s = self._requests.wait_s(host)
        if wait_s:
            raise _too_many("This address sends more requests than a person needs.", wait_s)
        self._requests.take(host)

    def may_guess(self, host: str) -> None:
        """Refuses one more wrong token after too many from this address.

        Raises:
            ProblemError: 429.
        """
        wait_s = self._guesses.wait_s(host)
        if wait_s:
            raise _too_many("Too many wrong tokens came from this address.", wait_s)

    def guessed_wrong(self, host: str) -> None:
        self._guesses.take(host)


@functools.lru_cache(maxsize=4096)  # every request is asked about, and most come from few addresses
def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 that one IPv6 host has to itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((int(address), 64), strict=False).network_address)


def _too_many(detail: str, wait_s: float) -> ProblemError:
    return problem(429, "SYS117", detail, headers={"Retry-After": str(max(1, math.ceil(wait_s)))})
