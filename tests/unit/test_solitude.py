"""An agent alone gathers evidence of what looks like a hang, and ends only what has hung for five minutes in training."""

from __future__ import annotations

from coordinator.core.protocol import ProgressRecord, RankTelemetry, Telemetry
from coordinator.core.solitude import ALONE_S, END_AFTER_S, Decision, Solitude


def alone(
    seconds: int, *, works_until: int = 0, steps_until: int = 0, phase: str = "train", steps_before: int = 5
) -> list[Decision]:
    """What is decided, second by second, about two ranks of a replica that has been alone since second 0."""
    seen = Solitude((2, 3), 0.0, ALONE_S)
    before = [
        ProgressRecord(type="log", at=float(2 * step), rank=rank, step=step)
        for step in range(1, steps_before + 1)
        for rank in (2, 3)
    ]
    started = [ProgressRecord(type="phase", at=0.0, rank=rank, phase=phase) for rank in (2, 3)]
    seen = seen.told([*started, *before], ALONE_S)
    decided: list[Decision] = []
    cpu_s = 0.0
    for second in range(int(ALONE_S), seconds):
        cpu_s += 1.0 if second < works_until else 0.001
        if second < steps_until:
            step = steps_before + 1 + second
            seen = seen.told(
                [ProgressRecord(type="log", at=100.0 + second, rank=rank, step=step) for rank in (2, 3)],
                second,
            )
        ranks = tuple(
            RankTelemetry(rank=rank, cpu_s=cpu_s, io_bytes=0, network_bytes_in=0, network_bytes_out=0)
            for rank in (2, 3)
        )
        seen = seen.read(Telemetry(at=float(second), ranks=ranks), second, gpus=False)
        decided.append(seen.decide(second))
    return decided


def first(decided: list[Decision], what: Decision) -> int | None:
    return int(ALONE_S) + decided.index(what) if what in decided else None


def test_a_hang_leaves_evidence_within_a_minute_and_is_ended_after_five() -> None:
    decided = alone(500)
    evidence, end = first(decided, "evidence"), first(decided, "end")
    assert evidence is not None and evidence <= 60 + ALONE_S
    assert end is not None and END_AFTER_S <= end <= END_AFTER_S + 2 * ALONE_S


def test_a_training_that_goes_on_is_left_alone() -> None:
    assert set(alone(700, works_until=700, steps_until=700)) == {"watch"}


def test_one_that_hangs_later_is_given_its_five_minutes_from_then_on() -> None:
    end = first(alone(700, works_until=300, steps_until=300), "end")
    assert end is not None and end >= 300 + END_AFTER_S - 1


def test_outside_of_training_nothing_is_ended_for_others_may_work() -> None:
    assert "end" not in alone(700, phase="save")
    assert "end" not in alone(700, steps_before=0)


def test_ranks_that_work_are_not_ended() -> None:
    assert set(alone(700, works_until=700)) == {"watch"}
