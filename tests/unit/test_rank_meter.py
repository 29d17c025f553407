"""What each rank uses is read from its own processes: real ones, with real sockets, and at next to no cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import connections as diagnosis
from agent.rank_meter import RankMeter
from coordinator.core import process
from coordinator.core.protocol import RankTelemetry

LAUNCHER = """
import os, subprocess, sys
script = sys.stdin.read()
ranks = [
    subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r - 4)})
    for r in (4, 5)
]
for rank in ranks:
    rank.wait()
"""
BUSY = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
other, _ = server.accept()
if os.environ["RANK"] == "5":
    other.close()          # the client is left in CLOSE_WAIT, as in the field report
    time.sleep(60)
while True:
    client.sendall(bytes(50_000))
    left = 50_000
    while left:
        left -= len(other.recv(left))
"""


@contextmanager
def running(script: str) -> Iterator[process.ProcessId]:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE)
    assert launcher.stdin is not None
    launcher.stdin.write(script.encode())
    launcher.stdin.close()
    root = process.identify(launcher.pid)
    assert root is not None
    try:
        yield root
    finally:
        process.end(lambda: process.tree(root), grace_s=0.0)
        launcher.wait()


def until(
    meter: RankMeter, root: process.ProcessId, wanted: Callable[[tuple[RankTelemetry, ...]], bool]
) -> tuple[RankTelemetry, ...]:
    for _ in range(200):
        meter._sockets_at_s = meter._tree_at_s = float("-inf")
        _, ranks = meter.read([root], None)
        if wanted(ranks):
            return ranks
        time.sleep(0.05)
    raise AssertionError(ranks)


def test_ranks_are_told_apart_and_their_work_is_counted() -> None:
    meter = RankMeter()
    with running(BUSY) as root:
        first = until(meter, root, lambda ranks: len(ranks) == 2 and all(r.sockets for r in ranks))
        assert [(rank.rank, rank.local_rank) for rank in first] == [(4, 0), (5, 1)]
        (busy, idle) = until(meter, root, lambda ranks: (ranks[0].cpu_s or 0) > (first[0].cpu_s or 0) + 0.1)
        assert (busy.network_bytes_in or 0) > (first[0].network_bytes_in or 0) + 1_000_000
        assert (idle.cpu_s or 0) < (busy.cpu_s or 0)
        assert (idle.network_bytes_in or 0) < 1000
        assert busy.sockets == {"ESTABLISHED": 2}
        assert idle.sockets == {"CLOSE_WAIT": 1}
        os.kill(idle.pid or 0, signal.SIGSTOP)
        until(meter, root, lambda ranks: [rank.stopped for rank in ranks] == [False, True])
        assert meter.read([], None) == (None, ())


def test_before_any_rank_is_known_the_launcher_speaks_for_all(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("a line")
    (tmp_path / "progress.0").write_text("no log")
    os.utime(tmp_path / "train.log", (time.time() - 30, time.time() - 30))
    with running("import time; time.sleep(60)") as root:
        meter = RankMeter()
        _, (alone,) = meter.read([root], tmp_path)
        assert alone.rank is None
        assert 29 < (alone.line_age_s or 0) < 40
        until(meter, root, lambda ranks: [rank.rank for rank in ranks] == [4, 5])


def test_a_reading_costs_less_than_half_a_percent_of_a_core() -> None:
    meter = RankMeter()
    root = process.identify(os.getpid())
    assert root is not None
    meter.read([root], None)
    begin_s = time.process_time()
    for number in range(10):
        if number % 5 == 0:  # each ten seconds
            meter._tree_at_s = float("-inf")
        meter.read([root], None)
    assert (time.process_time() - begin_s) / 10 < 0.005 * 2.0


def test_where_the_kernel_does_not_answer_the_table_gives_states() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        asked = {one.inode: one.state for one in diagnosis.connections()}
        table = {one.inode: one for one in diagnosis.connections(protocol=31)}  # there is none
    assert table
    assert all(one.bytes_in is None for one in table.values())
    both = asked.keys() & table.keys()
    assert sum(asked[inode] == table[inode].state for inode in both) >= 0.9 * len(both)
