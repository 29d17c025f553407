"""A real fine-tune on two hosts while coordinator and agents are killed, stopped and cut off: it never notices.

The cheap proof with many seeds and known bytes is tests/service/test_chaos.py; this one has accelerate, DeepSpeed and Axolotl
in the place of what is stood in for there, `rankcall up` to start again what was killed, and a network to cut.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from chaos import Act, dumped, schedule
from fleet import PORT, Fleet, Replica, fleet
from namespaces import MakeHosts
from test_full_run import TRAINING_S, newest_job, submit

from agent import launcher
from coordinator.core.protocol import ProgressRecord
from coordinator.core.views import MetricPage

pytestmark = [pytest.mark.training, pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(1800)]

CHAOS_S = 25.0
SERVICES = {
    "agent": (sys.executable, "-m", "agent"),
    "coordinator": (sys.executable, "-m", "coordinator"),
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "continue": signal.SIGCONT}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fine_tune_survives_whatever_befalls_those_who_look_after_it(
    seed: int, demo: Path, tmp_path: Path, hosts: MakeHosts
) -> None:
    acts = schedule(seed, 2, 0.0, CHAOS_S)
    print(f"seed {seed}\n" + "\n".join(map(str, acts)) + f"\n{dumped(acts)}")
    with fleet(hosts(2), tmp_path) as deployment:
        deployment.up()
        deployment.ready("host-1", "host-2")
        submit(deployment.master, demo / "demo.yml", "--set", "num_epochs=2").communicate(timeout=60)
        job_id = newest_job(deployment)
        deployment.until(job_id, lambda job: job.stage == "train", TRAINING_S)
        play(deployment, acts, time.monotonic())
        job = deployment.ended(job_id, TRAINING_S)
        assert job.state == "succeeded", (job.verdict, job.findings, deployment.said)
        assert job.attempts == 1
        for rank, replica in enumerate(deployment.replicas):
            folder = replica.layout.attempt(job_id, 1)
            deployment.eventually(folder.mirrored.exists, "all of it has arrived")
            names = sorted(path.name for path in folder.streams.iterdir())
            assert {"prepare.log", "train.log", "progress.0"} <= set(names)
            for name in names:
                written = deployment.stream(replica, job_id, name)
                assert deployment.mirrored(rank, job_id, name) == written, (rank, name)
            records = [
                ProgressRecord.model_validate_json(line)
                for line in deployment.stream(replica, job_id, "progress.0").splitlines()
            ]
            assert [record.type for record in records].count("start") == 1, "it was started once"
            assert metrics(deployment, job_id, rank) == [(record.type, record.step) for record in records]
            assert launcher.marked(replica.layout) == {}


def play(deployment: Fleet, acts: Sequence[Act], since_s: float) -> None:
    for act in acts:
        time.sleep(max(0.0, since_s + act.at_s - time.monotonic()))
        do(deployment, act)


def do(deployment: Fleet, act: Act) -> None:
    """What a schedule says, to services that `rankcall up` starts again by itself."""
    replica = deployment.replicas[act.number]
    if act.whom == "link":
        if act.number:  # the master's agent has no network between it and its coordinator
            cut(replica, deployment.master, act.what)
    elif act.what == "start":
        pass
    elif act.whom == "training":
        for ones in launcher.marked(replica.layout).values():
            for one in ones:
                launcher.process.send(one, SIGNALS[act.what])
    elif (pid := replica.pid_of(*SERVICES[act.whom])) is not None:
        os.kill(pid, SIGNALS[act.what])


def cut(replica: Replica, master: Replica, how: str) -> None:
    """Between a replica and the coordinator; the training's own connections go on."""
    there = ("-d", master.host.address, "-p", "tcp", "--dport", str(PORT))
    back = ("-s", master.host.address, "-p", "tcp", "--sport", str(PORT))
    match how:
        case "open":
            replica.host.clear()
        case "cut":
            replica.host.iptables("-A", "OUTPUT", *there, "-j", "REJECT", "--reject-with", "tcp-reset")
        case "silent":
            replica.host.iptables("-A", "OUTPUT", *there, "-j", "DROP")
            replica.host.iptables("-A", "INPUT", *back, "-j", "DROP")
        case "deaf":
            replica.host.iptables("-A", "INPUT", *back, "-j", "DROP")


def metrics(deployment: Fleet, job_id: str, rank: int) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = deployment.client.get(
            f"/jobs/{job_id}/metrics", params={"rank": rank, "limit": 100, **cursor}
        ).raise_for_status()
        page = MetricPage.model_validate_json(answer.content)
        found += [(item.type, item.step) for item in page.items]
        if page.next_cursor is None:
            return found
        cursor = {"cursor": page.next_cursor}
