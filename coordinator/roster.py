"""Who is here now: the replicas in memory, their tokens, last words and held reads.

The store remembers that a replica registered; that it is alive, what it holds and what it waits for is
known here alone, by this process's own clock. Written by `intake.py`, read by `controller.py` and the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.attempt import Observed, Seat
from coordinator.core.clock import instant, monotonic_s, now_at
from coordinator.core.protocol import (
    AttemptPlan,
    Desired,
    Facts,
    Registration,
    TaskReport,
    Telemetry,
    UploadRequest,
)
from coordinator.core.views import ReplicaView
from coordinator.store import rows

# Five missed reports: shown as not alive, and given no new seat (the same as lifecycle's).
ALIVE_WITHIN_S = 10.0
# Readings of a replica's clock that are kept, one every two seconds.
CLOCK_READINGS = 8


def hash_token(token: str, key: bytes = b"") -> str:
    """What is stored of a replica's token: 192 random bits, hashed under the join token it was issued for.

    So a changed join token ends all that was issued for the one before, and nothing in the store helps to guess it.
    """
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.sha256(key).digest()
    return hashlib.blake2b(token.encode(), key=key, digest_size=32).hexdigest()


@dataclass(slots=True, eq=False)
class Presence:
    """One replica in memory. `heard_s` is on the monotonic clock, as is `doubted_s`: when another container came
    with its id."""

    registration: Registration
    incarnation: int
    token_hash: str
    registered_at: float
    heard_s: float
    report_number: int = 0
    doubted_s: float | None = None
    last_rank: int | None = None
    facts: Facts | None = None
    telemetry: Telemetry | None = None
    holding: frozenset[str] = frozenset()
    attempt_id: str | None = None
    tasks: dict[str, TaskReport] = field(default_factory=dict)
    plan: AttemptPlan | None = None
    unknown: frozenset[str] = frozenset()
    uploads: dict[str, UploadRequest] = field(default_factory=dict)
    version: str = ""
    body: bytes = b""
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    clocks_s: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCK_READINGS))

    @property
    def clock_offset_s(self) -> float | None:
        """Its clock minus ours. A report that was long on its way makes it look behind: the best of several counts."""
        return round(max(self.clocks_s), 3) if self.clocks_s else None

    @property
    def replica_id(self) -> str:
        return self.registration.replica_id


def as_known(row: rows.Replica) -> Presence:
    """A replica that the store remembers and that has not been heard of since this process started."""
    return Presence(
        registration=Registration.model_validate(row.registration),
        incarnation=row.incarnation,
        token_hash=row.token_hash,
        registered_at=row.registered_at,
        heard_s=monotonic_s() - ALIVE_WITHIN_S - 1.0,
        last_rank=row.last_rank,
        facts=Facts.model_validate(row.facts) if row.facts else None,
    )


def expected(seat: Seat) -> Presence:
    """A replica of which no more is known than the seat it has: its silence counts from now on."""
    registration = Registration(
        replica_id=seat.replica_id,
        fingerprint="",
        incarnation=1,
        hostname=seat.hostname,
        addresses=seat.offers,
        echo_port=seat.echo_port,
        gpu_count=seat.gpu_count,
    )
    return Presence(
        registration=registration,
        incarnation=1,
        token_hash="",
        registered_at=now_at(),
        heard_s=monotonic_s(),
        last_rank=seat.rank,
    )


class Roster:
    """The replicas that registered, by id and by token.

    Args:
        keys: digests of the join tokens in force, the present one first; a replica's token is bound to one of them.

    """

    def __init__(self, keys: tuple[bytes, ...] = (b"",)) -> None:
        self._keys = keys
        self._presences: dict[str, Presence] = {}
        self._by_token: dict[str, str] = {}
        self._closing = False

    # --- membership

    def get(self, replica_id: str) -> Presence | None:
        return self._presences.get(replica_id)

    def all(self) -> Iterable[Presence]:
        return self._presences.values()

    def put(self, presence: Presence) -> None:
        """Add a replica, or the next incarnation of one; held reads of the one before end."""
        before = self._presences.get(presence.replica_id)
        if before is not None:
            self._by_token.pop(before.token_hash, None)
            presence.plan, presence.uploads = before.plan, before.uploads
            presence.unknown = before.unknown
            _release(before)
        _encode(presence)
        self._presences[presence.replica_id] = presence
        if presence.token_hash:
            self._by_token[presence.token_hash] = presence.replica_id

    def replica_by_token(self, token: str) -> tuple[str, int] | None:
        """Whose token this is: (replica id, incarnation it was issued to); None for no one's."""
        for key in self._keys:
            hashed = hash_token(token, key)
            replica_id = self._by_token.get(hashed)
            if replica_id is not None:
                presence = self._presences[replica_id]
                if hmac.compare_digest(presence.token_hash, hashed):
                    return replica_id, presence.incarnation
        return None

    def hashed(self, token: str, *, joined_with_previous: bool = False) -> str:
        """What to store of a token that is issued now, for the join token that was shown."""
        return hash_token(token, self._keys[-1] if joined_with_previous else self._keys[0])

    def alive(self, replica_id: str) -> bool:
        presence = self._presences.get(replica_id)
        return presence is not None and monotonic_s() - presence.heard_s <= ALIVE_WITHIN_S

    def forgive(self, deaf_s: float) -> None:
        """Nobody could be heard for so long: that was no silence of theirs."""
        now_s = monotonic_s()
        for presence in self._presences.values():
            presence.heard_s = min(now_s, presence.heard_s + deaf_s)

    def observed(self) -> Mapping[str, Observed]:
        """All replicas as they are now; stays so, and may be handed to a thread."""
        return dict(self.at_hand())

    def at_hand(self) -> Mapping[str, Observed]:
        """The same for a decision that is made at once, and that looks at a few of thousands."""
        return _AtHand(self._presences, monotonic_s())

    # --- what they should do

    def assign(self, replica_id: str, plan: AttemptPlan | None) -> bool:
        """Set what a replica should do; wakes its held reads. True when that is something new."""
        presence = self._presences.get(replica_id)
        if presence is None or presence.plan == plan:
            return False
        presence.plan = plan
        _encode(presence)
        _release(presence)
        return True

    def leave_alone(self, replica_id: str, unknown: frozenset[str]) -> None:
        """These attempts that the replica holds are not ours to end; wakes its held reads."""
        presence = self._presences.get(replica_id)
        if presence is not None and presence.unknown != unknown:
            presence.unknown = unknown
            _encode(presence)
            _release(presence)

    def request_upload(self, replica_id: str, request: UploadRequest) -> bool:
        """Ask a replica for a file; False when it is not here."""
        presence = self._presences.get(replica_id)
        if presence is None:
            return False
        presence.uploads[request.upload_id] = request
        _encode(presence)
        _release(presence)
        return True

    def end_upload(self, upload_id: str) -> None:
        """The upload came, or nobody wants it any more."""
        for presence in self._presences.values():
            if presence.uploads.pop(upload_id, None) is not None:
                _encode(presence)
                _release(presence)
                return

    async def changed(self, presence: Presence, wait_s: float) -> None:
        """Return when the replica's desired state changes, after `wait_s`, or when the service goes down."""
        if self._closing:  # asked again just after its held read was ended
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        presence.waiters.add(waiter)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await waiter
        finally:
            presence.waiters.discard(waiter)

    def release_all(self) -> None:
        """End every held read, and let none begin: the service is going down."""
        self._closing = True
        for presence in self._presences.values():
            _release(presence)

    # --- what is shown

    def views(self) -> tuple[ReplicaView, ...]:
        """All replicas for the API, those with a rank first, then in the order of registration."""
        now_s = monotonic_s()
        shown = [_view(presence, now_s) for presence in self._presences.values()]
        return tuple(sorted(shown, key=lambda v: (v.rank is None, v.rank or 0, v.registered_at, v.id)))


class _AtHand(Mapping[str, Observed]):
    """Replicas as decisions see them; each is made when it is looked at, and once."""

    def __init__(self, presences: Mapping[str, Presence], now_s: float) -> None:
        self._presences = presences
        self._now_s = now_s
        self._made: dict[str, Observed] = {}

    def __getitem__(self, replica_id: str) -> Observed:
        made = self._made.get(replica_id)
        if made is None:
            p = self._presences[replica_id]
            made = self._made[replica_id] = Observed(
                replica_id,
                p.registration,
                p.incarnation,
                self._now_s - p.heard_s,
                p.last_rank,
                p.facts,
                p.holding,
                p.attempt_id,
                p.tasks,
                p.clock_offset_s,
            )
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._presences)

    def __len__(self) -> int:
        return len(self._presences)


def _view(presence: Presence, now_s: float) -> ReplicaView:
    registration = presence.registration
    plan = presence.plan
    registered_at = instant(presence.registered_at)
    assert registered_at is not None
    silent_s = max(0.0, now_s - presence.heard_s)
    return ReplicaView(
        id=presence.replica_id,
        hostname=registration.hostname,
        incarnation=presence.incarnation,
        alive=silent_s <= ALIVE_WITHIN_S,
        last_seen_s=round(silent_s, 1),
        registered_at=registered_at,
        addresses=tuple(address.address for address in registration.addresses),
        ordinal=registration.ordinal,
        beside_coordinator=registration.beside_coordinator,
        gpu_count=registration.gpu_count,
        rank=plan.rank if plan else None,
        attempt_id=plan.attempt_id if plan else None,
        job_id=plan.job_id if plan else None,
        role="member" if plan else "ending" if presence.holding else "spare",
        clock_offset_s=presence.clock_offset_s,
        facts=presence.facts,
        telemetry=presence.telemetry,
    )


def _encode(presence: Presence) -> None:
    """Encode the desired state once; its version is a hash of it, so that it survives a restart."""
    desired = Desired(
        version="",
        attempt=presence.plan,
        unknown=tuple(sorted(presence.unknown)),
        uploads=tuple(presence.uploads.values()),
    )
    raw = desired.model_dump_json().encode()
    presence.version = hashlib.sha256(raw).hexdigest()[:16]
    presence.body = raw.replace(b'"version":""', f'"version":"{presence.version}"'.encode(), 1)


def _release(presence: Presence) -> None:
    for waiter in presence.waiters:
        if not waiter.done():
            waiter.set_result(None)
    presence.waiters.clear()
