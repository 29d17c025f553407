"""Whose turn it is to be looked at: calm trainings seldom, the others once a second, and never all of them at once."""

from __future__ import annotations

from coordinator.attempt import Watched
from coordinator.core.track import Track
from coordinator.lookout import CALM_EVERY_S, LOOK_EVERY_S, TICK_S, Turns, again_after_s, is_calm


def seen(*words_s: float | None, ended: bool = False) -> Watched:
    tracks = tuple(Track(rank, word_s=word_s) for rank, word_s in enumerate(words_s))
    return Watched((*tracks, Track(len(words_s), ended=True)) if ended else tracks, 100.0, 0.0)


def test_a_training_is_calm_while_all_of_its_ranks_spoke_just_now() -> None:
    assert is_calm(seen(99.0, 91.0), 40.0)
    assert is_calm(seen(99.0, ended=True), 40.0)
    assert not is_calm(seen(99.0, 89.0), 40.0)
    assert not is_calm(seen(99.0, None), 40.0)


def test_a_calm_training_is_left_alone_for_a_while_and_one_with_a_short_measure_of_its_own_for_less() -> None:
    assert again_after_s(calm=True, window_s=40.0) == CALM_EVERY_S
    assert again_after_s(calm=True, window_s=900.0) == CALM_EVERY_S
    assert again_after_s(calm=True, window_s=16.0) == 4.0
    assert again_after_s(calm=True, window_s=2.0) == LOOK_EVERY_S
    assert again_after_s(calm=False, window_s=900.0) == LOOK_EVERY_S


def test_all_have_their_turn_in_their_time_and_no_tick_has_many() -> None:
    turns, ids = Turns(), {f"{n:03}-1" for n in range(500)}
    looked_s: dict[str, float] = {}

    def tick(now_s: float) -> int:
        due = turns.due(ids, now_s)
        for id_ in due:
            assert now_s - looked_s.get(id_, now_s) <= 2 * CALM_EVERY_S
            looked_s[id_] = now_s
            turns.after(id_, now_s, CALM_EVERY_S)
        return len(due)

    # all of them soon, and then evenly
    assert max(tick(100.0 + n * TICK_S) for n in range(80)) == len(ids) * TICK_S / LOOK_EVERY_S
    assert looked_s.keys() == ids
    assert max(tick(104.0 + n * TICK_S) for n in range(800)) <= len(ids) * TICK_S / CALM_EVERY_S + 1
    assert min(looked_s.values()) > 144.0 - CALM_EVERY_S - 2 * TICK_S


def test_who_has_ended_is_forgotten_and_who_is_new_comes_at_once() -> None:
    turns = Turns()
    for now_s, there, expected in (
        (100.0, {"a-1", "b-1"}, ["a-1"]),
        (100.0, {"b-1"}, ["b-1"]),
        (101.0, {"b-1", "c-1"}, ["c-1"]),
    ):
        assert turns.due(there, now_s) == expected
        turns.after(expected[0], now_s, CALM_EVERY_S)
    assert turns.due(set(), 200.0) == []
