"""Readings of a replica's processes as samples of the ranks they belong to. Pure.

Called by the coordinator's watch over all ranks, and by an agent that watches its own while the coordinator is away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.core.protocol import GpuTelemetry, RankTelemetry
from coordinator.core.track import Sample


def ranks_of(node_rank: int, gpus_per_node: int) -> range:
    """The ranks of one replica's processes."""
    each = max(1, gpus_per_node)
    return range(node_rank * each, (node_rank + 1) * each)


def of_each_rank(used: Sequence[RankTelemetry], ranks: Sequence[int]) -> Iterable[tuple[int, RankTelemetry]]:
    """Readings by rank; one without a rank speaks of all ranks of its replica."""
    for one in used:
        for rank in ranks:
            if one.rank in (None, rank):
                yield rank, one


def sample(used: RankTelemetry, at_s: float, gpu: GpuTelemetry | None) -> Sample:
    counted = [count for count in (used.network_bytes_in, used.network_bytes_out) if count is not None]
    return Sample(
        at_s,
        used.cpu_s,
        used.io_bytes,
        sum(counted) if counted else None,
        gpu.utilization if gpu else None,
        used.line_age_s,
        used.stopped,
        used.disk_wait,
        used.sockets,
    )


def gpu_of(gpus: Sequence[GpuTelemetry], local_rank: int) -> GpuTelemetry | None:
    return next((gpu for gpu in gpus if gpu.index == local_rank), None)
