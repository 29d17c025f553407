"""What lay in the output folder before an attempt began, so that none of it is taken for what the attempt has saved.

Attempts of a job share `output_dir`, and an absolute one may hold the model of last week. A file that is still the one it
was (same inode, size and times to the nanosecond) was not written by this attempt, whatever its name says: an attempt that
saved nothing must not hand it out. No clock is asked: a shared disk has its own. Noted by `agent/prepare.py` before the
training can begin, read by `agent/collect.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from coordinator.core.paths import write_whole

NOTE = "output-before.json"

# Inode, bytes, modified and changed in nanoseconds.
State = tuple[int, int, int, int]


def note(output: Path, attempt: Path) -> None:
    """Write down what lies at the top level of `output` now; what was noted before stands.

    Raises:
        OSError: it cannot be written.
    """
    if not attempt.joinpath(NOTE).exists():
        write_whole(attempt / NOTE, json.dumps(states(output)).encode())


def noted(attempt: Path) -> dict[str, State]:
    """What lay there before the attempt; nothing where nobody noted it."""
    try:
        found = json.loads(attempt.joinpath(NOTE).read_bytes())
        return {str(name): (int(a), int(b), int(c), int(d)) for name, (a, b, c, d) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def states(output: Path) -> dict[str, State]:
    """Every regular file at the top level; nothing where the folder is not there."""
    found: dict[str, State] = {}
    try:
        entries = sorted(output.iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            if entry.is_file():
                found[entry.name] = state(entry)
        except OSError:
            continue
    return found


def state(path: Path) -> State:
    seen = path.stat()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def is_left(path: Path, before: Mapping[str, State]) -> bool:
    """Whether the file is still the one that lay there before."""
    known = before.get(path.name)
    try:
        return known is not None and state(path) == known
    except OSError:
        return False
