"""Paths from outside stay inside, files are written whole, and one state folder has one agent."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import identity
from coordinator.core.paths import Layout, PathRefused, contained, safe_name, write_whole


@pytest.mark.parametrize("name", ["a", "train.jsonl", "sub/dir/x.json", "./x", "a//b", "..a/b", "a b/ü.txt"])
def test_ordinary_relative_paths_are_taken(tmp_path: Path, name: str) -> None:
    assert contained(tmp_path, name) == (tmp_path / name).resolve()


@pytest.mark.parametrize(
    "name", ["", ".", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "x\0y", "//etc/passwd", "./."]
)
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathRefused):
        contained(tmp_path, name)


def test_a_link_may_point_inside_and_not_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "inside").symlink_to("real")
    (root / "outside").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    assert contained(root, "inside/x") == root.resolve() / "real/x"
    for name in ("outside", "outside/x"):
        with pytest.raises(PathRefused):
            contained(root, name)
    with pytest.raises(PathRefused):
        contained(root, "loop/x")


@given(st.text(max_size=40))
def test_whatever_the_path_it_stays_inside_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    root = tmp_path_factory.getbasetemp()
    with contextlib.suppress(PathRefused):
        assert contained(root, name).is_relative_to(root.resolve())


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\n", "a" * 200])
def test_ids_that_cannot_be_a_folders_name_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathRefused):
        safe_name(name)
    with pytest.raises(PathRefused):
        Layout(tmp_path).job(name)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o077 == 0
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "folder", b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["deep", "folder"]


def test_a_name_may_be_as_long_as_the_disk_takes(tmp_path: Path) -> None:
    write_whole(tmp_path / ("n" * 255), b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["n" * 255]


def test_the_id_stays_and_the_incarnation_grows_with_every_start(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    first, second = identity.begin(layout), identity.begin(layout)
    assert first.replica_id == second.replica_id
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.fingerprint == second.fingerprint == identity.fingerprint()
    assert layout.replica_file.stat().st_mode & 0o077 == 0
    assert identity.begin(Layout(tmp_path / "other")).replica_id != first.replica_id


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"replica_id": "../x", "incarnation": 1, "fingerprint": ""}']
)
def test_a_replica_file_that_makes_no_sense_is_begun_anew(tmp_path: Path, content: str) -> None:
    layout = Layout(tmp_path)
    layout.replica_file.write_text(content)
    assert identity.begin(layout).incarnation == 1


def test_the_state_folder_is_free_again_when_its_agent_was_killed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    program = (
        "import sys, time; from pathlib import Path; from agent import identity; from coordinator.core.paths import Layout\n"
        f"identity.lock(Layout(Path({str(layout.root)!r}))); print('locked', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(identity.StateInUse, match=f"pid {holder.pid}"):
            identity.lock(layout)
    finally:
        holder.kill()
        holder.communicate()
    identity.lock(layout)
