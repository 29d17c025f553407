"""Which of several coordinator processes is the active one: decisions over the lease that lies in their store. Pure.

The lease has an epoch, which grows with each change of hands, and a count, which grows while its holder lives. One
whose count stands still for `stale_s` *as the observer's own clock sees it* has lost it to whoever writes the next
epoch. The holder stops serving by itself before that, and a transaction of an earlier epoch fails, so that a process
which was frozen or cut off can do no harm when it wakes up. No clock of another machine is ever compared. The same
idea as `core/lease.py` on a shared folder; called by `office.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.store.rows import Lease


@dataclass(frozen=True, slots=True)
class TenureTimes:
    """Judgements, in seconds. From a holder's death to the next one's first answer it takes at most
    `look_s + stale_s + look_s`, and what it takes to read the open jobs.

    Attributes:
        beat_s: between two counts of the holder: a row and a sync of the database.
        look_s: between two looks of those that stand by.
        stale_s: a count standing still for so long means a dead holder: above a checkpoint of a busy database.
        serve_s: since the holder began the last count that was committed; then it answers nobody until the next.
            Below `stale_s`, which the observer counts from later: what lies between is for clocks that run apart.
    """

    beat_s: float = 1.0
    look_s: float = 0.5
    stale_s: float = 6.0
    serve_s: float = 4.5


@dataclass(frozen=True, slots=True)
class Sighting:
    """The lease (None: nobody ever held it), and since when on the observer's clock it has looked exactly like this."""

    lease: Lease | None
    since_s: float


def seen(before: Sighting | None, found: Lease | None, now_s: float) -> Sighting:
    """What is known after one more look."""
    return before if before is not None and before.lease == found else Sighting(found, now_s)


def is_live(sighting: Sighting, now_s: float, times: TenureTimes) -> bool:
    """Whether somebody holds the lease, as far as can be seen."""
    lease = sighting.lease
    return lease is not None and not lease.released and now_s - sighting.since_s < times.stale_s


def may_take(sighting: Sighting, holder: str, now_s: float, times: TenureTimes) -> bool:
    """Whether the next epoch may be written: nobody lives who holds this one, or it is one's own from before."""
    lease = sighting.lease
    return lease is None or lease.holder == holder or not is_live(sighting, now_s, times)


def following(lease: Lease | None, holder: str, url: str, secret: str) -> Lease:
    """The lease of the next epoch."""
    return Lease(epoch=1 if lease is None else lease.epoch + 1, holder=holder, url=url, secret=secret)


def counted(lease: Lease) -> Lease:
    return replace(lease, beat=lease.beat + 1)


def may_serve(confirmed_s: float, now_s: float, times: TenureTimes) -> bool:
    """Whether the holder may answer; `confirmed_s`: when it began the last count that was committed."""
    return now_s - confirmed_s < times.serve_s
