"""The memory that this container may use, and how often the kernel has killed a process in it for want of more.

From the control group that this process is in, of either version. It is what tells a rank that was killed by the kernel from
one that somebody killed: both end by SIGKILL without a word. Read by `facts.py` and, before and after each process of a job,
by `run_task.py`. Standard library only; where there is no such group, or it may not be read, nothing is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# An unlimited group of the first version has the largest number of whole pages in 63 bits.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class _Version:
    limit: str
    events: str


_FIRST = _Version("memory.limit_in_bytes", "memory.oom_control")
_SECOND = _Version("memory.max", "memory.events")


def limit_bytes(own: Path = _OWN, mount: Path = _MOUNT) -> int | None:
    """The container's limit; None where it has none of its own."""
    for folder, version in _groups(own, mount):
        with contextlib.suppress(OSError, ValueError):
            found = int(folder.joinpath(version.limit).read_text())
            if found < _UNLIMITED_BYTES:
                return found
    return None


def kills(own: Path = _OWN, mount: Path = _MOUNT) -> int | None:
    """How many processes of the container the kernel has killed so far for want of memory."""
    for folder, version in _groups(own, mount):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in folder.joinpath(version.events).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def _groups(own: Path, mount: Path) -> Iterator[tuple[Path, _Version]]:
    """The group by its path, and the top of what is mounted: inside a container that is the container's own group, while
    the path may be the one that it has outside."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            top, version = mount / "memory", _FIRST
        elif number == "0" and not controllers:
            top, version = mount, _SECOND
        else:
            continue
        if ".." not in path:
            yield top / path.lstrip("/"), version
        yield top, version
