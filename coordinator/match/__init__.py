"""Do the replicas fit together? Facts of all in, findings out. Called by `stages/handshake.py` and `rankcall doctor`.

What must be equal for a training to work blocks when it is not; what should be equal is a warning; what
must suffice (disk, shared memory, limits) is judged replica by replica. Every finding carries the values of
each replica it compares, so that the page can show the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.core.protocol import Facts, Finding
from coordinator.match.alike import Comparison
from coordinator.match.each import Single, Surroundings

__all__ = ["Surroundings", "match"]


def match(
    facts: Mapping[str, Facts],
    *,
    gpus_per_node: int | None,
    names: Mapping[str, str] | None = None,
    surroundings: Mapping[str, Surroundings] | None = None,
) -> tuple[Finding, ...]:
    """Findings about `facts` by replica id; an error among them blocks.

    `gpus_per_node` None: as many as each has; 0: the job trains on CPUs. `names` are shown for the ids.
    """
    shown = {replica: (names or {}).get(replica, replica) for replica in facts}
    around = surroundings or {}
    all_of_them = Comparison(facts, shown)
    singles = [
        Single(replica, shown[replica], fact, around.get(replica, Surroundings()))
        for replica, fact in facts.items()
    ]
    gpus = gpus_per_node != 0 and (gpus_per_node is not None or any(fact.gpus for fact in facts.values()))
    found = [*all_of_them.versions()]
    if gpus:
        found += all_of_them.cuda_versions()
        found += all_of_them.gpu_counts(gpus_per_node)
        found += all_of_them.gpu_models(gpus_per_node)
        for single in singles:
            found += single.each_gpu(gpus_per_node)
        found += all_of_them.choices()
        found += all_of_them.fabric()
        for single in singles:
            found += single.choices()
    found += all_of_them.platforms()
    for single in singles:
        found += single.own(gpus=gpus)
    return tuple(found)
