"""Makes room on a disk that runs short: logs of attempts that are over and wholly at the coordinator go, oldest first.

Only the folders of attempts go: streams, rendered files, specs. A job's work folder stays, with the model that
may lie nowhere else, and so does everything of an attempt that runs, is wanted, or has bytes that the
coordinator lacks. Called by the agent's housekeeping, in a thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent import launcher
from coordinator.core.paths import AttemptFolder, Layout

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class Short:
    """A disk with less free than the smaller of the two is short; a checkpoint of a small adapter still fits."""

    free_bytes: int = 2 << 30
    free_share: float = 0.05

    def is_met(self, total_bytes: int, free_bytes: int) -> bool:
        return free_bytes < min(self.free_bytes, int(total_bytes * self.free_share))


SHORT = Short()


def measured(path: Path) -> tuple[int, int]:
    """Size and free room of the disk under this path, in bytes."""
    disk = shutil.disk_usage(path)
    return disk.total, disk.free


def make_room(
    layout: Layout,
    kept: Collection[str],
    short: Short = SHORT,
    measure: Callable[[Path], tuple[int, int]] = measured,
) -> tuple[str, ...]:
    """Remove what may go until the disk is not short any more; the attempts that went.

    Args:
        kept: attempts that run here or are wanted.
    """
    gone: list[str] = []
    for attempt_id, folder in _oldest_first(layout, kept):
        if not short.is_met(*measure(layout.root)):
            break
        shutil.rmtree(folder.root, ignore_errors=True)
        gone.append(attempt_id)
    if gone:
        log.warning("the disk is short: logs that the coordinator has were removed here", attempts=gone)
    return tuple(gone)


def _oldest_first(layout: Layout, kept: Collection[str]) -> Iterator[tuple[str, AttemptFolder]]:
    over: list[tuple[float, str, AttemptFolder]] = []
    for attempt_id, folder in launcher.attempt_folders(layout):
        try:
            ended_at = folder.mirrored.stat().st_mtime
        except OSError:
            continue  # something of it is only here
        if attempt_id not in kept:
            over.append((ended_at, attempt_id, folder))
    for _, attempt_id, folder in sorted(over, key=lambda entry: entry[:2]):
        yield attempt_id, folder
