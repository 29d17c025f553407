"""Whether NCCL may go over InfiniBand between these replicas. Pure; called by `stages/handshake.py` and `match`."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.core.protocol import Facts

# NCCL pins its buffers for the adapter: some hundred MB a GPU.
LOCKED_BYTES = 1 << 30


def infiniband(facts: Mapping[str, Facts]) -> dict[str, tuple[str, ...]]:
    """The ports each replica is to use, by replica id; empty where one of them has none that all the others share.

    That ports are up and of one subnet is no proof that packets pass (partitions keep tenants apart): the collective check
    runs over them before anything is trained.
    """
    if len(facts) < 2 or any(0 <= fact.limits.get("memlock", -1) < LOCKED_BYTES for fact in facts.values()):
        return {}
    shared = set.intersection(*({port.subnet for port in fact.infiniband} for fact in facts.values()))
    if not shared:
        return {}
    return {
        replica: tuple(port.name for port in fact.infiniband if port.subnet in shared)
        for replica, fact in facts.items()
    }
