"""What of ended jobs is kept no longer: the oldest first, never anything of a job that has not ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.retention import DAY_S, Drop, Keep, Weight, to_drop

NOW = 1_000 * DAY_S
KEEP = Keep(age_s=90 * DAY_S, size_bytes=100)


def days_ago(days: float) -> float:
    return NOW - days * DAY_S


def test_what_ended_long_ago_goes_however_little_it_is() -> None:
    weights = [Weight("young", days_ago(89), 1), Weight("old", days_ago(91), 1), Weight("runs", None, 1)]
    assert to_drop(weights, NOW, KEEP) == (Drop("old", "old"),)


def test_what_is_too_much_goes_in_the_order_in_which_it_ended_until_the_rest_fits() -> None:
    weights = [Weight(f"job-{days}", days_ago(days), 40) for days in (1, 4, 2, 3)]
    assert to_drop(weights, NOW, KEEP) == (Drop("job-4", "large"), Drop("job-3", "large"))


def test_a_job_that_runs_counts_and_loses_nothing_though_it_alone_is_too_much() -> None:
    weights = [Weight("runs", None, 1000), Weight("ended", days_ago(1), 1)]
    assert to_drop(weights, NOW, KEEP) == (Drop("ended", "large"),)


def test_what_weighs_nothing_is_not_dropped_again() -> None:
    assert to_drop([Weight("old", days_ago(500), 0), Weight("runs", None, 1000)], NOW, KEEP) == ()


@given(
    st.lists(
        st.tuples(st.none() | st.floats(0, 200), st.integers(0, 60)),
        max_size=30,
    )
)
def test_afterwards_all_fits_or_nothing_that_ended_is_left(jobs: list[tuple[float | None, int]]) -> None:
    weights = [
        Weight(str(number), None if days is None else days_ago(days), size)
        for number, (days, size) in enumerate(jobs)
    ]
    gone = {drop.job_id for drop in to_drop(weights, NOW, KEEP)}
    left = [weight for weight in weights if weight.job_id not in gone]
    assert all(weight.ended_at is not None for weight in weights if weight.job_id in gone)
    ended = [weight for weight in left if weight.ended_at is not None and weight.size_bytes]
    assert sum(weight.size_bytes for weight in left) <= KEEP.size_bytes or not ended
    assert all(NOW - (weight.ended_at or NOW) <= KEEP.age_s for weight in ended)
