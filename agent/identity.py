"""Who this replica is: a random id made once, an incarnation that grows with every start, a fingerprint of the host.

All three live in `replica.json` on container-local disk. Host names and machine ids are not used: they
repeat. The fingerprint (boot, container, start of pid 1) lets the coordinator tell a restart from a clone.
A lock beside the file keeps a second agent out of the same state folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from coordinator.core import process
from coordinator.core.paths import Layout, write_whole

_REPLICA_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,63}")


class StateInUse(Exception):
    """Another agent works in this state folder."""


@dataclass(frozen=True, slots=True)
class Identity:
    replica_id: str
    incarnation: int
    fingerprint: str


def fingerprint() -> str:
    """Boot id, container id and start time of pid 1, hashed. The same for all processes of one container's life."""
    boot = _read("/proc/sys/kernel/random/boot_id")
    container = _container_id()
    first = process.identify(1)
    text = f"{boot}\n{container}\n{first.start_ticks if first else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _container_id() -> str:
    """The container's writable layer and pid namespace, which differ between containers of one host."""
    mounts = [line for line in _read("/proc/self/mountinfo").splitlines() if line.split(" ")[4:5] == ["/"]]
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    root = re.search(r"upperdir=([^,\s]+)", mounts[0]) if mounts else None
    return f"{root.group(1) if root else ''}|{namespace}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def lock(layout: Layout) -> int:
    """Take the state folder for this process; the kernel gives it back when the process ends, however it ends.

    Raises:
        StateInUse: when another agent has it.
    """
    layout.root.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.agent_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
        os.close(handle)
        raise StateInUse(
            f"another agent{f' (pid {holder})' if holder.isdigit() else ''} works in {layout.root}; "
            "stop it, or give this one a RANKCALL_STATE_DIR of its own on container-local disk"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def begin(layout: Layout) -> Identity:
    """The identity of this start of the agent, written down before it is used. Call with the lock held.

    A replica that is known goes on although a full disk does not take the next incarnation: its training needs an agent.

    Raises:
        OSError: when a new replica cannot be written down.
    """
    known = _load(layout.replica_file)
    identity = Identity(
        replica_id=known.replica_id if known else f"r-{secrets.token_hex(5)}",
        incarnation=known.incarnation + 1 if known else 1,
        fingerprint=fingerprint(),
    )
    try:
        save(layout, identity)
    except OSError:
        if known is None:
            raise
    return identity


def save(layout: Layout, identity: Identity) -> None:
    """Write `replica.json` whole or not at all."""
    write_whole(layout.replica_file, json.dumps(asdict(identity)).encode() + b"\n")


def _load(path: Path) -> Identity | None:
    """What the file says, or None where there is none that makes sense (a half-written one from an older version)."""
    try:
        found = json.loads(path.read_bytes())
        identity = Identity(str(found["replica_id"]), int(found["incarnation"]), str(found["fingerprint"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return identity if _REPLICA_ID.fullmatch(identity.replica_id) and identity.incarnation >= 1 else None
