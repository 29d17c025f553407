"""A rank that holds the others up is named, with what differs there; ranks that only wait for it are not."""

from __future__ import annotations

import random

import pytest
from test_watch import attempt

from agent.gpus import throttled
from coordinator.attempt import Watched
from coordinator.core.protocol import GpuTelemetry, Telemetry
from coordinator.core.straggler import Load, Own, differences, kept, stragglers
from coordinator.core.track import Track
from coordinator.stages.pace import judge_pace


def readings(
    *forward_s: float, seconds: int = 90, step_s: float = 1.0, data_s: float = 0.01
) -> dict[int, list[Own]]:
    chance = random.Random(7)
    return {
        rank: [
            Own(float(at), usual_s * chance.uniform(0.95, 1.05), data_s, step_s)
            for at in range(0, seconds, 2)
        ]
        for rank, usual_s in enumerate(forward_s)
    }


def test_the_slow_one_of_many_is_named_and_no_other() -> None:
    (found,) = stragglers(readings(0.3, 0.3, 0.5, 0.31))
    assert (found.rank, found.part) == (2, "compute") and 0.45 < found.own_s < 0.56


@pytest.mark.parametrize(
    "seen",
    [
        readings(0.30, 0.31, 0.33, 0.29),  # GPUs of one model differ a little
        readings(0.01, 0.03, step_s=2.0),  # three times as long, and nothing to a step
        readings(0.3, 0.5, seconds=40),  # not for long enough
        readings(0.3),
        {},
        {0: readings(0.3)[0], 1: []},  # nothing is known of one
    ],
)
def test_what_is_no_matter_is_not_said(seen: dict[int, list[Own]]) -> None:
    assert stragglers(seen) == ()


def test_steps_that_take_long_are_judged_by_the_last_few() -> None:
    seen = {
        rank: [Own(30.0 * at, usual_s, 0.0, 30.0) for at in range(8)]
        for rank, usual_s in enumerate((8.0, 14.0))
    }
    assert [one.rank for one in stragglers(seen)] == [1]


def test_a_training_that_logs_many_times_a_second_is_judged_by_its_last_minute_too() -> None:
    known: dict[int, tuple[Own, ...]] = {0: (), 1: ()}
    for number in range(20 * 90):
        for rank, usual_s in enumerate((0.01, 0.03)):
            known[rank] = kept(known[rank], Own(number / 20, usual_s, 0.0, 0.05))
    assert all(len(points) <= 120 for points in known.values())
    (found,) = stragglers(known)
    assert found.rank == 1


def test_a_burst_that_has_passed_is_forgiven() -> None:
    seen = readings(0.3, 0.3, seconds=200)
    seen[1] = [Own(one.at_s, 0.9 if one.at_s < 120 else 0.3, 0.0, 1.0) for one in seen[1]]
    assert stragglers(seen) == ()


@pytest.mark.parametrize("after", [0, 3, 20])
def test_a_few_steps_before_a_pause_and_a_few_after_it_are_not_enough(after: int) -> None:
    """As in a healthy training whose data came two minutes late at its fifth step: by chance one rank was slower in most."""
    at = [0.0, 0.1, 1.0, 1.2, 2.0, *(122.0 + number for number in range(after))]
    seen = {rank: [Own(one, usual_s, 0.0, 0.5) for one in at] for rank, usual_s in enumerate((0.053, 0.019))}
    assert stragglers(seen) == ()
    steady = [*at, *(122.0 + number for number in range(after, 80))]
    seen = {
        rank: [Own(one, usual_s, 0.0, 0.1) for one in steady] for rank, usual_s in enumerate((0.053, 0.019))
    }
    assert [one.rank for one in stragglers(seen)] == [0]


def test_a_slow_reader_of_data_is_told_from_a_slow_gpu() -> None:
    seen = readings(0.3, 0.3)
    seen[0] = [Own(one.at_s, one.forward_s, 0.4, 1.0) for one in seen[0]]
    assert [(one.rank, one.part) for one in stragglers(seen)] == [(0, "data")]


def test_what_differs_is_said_and_what_does_not_is_not() -> None:
    usual = Load(2400.0, 61.0, (), 30.0, 80e6)
    assert differences(usual, [usual, usual]) == ()
    said = differences(Load(1200.0, 88.0, ("heat",), 99.0, 10e6), [usual, usual])
    assert len(said) == 5
    assert "its GPU runs at 1200 MHz, the others at 2400" in said
    assert differences(Load(), [usual]) == () == differences(usual, [Load()])


def test_reasons_to_throttle_are_words_and_idleness_is_none() -> None:
    assert throttled(0x1) == () == throttled(0x4)
    assert throttled(0x20 | 0x8) == ("hardware slowdown", "heat")


def test_the_finding_names_rank_host_and_reason_once() -> None:
    own = {rank: tuple(points) for rank, points in readings(0.3, 0.6).items()}
    hot = Telemetry(
        at=1.0, gpus=(GpuTelemetry(index=0, clock_mhz=900.0, temperature_c=90.0),), cpu_percent=10.0
    )
    cool = Telemetry(
        at=1.0, gpus=(GpuTelemetry(index=0, clock_mhz=2400.0, temperature_c=60.0),), cpu_percent=12.0
    )
    watched = Watched((Track(0), Track(1)), 90.0, 0.0, own, {"r-0": cool, "r-1": hot})
    verdict = judge_pace(attempt(gpus=1), watched)
    assert verdict is not None and verdict.state == "pending"
    (found,) = verdict.findings
    assert (found.code, found.severity, found.replica) == ("RUN057", "warning", "r-1")
    assert "Rank 1 (host-1)" in found.message and "900 MHz" in found.message and "90 °C" in found.message
    assert judge_pace(attempt(gpus=1, warned=verdict.updates["warned"]), watched) is None
