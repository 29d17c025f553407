"""What this replica is: it watches the hints of discovery and says so whenever the answer changes.

A thread of `rankcall up`, because name servers and shared folders may block for minutes while a SIGTERM
must not. By a lease the role is held, lost and won. By URL or peers a master stays master; a replica looks
again now and then, since a name server may for a while know the address that this container had before.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from coordinator.core.clock import monotonic_s
from coordinator.core.lease import Fenced, Lease, LeaseFolder, LeaseTimes, Sighting
from coordinator.core.paths import write_whole
from coordinator.core.whereabouts import (
    Hints,
    Place,
    Undecided,
    decide,
    http_url,
    reachable_address,
    recogniser,
    resolve,
)

# A name that does not resolve is asked for again: quickly at first (all containers start together), then
# seldom, since a name server is shared.
_FIRST_RETRY_S = 0.5
_SLOWEST_RETRY_S = 5.0
_LOOK_AGAIN_S = 15.0


class RoleWatch(threading.Thread):
    """Calls `tell` with each new answer, from this thread. `close` gives a held lease back."""

    def __init__(
        self,
        hints: Hints,
        state: Path,
        tell: Callable[[Place | Undecided], None],
        times: LeaseTimes | None = None,
    ) -> None:
        super().__init__(name="role", daemon=True)
        self._hints = hints
        self._tell = tell
        self._closing = threading.Event()
        self._last: Place | Undecided | None = None
        self._contest = None
        if hints.url is None and not hints.peers and hints.shared_dir is not None:
            folder = LeaseFolder(hints.shared_dir, times)
            url = http_url(hints.address or reachable_address(), hints.port, tls=hints.tls)
            self._contest = Contest(folder, holder_name(state), url)

    def run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            place = settled(self._last, self._look()) if self._contest is None else self._look()
            if place != self._last:
                self._last = place
                self._tell(place)
            if self._contest is not None:
                self._closing.wait(self._contest.folder.times.beat_s)
            elif isinstance(place, Undecided):
                self._closing.wait(retry_s)
                retry_s = min(retry_s * 1.5, _SLOWEST_RETRY_S)
            elif place.here:
                return
            else:
                self._closing.wait(_LOOK_AGAIN_S)
        if self._contest is not None:
            self._contest.give_up()

    def _look(self) -> Place | Undecided:
        if self._contest is not None:
            return self._contest.look(monotonic_s())
        return decide(self._hints, resolve, recogniser(self._hints))

    def close(self, wait_s: float) -> None:
        """Ends the watch; a shared folder that does not answer is not waited for any longer than `wait_s`."""
        self._closing.set()
        self.join(wait_s)


def settled(before: Place | Undecided | None, now: Place | Undecided) -> Place | Undecided:
    """The role after one more look by names: what is decided stays, but a replica may turn out to be the master."""
    if not isinstance(before, Place):
        return now
    return now if isinstance(now, Place) and now.here else before


class Contest:
    """One replica's part in who holds the lease. `look` is called every `beat_s`."""

    def __init__(self, folder: LeaseFolder, holder: str, url: str) -> None:
        self.folder = folder
        self._holder = holder
        self._url = url
        self._held: Lease | None = None
        self._beaten_s = 0.0
        self._sighting: Sighting | None = None

    def look(self, now_s: float) -> Place | Undecided:
        try:
            return self._hold(self._held, now_s) if self._held is not None else self._seek(now_s)
        except OSError as error:
            why = f"{self.folder.folder} (RANKCALL_SHARED_DIR): {error.strerror or error}"
            return self._cut_off(why, now_s)

    def _hold(self, held: Lease, now_s: float) -> Place | Undecided:
        try:
            self._held = self.folder.beat(held)
        except Fenced as fenced:
            self._held = None
            self._sighting = Sighting(fenced.newer, now_s)
            return self._elsewhere(fenced.newer)
        self._beaten_s = now_s
        return self._here(held)

    def _seek(self, now_s: float) -> Place | Undecided:
        newest = self.folder.newest()
        if newest is not None:
            seen = self._sighting or Sighting(newest, now_s)
            self._sighting = seen.seen_again(newest, now_s)
            ours = newest.holder == self._holder
            if not ours and not self._sighting.is_free(now_s, self.folder.times.stale_s):
                return self._elsewhere(newest)
        epoch = 1 if newest is None else newest.epoch + 1
        taken = self.folder.take(epoch, self._holder, self._url)
        if taken is None:
            return Undecided(f"another replica has just taken epoch {epoch} of the lease")
        self._held, self._beaten_s, self._sighting = taken, now_s, None
        return self._here(taken)

    def _cut_off(self, why: str, now_s: float) -> Place | Undecided:
        """A holder that cannot count any more stops before another may take its lease for stale."""
        if self._held is not None and now_s - self._beaten_s < 0.7 * self.folder.times.stale_s:
            return self._here(self._held)
        return Undecided(why)

    def _here(self, lease: Lease) -> Place:
        return Place(self._url, here=True, how=f"this replica holds epoch {lease.epoch} of the lease")

    def _elsewhere(self, lease: Lease) -> Place | Undecided:
        if not lease.url:
            return Undecided(
                f"epoch {lease.epoch} of the lease has been taken, its address is not written yet"
            )
        return Place(lease.url, here=False, how=f"epoch {lease.epoch} of the lease")

    def give_up(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            try:
                self.folder.release(held)
            except OSError:
                return  # it grows stale by itself


def holder_name(state: Path) -> str:
    """A name for this container in leases: the same after `rankcall up` restarts in it, so that it takes its
    own lease back at once; another one in a copy of the container or after a boot."""
    mark = state / "lease-holder"
    try:
        own = mark.read_text(encoding="utf-8").strip()
    except OSError:
        own = ""
    if not own:
        own = secrets.token_hex(8)
        with contextlib.suppress(OSError):  # a full disk: after a restart the lease has to grow stale first
            write_whole(mark, own.encode())
    return hashlib.sha256(f"{own} {_boot()} {socket.gethostname()}".encode()).hexdigest()[:16]


def _boot() -> str:
    """The boot's id and when pid 1 was started in it: what makes this container this one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        first = Path("/proc/1/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
    return f"{boot} {first}"
