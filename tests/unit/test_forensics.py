"""Evidence of a hang: real processes, their Python stacks, and their sockets with the rank on the other side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_rank_meter import running

from agent import forensics
from agent.forensics import Limits, gather
from coordinator.core import process
from coordinator.core.protocol import Member

HANGS = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
def waits_for_ever():
    time.sleep(60)
waits_for_ever()
"""
MEMBERS = (Member(replica_id="r-1", rank=7, address="127.0.0.1", name="the-other"),)


def ranks_below(root: process.ProcessId) -> list[int]:
    for _ in range(200):
        pids = [one.pid for one in process.tree(root) if forensics.place_of(one.pid)[0] is not None]
        if len(pids) == 2 and all(
            b"clock_nanosleep" in wchan or b"nanosleep" in wchan for wchan in map(_wchan, pids)
        ):
            return pids
        time.sleep(0.05)
    return pids


def _wchan(pid: int) -> bytes:
    """What it waits in; a sandbox that does not say counts as asleep."""
    return Path(f"/proc/{pid}/wchan").read_bytes().replace(b"0", b"") or b"nanosleep"


def test_stacks_and_sockets_of_every_rank_are_kept_also_of_a_stopped_one(tmp_path: Path) -> None:
    with running(HANGS) as root:
        pids = ranks_below(root)
        time.sleep(0.3)
        os.kill(pids[1], signal.SIGSTOP)
        while psutil.Process(pids[1]).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        shim = process.ProcessId(0, 0)  # nothing runs there
        begin_s = time.monotonic()
        seen = gather([shim, root], tmp_path, MEMBERS)
        assert seen.places.keys() <= {4, 5} and not seen.waiting
        assert time.monotonic() - begin_s < 10
    stacks = (tmp_path / "evidence.stacks").read_text()
    sockets = (tmp_path / "evidence.sockets").read_text()
    assert stacks.index("=== rank 4, pid") < stacks.index("=== rank 5, pid")
    assert "=== rank 5" in stacks
    assert "state T" in stacks
    native = (tmp_path / "evidence.native").read_text()
    assert "=== rank 4" in native and "=== rank 5" not in native, "a stopped one cannot be read so"
    assert "waits_for_ever (" in native or "(no native stacks:" in native
    assert stacks.count("waits_for_ever (") == 2 or "(no Python stacks:" in stacks
    assert sockets.count("rank 7 (the-other)") >= 2
    assert "ESTABLISHED" in sockets


def test_without_py_spy_the_kernel_s_word_on_each_thread_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forensics.shutil, "which", lambda *_, **__: None)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, "RANK": "0"}
    )
    try:
        me = process.identify(os.getpid())
        assert me is not None
        gather([me], tmp_path, ())
    finally:
        child.kill()
        child.wait()
    stacks = (tmp_path / "evidence.stacks").read_text()
    assert "(no Python stacks: py-spy is not installed)" in stacks
    assert f"thread {child.pid} (" in stacks


def test_evidence_has_its_time_and_no_more(tmp_path: Path) -> None:
    with running(HANGS) as root:
        ranks_below(root)
        gather([root], tmp_path, (), Limits(all_s=0.0))
    assert "(no Python stacks: no time was left)" in (tmp_path / "evidence.stacks").read_text()
