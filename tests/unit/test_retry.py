"""Another attempt follows a fault that may pass, never one that cannot, and never at once for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.retry import POLICY, may_follow, pause_s

KINDS = st.sampled_from(["configuration", "resources", "network", "replica", "unknown"])


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_fault_of_the_configuration_is_never_tried_again(attempts: int, allowed: int) -> None:
    assert not may_follow("configuration", attempts, allowed)


@given(KINDS, st.integers(0, 50), st.integers(1, 50))
def test_there_are_never_more_attempts_than_the_job_allows(kind: str, beyond: int, allowed: int) -> None:
    assert not may_follow(kind, allowed + beyond, allowed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "made"), [("configuration", 1), ("resources", 2), ("network", 5), ("replica", 5), ("unknown", 5)]
)
def test_how_often_each_kind_of_fault_is_tried(kind: str, made: int) -> None:
    attempts = 1
    while may_follow(kind, attempts, 5):  # type: ignore[arg-type]
        attempts += 1
    assert attempts == made


@given(KINDS, st.integers(1, 10_000))
def test_pauses_grow_and_stay_bounded(kind: str, attempts: int) -> None:
    first, second = (pause_s(kind, number) for number in (attempts, attempts + 1))  # type: ignore[arg-type]
    assert 0 < first <= second <= POLICY.longest_s


def test_the_first_pause_leaves_a_hang_its_half_minute() -> None:
    assert pause_s("network", 1) <= 2.0
