"""The lease on a shared folder: one master whoever races, fenced when it was away, taken over when it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.lease import Fenced, Lease, LeaseFolder, LeaseTimes, Sighting
from coordinator.core.whereabouts import Place
from coordinator.role import Contest, holder_name

QUICK = LeaseTimes(beat_s=0.1, stale_s=1.0, settle_s=0.05)

RACER = """
import sys, time
from pathlib import Path
from coordinator.core.lease import LeaseFolder, LeaseTimes
from coordinator.core.whereabouts import Place
from coordinator.role import Contest
name, folder, start_at, length_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
contest = Contest(LeaseFolder(folder, LeaseTimes(beat_s=0.1, stale_s=1.0, settle_s=0.05)), name, f"http://{name}:8000")
time.sleep(max(0.0, start_at - time.time()))
end_at = start_at + length_s
while time.time() < end_at:
    place = contest.look(time.monotonic())
    here = isinstance(place, Place) and place.here
    print(f"{time.monotonic()} {name} {int(here)}", flush=True)
    time.sleep(0.1)
"""


def race(folder: Path, name: str, start_at: float, length_s: float) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", RACER, name, str(folder), str(start_at), str(length_s)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def readings(racer: subprocess.Popen[str]) -> list[tuple[float, str, bool]]:
    text, _ = racer.communicate(timeout=30)
    return [(float(at), name, here == "1") for at, name, here in (line.split() for line in text.splitlines())]


def test_of_many_that_start_at_once_exactly_one_becomes_master(tmp_path: Path) -> None:
    start_at = time.time() + 2.0
    racers = [race(tmp_path, f"r{n}", start_at, 1.5) for n in range(6)]
    seen = [reading for racer in racers for reading in readings(racer)]
    assert len({name for _, name, here in seen if here}) == 1


def test_a_killed_master_is_followed_by_exactly_one_other(tmp_path: Path) -> None:
    start_at = time.time() + 1.5
    first = race(tmp_path, "first", time.time(), 60.0)
    while not any("1" in line.split()[2] for line in iter(first.stdout.readline, "")):  # type: ignore[union-attr]
        pass
    others = [race(tmp_path, f"r{n}", start_at, 3.5) for n in range(3)]
    time.sleep(max(0.0, start_at + 0.5 - time.time()))
    first.kill()
    first.wait()
    masters = {name for racer in others for _, name, here in readings(racer) if here}
    assert len(masters) == 1
    newest = LeaseFolder(tmp_path).newest()
    assert newest is not None
    assert newest.epoch == 2
    assert newest.holder in masters


def test_a_master_that_was_stopped_for_long_finds_itself_fenced(tmp_path: Path) -> None:
    paused = race(tmp_path, "paused", time.time(), 4.0)
    assert paused.stdout is not None
    while not paused.stdout.readline().endswith("1\n"):
        pass
    os.kill(paused.pid, signal.SIGSTOP)
    heir = Contest(LeaseFolder(tmp_path, QUICK), "heir", "http://heir:8000")
    give_up_s = time.monotonic() + 5
    while not (isinstance(place := heir.look(time.monotonic()), Place) and place.here):
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
    taken_s = time.monotonic()
    os.kill(paused.pid, signal.SIGCONT)
    while paused.poll() is None:
        place = heir.look(time.monotonic())
        assert isinstance(place, Place)
        assert place.here
        time.sleep(0.1)
    assert not any(here for at, _, here in readings(paused) if at > taken_s)


def contest(folder: Path, name: str) -> Contest:
    return Contest(LeaseFolder(folder, QUICK), name, f"http://{name}:8000")


def test_a_restarted_holder_takes_its_own_lease_back_at_once(tmp_path: Path) -> None:
    assert contest(tmp_path, "same").look(0.0).here  # type: ignore[union-attr]
    again = contest(tmp_path, "same").look(0.0)
    assert isinstance(again, Place)
    assert again.here
    assert LeaseFolder(tmp_path).newest() == Lease(2, "same", "http://same:8000", beat=1)


def test_a_lease_that_was_given_back_is_taken_without_waiting(tmp_path: Path) -> None:
    first = contest(tmp_path, "first")
    first.look(0.0)
    assert not contest(tmp_path, "second").look(0.0).here  # type: ignore[union-attr]
    first.give_up()
    assert contest(tmp_path, "second").look(0.0).here  # type: ignore[union-attr]


def test_a_living_master_is_never_taken_for_stale_whatever_the_observers_clock_says(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path, QUICK)
    lease = folder.take(1, "first", "http://first:8000")
    assert lease is not None
    second = contest(tmp_path, "second")
    for now_s in range(0, 100, 1):
        lease = folder.beat(lease)
        assert not second.look(now_s * 0.9).here  # type: ignore[union-attr]


def test_a_holder_cut_off_from_the_folder_stops_before_another_may_take_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    holder = contest(shared, "first")
    assert holder.look(0.0).here  # type: ignore[union-attr]
    shared.rename(tmp_path / "away")
    shared.write_text("a file where the folder was")
    still = holder.look(0.3)
    assert isinstance(still, Place)
    assert still.here
    assert not isinstance(holder.look(0.8), Place)
    shared.unlink()
    (tmp_path / "away").rename(shared)
    assert holder.look(0.9).here  # type: ignore[union-attr]


def test_a_half_written_lease_is_waited_for_and_then_taken_over(tmp_path: Path) -> None:
    (tmp_path / "coordinator-4.lease").write_text('{"holder": "x')
    heir = contest(tmp_path, "heir")
    assert not isinstance(heir.look(0.0), Place)
    assert not isinstance(heir.look(0.9), Place)
    assert heir.look(1.1).here  # type: ignore[union-attr]
    newest = LeaseFolder(tmp_path).newest()
    assert newest is not None
    assert newest.epoch == 5


def test_a_fenced_holder_neither_counts_nor_gives_back(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path, QUICK)
    old = folder.take(1, "old", "http://old:8000")
    new = folder.take(2, "new", "http://new:8000")
    assert old is not None
    assert new is not None
    with pytest.raises(Fenced):
        folder.beat(old)
    folder.release(old)
    assert folder.newest() == new


def test_old_leases_do_not_pile_up(tmp_path: Path) -> None:
    folder = LeaseFolder(tmp_path, replace(QUICK, settle_s=0.0))
    for epoch in range(1, 20):
        assert folder.take(epoch, f"r{epoch}", "http://r:8000") is not None
    assert len(list(tmp_path.iterdir())) <= 4


def test_a_sighting_grows_old_only_while_nothing_changes() -> None:
    lease = Lease(1, "a", "http://a", beat=1)
    seen = Sighting(lease, 0.0)
    assert not seen.seen_again(lease, 10.0).is_free(10.0, stale_s=15.0)
    assert seen.seen_again(lease, 15.0).is_free(15.0, stale_s=15.0)
    assert not seen.seen_again(replace(lease, beat=2), 15.0).is_free(15.0, stale_s=15.0)


def test_a_copied_container_has_another_name_in_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = holder_name(tmp_path)
    assert holder_name(tmp_path) == name
    monkeypatch.setattr("socket.gethostname", lambda: "another-container")
    assert holder_name(tmp_path) != name


def test_a_name_that_cannot_be_kept_is_a_name_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert holder_name(tmp_path / "file" / "state") != holder_name(tmp_path / "file" / "state")
