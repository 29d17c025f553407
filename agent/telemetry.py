"""How loaded this replica is right now: CPU, memory, disk, GPUs, and the CPU time of its training.

Read every few seconds for each report, so it is cheap: the tree of the training's processes is found anew only now and
then, in between the known ones are asked. Called by the report loop of `main.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from agent.gpus import Gauges
from coordinator.core import process
from coordinator.core.clock import monotonic_s, now_at
from coordinator.core.process import ProcessId
from coordinator.core.protocol import Telemetry

_TREE_EVERY_S = 10.0  # listing every process costs milliseconds; workers are started once
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Takes readings.

    Args:
        state_dir: the disk to watch.
    """

    def __init__(self, state_dir: Path, environment: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._gauges = Gauges(environment)
        self._tree: tuple[ProcessId, ...] = ()
        self._tree_at_s = float("-inf")
        self._roots: tuple[ProcessId, ...] = ()
        psutil.cpu_percent(None)  # the first reading has nothing to compare with

    def read(self, roots: Iterable[ProcessId]) -> Telemetry:
        """A reading now; `roots` are the shims of what this replica runs."""
        memory = psutil.virtual_memory()
        return Telemetry(
            at=now_at(),
            cpu_percent=psutil.cpu_percent(None),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            agent_rss_bytes=_own_rss(),
            disk_free_bytes=self._disk_free(),
            training_cpu_s=self._training_cpu_s(tuple(roots)),
            gpus=self._gauges.read(),
        )

    def _disk_free(self) -> int | None:
        try:
            return shutil.disk_usage(self._state_dir).free
        except OSError:
            return None

    def _training_cpu_s(self, roots: tuple[ProcessId, ...]) -> float | None:
        """CPU seconds of the training, those of processes of it that have ended included. None: nothing runs."""
        if not roots:
            return None
        now = monotonic_s()
        if roots != self._roots or now - self._tree_at_s >= _TREE_EVERY_S:
            self._tree = tuple(one for root in roots for one in process.tree(root))
            self._tree_at_s, self._roots = now, roots
        stats = (process.stat(one.pid) for one in self._tree)
        return round(sum(found.cpu_s for found in stats if found is not None), 2)


def _own_rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
