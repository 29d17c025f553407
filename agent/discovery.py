"""Where the coordinator is now, as an agent and the page's proxy see it.

Asked anew whenever the coordinator does not answer: names resolve later, a lease moves. Whether the
coordinator is *here* is decided by `rankcall up` (`coordinator/up.py`), which starts it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from coordinator.core.lease import LeaseFolder
from coordinator.core.whereabouts import (
    Hints,
    Place,
    Undecided,
    checked_address,
    checked_urls,
    decide,
    parse_peers,
    recogniser,
    resolve,
)


class Told(Protocol):
    """What `agent/settings.py` has of discovery."""

    @property
    def url(self) -> str | None: ...
    @property
    def peers(self) -> tuple[str, ...]: ...
    @property
    def shared_dir(self) -> Path | None: ...
    @property
    def port(self) -> int: ...
    @property
    def address(self) -> str | None: ...
    @property
    def tls_cert(self) -> Path | None: ...
    @property
    def tls_ca(self) -> Path | None: ...
    @property
    def nodes(self) -> int | None: ...


def hints_from(told: Told) -> Hints:
    """Raises: BadHint for a URL, a peer or an address that cannot be understood."""
    urls = checked_urls(told.url or "", "RANKCALL_URL")
    return Hints(
        url=urls[0] if urls else None,
        others=urls[1:],
        peers=parse_peers(" ".join(told.peers)),
        shared_dir=told.shared_dir,
        port=told.port,
        address=checked_address(told.address) if told.address else None,
        nodes=told.nodes,
        tls=told.tls_cert is not None or told.tls_ca is not None,
    )


def locate(hints: Hints) -> Place | Undecided:
    """One look; may block on a name server or a shared folder."""
    if hints.url is not None:
        return Place(hints.url, here=False, how="RANKCALL_URL", others=hints.others)
    if hints.peers or hints.shared_dir is None:
        return decide(hints, resolve, recogniser(hints))
    try:
        lease = LeaseFolder(hints.shared_dir).newest()
    except OSError as error:
        return Undecided(f"RANKCALL_SHARED_DIR {hints.shared_dir} cannot be read: {error.strerror or error}")
    if lease is None or not lease.url:
        return Undecided(f"no replica holds the coordinator's lease in {hints.shared_dir} yet")
    return Place(lease.url, here=False, how=f"epoch {lease.epoch} of the lease in {hints.shared_dir}")


async def coordinator_urls(settings: Told) -> tuple[str, ...] | Undecided:
    """The base URLs of the coordinator's processes, or why they are not known yet. Never blocks the loop.

    Raises:
        BadHint: for a RANKCALL_* variable that cannot be understood.
    """
    place = await asyncio.to_thread(locate, hints_from(settings))
    return place if isinstance(place, Undecided) else place.urls
