"""Where rankcall keeps things on a replica's disk, and the one check that a path stays where it belongs.

Used by the agent, the coordinator and `rankcall up`. Names that come from outside (job ids, task ids,
paths in a bundle, artifacts) become parts of a path only through `Layout` or `contained`, so that no
absolute path, no `..` and no symlink leads out of the folder they belong to.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SYSTEM_STATE_DIR = Path("/var/lib/rankcall")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class PathRefused(ValueError):
    """A path from outside that is absolute, climbs out, or passes through a symlink that leads out."""


def state_dir(configured: str | os.PathLike[str] | None = None) -> Path:
    """The state folder: as configured, else /var/lib/rankcall where root can write it, else one in the home folder.

    Nothing is created.
    """
    if configured:
        return Path(configured).expanduser().absolute()
    if os.geteuid() == 0 and _writable(SYSTEM_STATE_DIR):
        return SYSTEM_STATE_DIR
    return Path.home() / ".local" / "state" / "rankcall"


def _writable(folder: Path) -> bool:
    """Whether `folder`, or the nearest parent of it that exists, can be written."""
    for place in (folder, *folder.parents):
        if place.exists():
            return os.access(place, os.W_OK | os.X_OK)
    return False


def safe_name(name: str) -> str:
    """`name`, if it can be one component of a path.

    Raises:
        PathRefused: for anything with a separator, a leading dot or characters outside `A-Za-z0-9._-`.
    """
    if not _SAFE_NAME.fullmatch(name):
        raise PathRefused(f"{name!r} cannot be the name of a file or folder")
    return name


def contained(root: Path, relative: str) -> Path:
    """The real path of `relative` under `root`, after resolving symlinks; the file need not exist.

    Raises:
        PathRefused: when it is absolute, climbs with `..`, or a symlink on its way leads out of `root`.
    """
    pure = PurePosixPath(relative)
    if (
        not relative
        or "\0" in relative
        or pure.is_absolute()
        or ".." in pure.parts
        or pure == PurePosixPath(".")
    ):
        raise PathRefused(f"{relative!r} is not a path inside the folder it belongs to")
    base = root.resolve()
    try:
        real = (base / pure).resolve()
    except (OSError, RuntimeError, UnicodeError) as error:
        # A circle of links, a name that is too long, or not a name at all.
        raise PathRefused(f"{relative!r} cannot be followed: {error}") from None
    if not real.is_relative_to(base) or real == base:
        raise PathRefused(f"{relative!r} leads out of the folder it belongs to")
    return real


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` in `path`, whole or not at all, and on disk when this returns; only its owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not made of the file's own name, which may be as long as a name can be.
    temporary = path.with_name(f".{os.getpid()}.{zlib.crc32(os.fsencode(path.name)):08x}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The folder of one attempt of one job: rendered files, streams, tasks."""

    root: Path

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def task(self, task_id: str) -> Path:
        return self.tasks / safe_name(task_id)

    @property
    def snapshot(self) -> Path:
        """`protocol.JobSnapshot` of the attempt, on the few replicas that keep one."""
        return self.root / "snapshot.json"

    @property
    def mirrored(self) -> Path:
        """Exists once the attempt is over and the coordinator has every byte of its streams."""
        return self.root / "mirrored"


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path below the state folder that rankcall uses."""

    root: Path

    @property
    def replica_file(self) -> Path:
        return self.root / "replica.json"

    @property
    def agent_lock(self) -> Path:
        return self.root / "agent.lock"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator"

    @property
    def database(self) -> Path:
        return self.coordinator / "rankcall.db"

    def job(self, job_id: str) -> Path:
        return self.jobs / safe_name(job_id)

    def work(self, job_id: str) -> Path:
        """The bundle's files, working folder of every process of the job, kept over its attempts."""
        return self.job(job_id) / "work"

    def bundle_mark(self, job_id: str) -> Path:
        """Holds the SHA-256 of the bundle that was unpacked into `work`, once it was unpacked whole."""
        return self.job(job_id) / "bundle.sha256"

    def attempt(self, job_id: str, number: int) -> AttemptFolder:
        return AttemptFolder(self.job(job_id) / f"attempt-{number}")
