"""What an attempt is doing and what came of it, in words for its job's verdict. Called by `lifecycle.py`."""

from __future__ import annotations

from coordinator.attempt import AttemptState, StageRecord
from coordinator.core.protocol import Stage
from coordinator.core.words import counted


def doing(record: StageRecord, attempt: AttemptState) -> str:
    n = len(attempt.seats)
    who = f"{n} replicas" if n > 1 else "one replica"
    ranks = counted(attempt.world_size, "rank")
    return {
        Stage.GATHER: f"Gathering {who}.",
        Stage.MATCH: f"Comparing {who}.",
        Stage.TCP: f"Probing every link between {who}.",
        Stage.COLLECTIVE: f"Testing a collective over {ranks}.",
        Stage.PREPARE: f"Preparing the data on {who}.",
        Stage.TRAIN: f"Training on {ranks}.",
        Stage.COLLECT: "Collecting and verifying the model.",
        Stage.COMPARE: "Comparing the base and the tuned model.",
    }[record.stage]


def result(attempt: AttemptState) -> str:
    collected = next((s.summary for s in attempt.stages if s.stage is Stage.COLLECT), "")
    return collected or "done"
