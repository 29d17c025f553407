"""Who really asks, where a proxy stands between: forwarded headers count only if a trusted peer sent them.

Without that check anybody could write any address into the audit and escape the limits of his own. Called by
`edge.py` for each request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from starlette.types import Scope

FORWARDED_HOST = "rankcall.forwarded_host"
# A proxy on this very machine: a sidecar, a tunnel, `kubectl port-forward`.
THIS_MACHINE = ("127.0.0.0/8", "::1/128")
# More hops than any real chain has.
_MOST_HOPS = 16


def plain_address(host: str) -> str:
    """IPv4 in its own form also on a dual-stack socket."""
    return host.removeprefix("::ffff:") if "." in host else host


class TrustedPeers:
    """The networks that forwarded headers are believed from."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(
            ipaddress.ip_network(network, strict=False) for network in (*THIS_MACHINE, *networks)
        )

    def trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks if network.version == address.version)

    def settle(self, scope: Scope, headers: Mapping[bytes, bytes], *, proven: bool = False) -> None:
        """Write into `scope` who asks and how, as a trusted peer tells it; as it is where none does.

        Args:
            proven: another coordinator process of ours tells it, from wherever it is.
        """
        client = scope.get("client")
        if client is None:
            return
        host = plain_address(str(client[0]))
        scope["client"] = (host, client[1])
        if _FORWARDED.isdisjoint(headers) or not (proven or self.trusts(host)):
            return
        told = headers.get(b"x-forwarded-for")
        if told is not None:
            scope["client"] = (self._visitor(told.decode("latin-1"), host), 0)
        if headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https":
            scope["scheme"] = "https"
        name = headers.get(b"x-forwarded-host")
        if name is not None:
            scope[FORWARDED_HOST] = name.decode("latin-1").strip().lower()

    def _visitor(self, told: str, peer: str) -> str:
        """The last hop that is not a proxy we trust; what stands before it is that visitor's own claim."""
        hops = [hop.strip().strip('"[]') for hop in told.split(",")][-_MOST_HOPS:]
        for hop in reversed(hops):
            try:
                address = str(ipaddress.ip_address(hop.partition("%")[0]))
            except ValueError:
                return peer
            peer = plain_address(address)
            if not self.trusts(peer):
                return peer
        return peer


_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
