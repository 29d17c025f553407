"""How loaded this replica is right now: CPU, memory, disk, GPUs, and what each rank of its training uses.

Read every few seconds for each report, so it is cheap. Called by the report loop of `main.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from agent.gpus import Gauges
from agent.rank_meter import RankMeter
from coordinator.core.clock import now_at
from coordinator.core.process import ProcessId
from coordinator.core.protocol import Telemetry

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Takes readings.

    Args:
        state_dir: the disk to watch.
    """

    def __init__(self, state_dir: Path, environment: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._gauges = Gauges(environment)
        self._ranks = RankMeter()
        psutil.cpu_percent(None)  # the first reading has nothing to compare with

    def read(self, roots: Iterable[ProcessId], streams: Path | None = None) -> Telemetry:
        """A reading now; `roots` are the shims of what this replica runs, `streams` the folder of its logs."""
        memory = psutil.virtual_memory()
        training_cpu_s, ranks = self._ranks.read(tuple(roots), streams)
        return Telemetry(
            at=now_at(),
            cpu_percent=psutil.cpu_percent(None),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            agent_rss_bytes=_own_rss(),
            disk_free_bytes=self._disk_free(),
            training_cpu_s=training_cpu_s,
            gpus=self._gauges.read(),
            ranks=ranks,
        )

    def _disk_free(self) -> int | None:
        try:
            return shutil.disk_usage(self._state_dir).free
        except OSError:
            return None


def _own_rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
