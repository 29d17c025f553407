"""Who is there, who is not, and who leaves: replicas that start in any order, are killed, cloned or too many.

Real coordinator, real agents, real addresses; only the training itself is stood in for (`tests/service/stand_in.py`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import httpx
import pytest
import torch_at_hand
from fleet import PATIENCE_S, PORT, Fleet, Replica, fleet
from least import CONFIG
from namespaces import Host, MakeHosts

from coordinator.core.views import JobView

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]

# Nothing here is about these: torch is imported in minutes where the machine is busy.
GENEROUS = {"match_s": 300, "collective_s": 300}
SERVICES = {
    "coordinator": (sys.executable, "-m", "coordinator"),
    "agent": (sys.executable, "-m", "agent"),
}

Interrupted = Callable[[Fleet, JobView], None]


@pytest.fixture
def training(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def stand_in(folder: Path) -> str:
    """An interpreter whose training takes a second and does what a job's `behaviour.json` says."""
    script = Path(torch_at_hand.__file__).with_name("stand_in.py")
    return str(torch_at_hand.interpreter(folder / "stand-in", script))


def deployment(hosts: tuple[Host, ...], folder: Path, *, nodes: int | None = None) -> Any:
    return fleet(hosts, folder, nodes=nodes, more={"RANKCALL_PYTHON": stand_in(folder)})


@pytest.fixture(scope="module")
def lasting(module_hosts: MakeHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with deployment(module_hosts(4), tmp_path_factory.mktemp("lasting"), nodes=3) as four:
        yield four


@pytest.fixture
def three(lasting: Fleet) -> Iterator[Fleet]:
    """Three replicas that are there, have torch imported and nothing to do, and a fourth that is not started.

    They last for all tests: torch is imported once.
    """
    usual = lasting.replicas[:3]
    for replica in usual:
        if replica.process is None or replica.process.poll() is not None:
            replica.up()
    names = [replica.host.name for replica in usual]
    lasting.ready(*names)
    lasting.eventually(lambda: lasting.alive() == names, "nobody else is there")
    yield lasting
    for replica in lasting.replicas:
        replica.host.clear()
        if replica.host.apart:
            replica.vanish()
            replica.host.apart = False
    for summary in lasting.client.get("/jobs").json()["items"] if lasting.alive() else ():
        if summary["state"] in ("queued", "running"):
            lasting.client.post(f"/jobs/{summary['id']}/cancel")
            lasting.ended(summary["id"])


def submit(deployment: Fleet, nodes: int, behaviour: dict[str, Any] | None = None, **deadlines: float) -> str:
    told = base64.b64encode(json.dumps(behaviour or {}).encode()).decode()
    answer = deployment.client.post(
        "/jobs",
        json={
            "config": CONFIG,
            "nodes": nodes,
            "gpus_per_node": 0,
            "files": [{"path": "behaviour.json", "data": told}],
            "deadlines": {**GENEROUS, **deadlines},
        },
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def seats(job: JobView) -> list[str]:
    """Host names in rank order."""
    assert job.attempt is not None
    members = sorted(job.attempt.members, key=lambda member: member.rank)
    assert [member.rank for member in members] == list(range(len(members)))
    return [member.hostname for member in members]


def attempt(number: int) -> Callable[[JobView], bool]:
    return lambda job: job.attempt is not None and job.attempt.number == number


def cancelled(deployment: Fleet, job_id: str) -> None:
    deployment.client.post(f"/jobs/{job_id}/cancel").raise_for_status()
    assert deployment.ended(job_id).state == "cancelled"


def kill(replica: Replica, service: str) -> int:
    """SIGKILL to one of a replica's services; its pid."""
    pid = replica.pid_of(*SERVICES[service])
    assert pid is not None, replica.said
    replica.kill(pid)
    return pid


# --- in whatever order they start


def test_agents_that_start_first_wait_for_the_coordinator_and_say_so_now_and_then(
    hosts: MakeHosts, tmp_path: Path
) -> None:
    with deployment(hosts(2), tmp_path) as late_master:
        began = time.monotonic()
        late_master.up(1)
        waiting = late_master.replicas[1]
        late_master.eventually(lambda: "waiting for the coordinator" in waiting.said, "it says for whom")
        unreached = waiting.run("nodes")
        assert unreached.code == 3, unreached
        assert f"{late_master.master.host.address}:8000" in unreached.err
        late_master.up(0)
        late_master.gathered("host-1", "host-2")
        job_id = submit(late_master, 2)
        job = late_master.until(job_id, attempt(1))
        assert seats(job) == ["host-1", "host-2"]
        waited_s = time.monotonic() - began
        said = [line for line in waiting.said.splitlines() if "waiting for the coordinator" in line]
        assert len(said) <= 1 + waited_s / 15, said
        assert "connection refused" in said[0]
        assert "Traceback" not in waiting.said
        cancelled(late_master, job_id)


@pytest.mark.long  # one that is late is also in what a killed coordinator goes on with
def test_all_start_at_once_and_the_job_waits_for_the_one_that_is_late(
    hosts: MakeHosts, tmp_path: Path
) -> None:
    with deployment(hosts(3), tmp_path, nodes=3) as slow:
        slow.up(0, 2)
        slow.gathered("host-1", "host-3")
        job_id = submit(slow, 3)
        job = slow.until(job_id, lambda job: "waiting for one more" in job.verdict)
        assert (job.state, job.verdict) == ("queued", "2 of 3 replicas registered, waiting for one more.")
        assert slow.page().message == "2 of 3 replicas registered, waiting for one more"
        assert slow.master.run("job", job_id).code == 101
        slow.up(1)
        job = slow.until(job_id, attempt(1))
        assert seats(job) == ["host-1", "host-2", "host-3"], "by address, whoever came first"
        cancelled(slow, job_id)


def test_more_nodes_than_there_are_is_said_early_and_ends_at_the_deadline(
    three: Fleet, tmp_path: Path
) -> None:
    config = tmp_path / "job.yml"
    config.write_text(CONFIG)
    second = three.replicas[1]
    asked = ("submit", str(config), "--nodes", "4", "--deadline", "gather=4s", "--watch")
    ended = second.run(*asked)
    assert ended.code == 124, ended
    early, at_last = ended.err.split("SYS001", 1)
    assert "3 of 4 replicas registered, waiting for one more." in early
    assert "Only 3 of 4 replicas were there after 4 s: 1 missing." in at_last
    job = three.job(ended.out.strip())
    (found,) = job.findings
    assert (found.code, found.severity, found.stage) == ("SYS001", "error", "gather")
    assert (found.evidence["wanted"], found.evidence["missing"]) == (4, 1)
    assert found.hint
    assert second.run("job", job.id).code == 124


# --- more than are wanted, and the same ones again


def test_replicas_beyond_what_a_job_wants_stand_by_and_serve_the_next(three: Fleet) -> None:
    first = submit(three, 2, {"prepare_until": "never"})
    assert seats(three.until(first, attempt(1))) == ["host-1", "host-2"]
    roles = {view.hostname: (view.role, view.rank) for view in three.page().items if view.alive}
    assert roles == {"host-1": ("member", 0), "host-2": ("member", 1), "host-3": ("spare", None)}
    second = submit(three, 1, {"prepare_until": "never"})
    assert seats(three.until(second, attempt(1))) == ["host-3"]
    third = submit(three, 1)
    waiting = three.until(third, lambda job: "waiting" in job.verdict)
    assert waiting.verdict == "0 of 1 replica free, waiting for one more."
    for job_id in (third, second, first):
        cancelled(three, job_id)


def test_ranks_outlast_attempts_restarts_and_the_return_of_one_that_was_replaced(three: Fleet) -> None:
    """By address host-2 would be rank 1; host-3 keeps the rank it took over when host-2 was away."""
    second, third = three.replicas[1:3]
    job_id = submit(three, 2, {"prepare_until": "never"})
    assert seats(three.until(job_id, attempt(1))) == ["host-1", "host-2"]
    cancelled(three, job_id)
    second.ask()
    assert second.gone() == 0
    retry(three, job_id)
    assert seats(three.until(job_id, attempt(2))) == ["host-1", "host-3"]
    cancelled(three, job_id)
    second.up()
    three.gathered("host-1", "host-2", "host-3")
    retry(three, job_id)
    assert seats(three.until(job_id, attempt(3))) == ["host-1", "host-3"]
    cancelled(three, job_id)
    before = incarnations(three)
    third.vanish()
    third.up()
    three.eventually(lambda: incarnations(three)["host-3"] == before["host-3"] + 1, "host-3 is back")
    ordered = three.master.run("retry", job_id)
    assert (ordered.code, ordered.out.strip()) == (0, job_id), ordered
    job = three.until(job_id, attempt(4))
    assert seats(job) == ["host-1", "host-3"]
    assert [past.number for past in job.previous] == [1, 2, 3]
    assert incarnations(three) == {**before, "host-3": before["host-3"] + 1}
    cancelled(three, job_id)


def retry(deployment: Fleet, job_id: str) -> None:
    deployment.client.post(f"/jobs/{job_id}/retry").raise_for_status()


def incarnations(deployment: Fleet) -> dict[str, int]:
    return {view.hostname: view.incarnation for view in deployment.page().items}


@pytest.mark.long  # the decision itself: tests/service/test_clones.py
def test_a_cloned_state_folder_gets_an_id_of_its_own(three: Fleet) -> None:
    second, third = three.replicas[1:3]
    ids = {view.hostname: view.id for view in three.page().items if view.alive}
    third.vanish()
    shutil.rmtree(third.state)
    shutil.copytree(second.state, third.state)
    third.host.apart = True  # a container of its own, as the clone of a container is
    third.up()
    three.eventually(lambda: "SYS002" in third.said, "the clone is told")
    three.gathered("host-1", "host-2", "host-3")
    own = json.loads((third.state / "replica.json").read_text())["replica_id"]
    after = {view.hostname: view.id for view in three.page().items if view.alive}
    assert after == {**ids, "host-3": own}
    assert own not in ids.values()
    assert "came with the id of host-2, which is alive" in third.said
    assert json.loads((second.state / "replica.json").read_text())["replica_id"] == ids["host-2"]
    job_id = submit(three, 3)
    assert seats(three.until(job_id, attempt(1))) == ["host-1", "host-2", "host-3"]
    cancelled(three, job_id)
    third.vanish()
    third.up()  # its container is restarted: a new pid 1, and the last word of the one before was just now
    three.gathered("host-1", "host-2", "host-3")
    again = {view.hostname: view.id for view in three.page().items if view.alive}
    assert again == after, "the id is kept"


# --- what is killed


def test_a_coordinator_killed_while_gathering_goes_on_gathering(three: Fleet) -> None:
    fourth = three.replicas[3]
    job_id = submit(three, 4)
    since = three.until(job_id, lambda job: "waiting for one more" in job.verdict).started_at
    before = kill(three.master, "coordinator")
    three.eventually(
        lambda: three.master.pid_of(*SERVICES["coordinator"]) not in (None, before), "it is started again"
    )
    fourth.up()
    job = three.until(job_id, attempt(1))
    assert seats(job) == ["host-1", "host-2", "host-3", "host-4"]
    assert job.started_at == since, "the time to gather goes on"
    assert "coordinator was ended by SIGKILL; started again in 0.2 s" in three.master.said
    cancelled(three, job_id)
    fourth.ask()
    assert fourth.gone() == 0
    assert "host-4" not in three.alive(), "it said that it leaves"


@pytest.mark.long
def test_a_coordinator_killed_while_data_is_prepared_ends_nothing(three: Fleet) -> None:
    job_id = submit(three, 2, {"prepare_until": "release", "steps": 2})
    three.until(job_id, lambda job: job.stage == "prepare")
    members = three.replicas[:2]
    # A shim and what it started.
    three.eventually(lambda: all(len(replica.training()) == 2 for replica in members), "both prepare")
    working = [replica.training() for replica in members]
    kill(three.master, "coordinator")
    kill(three.replicas[1], "agent")
    three.gathered("host-1", "host-2", "host-3")
    assert [replica.training() for replica in members] == working, "the same processes"
    job = three.job(job_id)
    assert (job.state, job.stage, job.attempts) == ("running", "prepare", 1)
    for replica in members:
        (replica.layout.work(job_id) / "release").touch()
    job = three.ended(job_id)
    assert (job.state, job.attempts, seats(job)) == ("succeeded", 1, ["host-1", "host-2"]), job.findings
    for rank, replica in enumerate(members):
        three.eventually(
            lambda rank=rank, replica=replica: (
                three.mirrored(rank, job_id, "train.log") == three.stream(replica, job_id, "train.log") != b""
            ),
            "the log is whole",
        )


def test_a_replica_killed_between_join_and_start_is_named(three: Fleet) -> None:
    second, third = three.replicas[1:3]
    second.host.drop_from(third.host)  # so that the probes take a while
    job_id = submit(three, 3)
    three.until(job_id, lambda job: job.stage == "tcp")
    name = next(view.id for view in three.page().items if view.hostname == "host-3")
    third.vanish()
    job = three.ended(job_id)
    assert (job.state, job.stage) == ("failed", "tcp")
    lost = [found for found in job.findings if found.severity == "error"]
    assert [(found.code, found.replica, found.stage) for found in lost] == [("SYS003", name, "tcp")]
    assert "rank 2 (host-3) has not been heard of for" in lost[0].message
    assert "rank 2 (host-3)" in job.verdict
    shown = three.master.run("job", job_id)
    assert shown.code == 1, shown


# --- what is asked to end


def while_gathering(deployment: Fleet) -> str:
    job_id = submit(deployment, 9)
    deployment.until(job_id, lambda job: "waiting for" in job.verdict)
    return job_id


def while_probing(deployment: Fleet) -> str:
    for replica in deployment.replicas[1:3]:
        # New connections vanish; what is connected, the agent to its coordinator, goes on.
        replica.host.iptables("-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
    job_id = submit(deployment, 3)
    deployment.until(job_id, lambda job: job.stage == "tcp")
    return job_id


def while_preparing(deployment: Fleet) -> str:
    job_id = submit(deployment, 3, {"silent": True})
    deployment.until(job_id, lambda job: job.stage == "prepare")
    deployment.eventually(
        lambda: all(replica.training() for replica in deployment.replicas[:3]), "all prepare"
    )
    return job_id


@pytest.mark.parametrize(
    ("when", "how", "code"),
    [
        pytest.param(while_gathering, signal.SIGINT, 130, id="gather", marks=pytest.mark.long),
        pytest.param(while_probing, signal.SIGTERM, 0, id="tcp", marks=pytest.mark.long),
        pytest.param(while_preparing, signal.SIGINT, 130, id="prepare", marks=pytest.mark.long),
    ],
)
def test_asked_to_end_a_replica_leaves_nothing_in_any_stage(
    three: Fleet, when: Callable[[Fleet], str], how: signal.Signals, code: int
) -> None:
    job_id = when(three)
    usual = three.replicas[:3]
    for replica in usual:
        replica.ask(how)
    for replica in usual:
        assert replica.gone() == code, replica.said
        assert "Traceback" not in replica.said
    three.up(0, 1, 2)
    three.gathered("host-1", "host-2", "host-3")
    # Whether the coordinator heard of the end, or ended first: the job is as it was, or has failed for that reason.
    job = three.job(job_id)
    if job.state == "failed":
        assert {found.code for found in job.findings} <= {"RUN027", "SYS003"}, job.findings
    else:
        cancelled(three, job_id)


@pytest.mark.long  # test_up.py has it on one host
def test_a_port_in_use_is_said_and_serves_as_soon_as_it_is_free(hosts: MakeHosts, tmp_path: Path) -> None:
    with deployment(hosts(2), tmp_path) as pair:
        master, second = pair.replicas
        holders = [
            replica.host.popen((sys.executable, "-m", "http.server", "8000"), cwd=tmp_path, stderr=DEVNULL)
            for replica in pair.replicas
        ]
        for replica in pair.replicas:
            pair.eventually(lambda r=replica: 8000 in r.host.listeners(), "somebody has the port")
        pair.up()
        assert master.process is not None
        assert master.process.wait(PATIENCE_S) == 1
        assert re.search(r"port 8000 is in use by .*python.*; set RANKCALL_PORT", master.said), master.said
        assert "Traceback" not in master.said
        assert master.pid_of(*SERVICES["agent"]) is None
        # Where only the page is passed on the replica works without it.
        pair.eventually(
            lambda: "port 8000: Address already in use" in second.said, "it says what it cannot do"
        )
        for holder in holders:
            holder.kill()
            holder.wait()
        pair.up(0)
        pair.gathered("host-1", "host-2")
        pair.eventually(lambda: passed_on(second), "the page is passed on")


def passed_on(replica: Replica) -> bool:
    with replica.host.entered(), contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{PORT}/healthz", trust_env=False).status_code == 200
    return False
