"""Which coordinator process is the active one: never two that may serve, and soon another when one is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import tenure
from coordinator.store.rows import Lease

TIMES = tenure.TenureTimes()
LEASE = Lease(epoch=3, holder="a", url="http://10.0.0.4:8000", secret="s", beat=7)


def test_a_lease_that_nobody_ever_held_is_taken_at_once() -> None:
    assert tenure.may_take(tenure.seen(None, None, 0.0), "b", 0.0, TIMES)
    assert tenure.following(None, "b", "http://b", "s").epoch == 1


def test_a_count_that_grows_keeps_the_lease_however_long_it_is_watched() -> None:
    sighting, lease = tenure.seen(None, LEASE, 0.0), LEASE
    for second in range(1, 100):
        lease = tenure.counted(lease)
        sighting = tenure.seen(sighting, lease, float(second))
        assert tenure.is_live(sighting, float(second), TIMES) and not tenure.may_take(
            sighting, "b", float(second), TIMES
        )


def test_a_count_that_stands_still_loses_it_on_the_observers_clock_alone() -> None:
    sighting = tenure.seen(None, LEASE, 1000.0)
    assert not tenure.may_take(tenure.seen(sighting, LEASE, 1005.9), "b", 1005.9, TIMES)
    assert tenure.may_take(tenure.seen(sighting, LEASE, 1006.0), "b", 1006.0, TIMES)
    new = tenure.following(LEASE, "b", "http://b", "t")
    assert (new.epoch, new.holder, new.beat) == (4, "b", 0)


@pytest.mark.parametrize(("lease", "holder"), [(replace(LEASE, released=True), "b"), (LEASE, "a")])
def test_one_that_was_given_back_or_is_ones_own_from_before_is_taken_without_waiting(
    lease: Lease, holder: str
) -> None:
    assert tenure.may_take(tenure.Sighting(lease, 0.0), holder, 0.1, TIMES)


def test_a_takeover_takes_less_than_ten_seconds() -> None:
    assert TIMES.look_s + TIMES.stale_s + TIMES.look_s < 8.0


@given(
    beats=st.lists(st.floats(0.0, 9.0), max_size=8),
    delay_s=st.floats(0.0, 3.0),
    look_s=st.floats(0.0, 30.0),
    drift=st.floats(0.9, 1.1),
)
def test_the_holder_answers_nobody_any_more_when_another_takes_its_lease(
    beats: list[float], delay_s: float, look_s: float, drift: float
) -> None:
    """Whatever the pauses between its counts, how late they are committed, when the other looks, and though one clock
    runs a tenth faster than the other."""
    confirmed_s, lease, sighting, now_s = 0.0, LEASE, tenure.seen(None, LEASE, 0.0), 0.0
    for pause_s in beats:
        began_s = now_s + pause_s
        now_s = began_s + delay_s
        confirmed_s, lease = began_s, tenure.counted(lease)
        sighting = tenure.seen(sighting, lease, now_s * drift)  # as early as it can be seen
    now_s += look_s
    if tenure.may_take(tenure.seen(sighting, lease, now_s * drift), "b", now_s * drift, TIMES):
        assert not tenure.may_serve(confirmed_s, now_s, TIMES)
