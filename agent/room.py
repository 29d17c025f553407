"""Makes room on a disk that runs short: logs of attempts that are over and wholly at the coordinator go, oldest first.

Only the folders of attempts go: streams, rendered files, specs. A job's work folder stays, with the model that
may lie nowhere else, and so does everything of an attempt that runs, is wanted, or has bytes that the
coordinator lacks. Called by the agent's housekeeping, in a thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator

import structlog

from agent import launcher
from coordinator.core.paths import AttemptFolder, Layout

log = structlog.get_logger("agent")

# Short is a disk with less than this; a checkpoint of a small adapter still fits. The smaller of the two counts.
SHORT_BYTES = 2 << 30
SHORT_SHARE = 0.05


def is_short(layout: Layout) -> bool:
    disk = shutil.disk_usage(layout.root)
    return disk.free < min(SHORT_BYTES, int(disk.total * SHORT_SHARE))


def make_room(layout: Layout, kept: Collection[str]) -> tuple[str, ...]:
    """Remove what may go until the disk is not short any more; the attempts that went.

    Args:
        kept: attempts that run here or are wanted.
    """
    gone: list[str] = []
    for attempt_id, folder in _oldest_first(layout, kept):
        if not is_short(layout):
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
