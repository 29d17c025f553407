"""The container's memory, and what the kernel killed for want of it, from control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import memory_limit

KILLED = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
EVENTS = "low 0\nhigh 0\nmax 17\noom 2\noom_kill 3\noom_group_kill 0\n"


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        folder.joinpath(name.replace("_OF_", ".")).write_text(content)


@pytest.mark.parametrize("inside", ["docker/abc", ""])
def test_limit_and_kills_are_read_by_the_path_or_at_the_top_of_what_is_mounted(
    tmp_path: Path, inside: str
) -> None:
    """Inside a container the path of the group may be the one outside, which is not there."""
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("9:name=systemd:/\n4:memory:/docker/abc\n0::/docker/abc\n")
    group(mount / "memory" / inside, memory_OF_limit_in_bytes="3221225472\n", memory_OF_oom_control=KILLED)
    assert memory_limit.limit_bytes(own, mount) == 3 << 30
    assert memory_limit.kills(own, mount) == 3


@pytest.mark.parametrize("inside", ["docker/abc", ""])
def test_the_second_version_is_read_alike(tmp_path: Path, inside: str) -> None:
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("0::/docker/abc\n")
    group(mount / inside, memory_OF_max="1073741824\n", memory_OF_events=EVENTS)
    assert memory_limit.limit_bytes(own, mount) == 1 << 30
    assert memory_limit.kills(own, mount) == 3


def test_without_a_limit_or_a_group_nothing_is_claimed(tmp_path: Path) -> None:
    own, mount = tmp_path / "own", tmp_path / "mount"
    assert memory_limit.limit_bytes(own, mount) is memory_limit.kills(own, mount) is None
    own.write_text("0::/../../x\nnonsense\n7:memory:/a\n")
    group(
        mount / "memory/a",
        memory_OF_limit_in_bytes="9223372036854771712\n",
        memory_OF_oom_control="oom_kill\n",
    )
    group(mount / "x", memory_OF_max="5")
    mount.joinpath("memory.max").write_text("max\n")
    assert memory_limit.limit_bytes(own, mount) is memory_limit.kills(own, mount) is None
