"""Text that repeats itself scores near one, prose near zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.repetition import repetition


def test_saying_the_same_for_ever_scores_near_one() -> None:
    assert repetition("the sea is blue and " * 30) > 0.95
    assert repetition("yes " * 50) == 1.0
    assert repetition("海は青いです。" * 20) > 0.9


def test_prose_scores_near_zero() -> None:
    assert repetition("A tide is the rise and fall of the sea pulled by the moon, twice on most days.") == 0.0
    assert repetition("") == repetition("short answer") == 0.0


@given(st.text(max_size=400))
def test_a_score_is_a_share(text: str) -> None:
    assert 0.0 <= repetition(text) <= 1.0
