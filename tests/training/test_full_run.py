"""The whole product on two hosts, once: `rankcall up` on each, one fine-tune by the real stack, looked at from all sides."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fleet import PATIENCE_S, TOKEN, Fleet, Ran, Replica, command_line, environment_of, fleet
from namespaces import MakeHosts, making
from twohosts import ALARMS

from agent import launcher
from coordinator.core.protocol import ProgressRecord
from coordinator.core.views import JobPage, JobView, MetricPage, MetricView, RenderedView, StreamPage
from coordinator.demo import data

pytestmark = [pytest.mark.training, pytest.mark.hosts, pytest.mark.timeout(1800)]

# What a base image may have left in the environment of every process, `rankcall up` included.
LEFTOVERS = {"WORLD_SIZE": "7", "RANK": "3", "MASTER_ADDR": "bogus"}
PORT = 29500
AGENT = (sys.executable, "-m", "agent")
TRAINING_S = 1200.0  # twenty times what it takes on two free cores
# Between SIGTERM and the end of `up`: it gives training 5 s and services 3 s; the rest is for a busy machine.
ENDING_S = 60.0
PROMPTS = tuple(pair.instruction for pair in data.prompts())[:2]
# No deadline is what this is about: importing torch and Axolotl takes minutes where eight others do it too.
GENEROUS = ("match=5m", "tcp=3m", "collective=5m", "prepare=1h", "prepare_idle=30m", "compare=30m")


@dataclass
class Run:
    """One finished run. What could only be seen while it lasted was noted then."""

    fleet: Fleet
    submitted: Ran
    job: JobView
    listening: dict[str, dict[int, str]] = field(default_factory=dict)
    environments: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    @property
    def by_rank(self) -> tuple[Replica, ...]:
        return tuple(self.fleet.replicas)

    def metrics(self, rank: int) -> list[MetricView]:
        """All records of a rank, page by page."""
        found: list[MetricView] = []
        cursor: str | None = None
        while True:
            parameters: dict[str, str | int] = {
                "rank": rank,
                "limit": 100,
                **({"cursor": cursor} if cursor else {}),
            }
            answer = self.fleet.client.get(
                f"/jobs/{self.job.id}/metrics", params=parameters
            ).raise_for_status()
            page = MetricPage.model_validate_json(answer.content)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found


@pytest.fixture(scope="module")
def run(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with making() as hosts:
        pair = hosts(2)
        with fleet(pair, tmp_path_factory.mktemp("run"), more=LEFTOVERS) as deployment:
            deployment.up()
            yield _one_run(deployment, demo)


def _one_run(deployment: Fleet, demo: Path) -> Run:
    second = deployment.replicas[1]
    deployment.eventually(lambda: second.run("jobs").code == 0, "the second replica passes the API on")
    watching = submit(second, demo / "demo.yml", "--watch", "--set", "num_epochs=1", prompts=PROMPTS)
    job_id = newest_job(deployment)
    seen = Run(
        deployment, Ran(-1, "", ""), deployment.until(job_id, lambda job: job.stage == "prepare", TRAINING_S)
    )
    for replica in deployment.replicas:
        seen.listening[replica.host.name] = replica.host.listeners()
    assert deployment.job(job_id).stage == "prepare", "the look came before training"
    deployment.until(job_id, lambda job: job.progress is not None and job.progress.step > 0, TRAINING_S)
    for replica in deployment.replicas:
        pids = [one.pid for ones in launcher.marked(replica.layout).values() for one in ones]
        seen.environments[replica.host.name] = [found for pid in pids if (found := environment_of(pid))]
        seen.commands += [command_line(pid) for pid in replica.host.pids()]
    out, err = watching.communicate(timeout=TRAINING_S)
    seen.submitted = Ran(watching.returncode, out.decode(), err.decode())
    seen.job = deployment.job(job_id)
    return seen


def submit(
    replica: Replica, config: Path, *arguments: str, prompts: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    asked = [word for prompt in prompts for word in ("--prompt", prompt)]
    times = [word for deadline in GENEROUS for word in ("--deadline", deadline)]
    return replica.start("submit", str(config), "--gpus-per-node", "0", *asked, *times, *arguments)


def newest_job(deployment: Fleet) -> str:
    found: list[str] = []

    def there() -> bool:
        page = JobPage.model_validate_json(deployment.client.get("/jobs").raise_for_status().content)
        found.extend(item.id for item in page.items[:1])
        return bool(found)

    deployment.eventually(there, "a job is submitted")
    return found[0]


def test_the_command_ends_with_success_and_says_what_came_of_it(run: Run) -> None:
    assert run.submitted.code == 0, (run.submitted, run.fleet.said)
    assert run.submitted.out.split() == [run.job.id]
    assert run.job.state == "succeeded"
    assert f"{run.job.name} ({run.job.id}) succeeded" in run.submitted.err
    assert "Traceback" not in run.submitted.err
    assert "tuned:" in run.submitted.err
    assert not [found for found in run.job.findings if found.severity == "error" or found.code in ALARMS]


def test_every_stage_passed_on_the_first_attempt(run: Run) -> None:
    assert run.job.attempt is not None
    assert (run.job.attempt.number, run.job.previous) == (1, ())
    assert [(stage.stage, stage.state) for stage in run.job.attempt.stages] == [
        (name, "passed")
        for name in ("gather", "match", "tcp", "collective", "prepare", "train", "collect", "compare")
    ]


def test_the_master_is_rank_0_and_addresses_are_the_bridges(run: Run) -> None:
    assert run.job.attempt is not None
    assert [(m.rank, m.hostname, m.address) for m in run.job.attempt.members] == [
        (rank, replica.host.name, replica.host.address) for rank, replica in enumerate(run.by_rank)
    ]


def test_the_rendered_files_differ_in_the_rank_and_in_nothing_else(run: Run) -> None:
    given = [
        RenderedView.model_validate_json(
            run.fleet.client.get(f"/jobs/{run.job.id}/files", params={"rank": rank})
            .raise_for_status()
            .content
        )
        for rank in range(len(run.by_rank))
    ]
    for replica, view in zip(run.by_rank, given, strict=True):
        folder = replica.layout.attempt(run.job.id, 1).root
        for file in view.files:
            assert hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256, file.path
    assert {"accelerate.yaml", "axolotl.yaml", "deepspeed.json"} <= {file.path for file in given[0].files}
    for one, two in zip(given[0].files, given[1].files, strict=True):
        differing = two.content
        if two.path == "accelerate.yaml":
            differing = differing.replace("machine_rank: 1", "machine_rank: 0")
        assert (one.path, one.content) == (two.path, differing)


def test_nothing_of_ours_holds_the_rendezvous_port_before_training(run: Run) -> None:
    assert run.job.attempt is not None
    assert run.job.attempt.rendezvous_port == PORT
    for name, listening in run.listening.items():
        assert 8000 in listening, (name, listening)
        assert PORT not in listening, (name, listening)


def test_no_sshd_is_needed(run: Run) -> None:
    assert all(22 not in listening for listening in run.listening.values())
    assert not [command for command in run.commands if "sshd" in command or "pdsh" in command]


def test_leftover_rank_variables_and_secrets_do_not_reach_the_training(run: Run) -> None:
    for rank, replica in enumerate(run.by_rank):
        environments = run.environments[replica.host.name]
        workers = [found for found in environments if "TORCHELASTIC_RUN_ID" in found]
        assert workers, "torchrun's workers were seen"
        for found in workers:
            assert (found["RANK"], found["WORLD_SIZE"]) == (str(rank), "2")
            assert found["MASTER_ADDR"] == run.fleet.master.host.address
            assert found["GLOO_SOCKET_IFNAME"] == replica.host.interface
        launchers = [
            found for found in environments if found not in workers and "GLOO_SOCKET_IFNAME" in found
        ]
        assert launchers, "the launcher was seen"
        for found in launchers:
            assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(found)
        for found in (*workers, *launchers):
            assert TOKEN not in found.values()
            assert {name for name in found if name.startswith("RANKCALL_")} == {
                "RANKCALL_ATTEMPT_DIR",
                "RANKCALL_ATTEMPT_ID",
            }


def test_the_leftovers_are_shown_as_facts(run: Run) -> None:
    for view in run.fleet.page().items:
        assert view.facts is not None
        assert view.facts.leftovers == LEFTOVERS


def test_the_result_is_downloaded_from_the_other_host_whole(run: Run, tmp_path: Path) -> None:
    second = run.fleet.replicas[1]
    brought = second.run("artifacts", run.job.id, "-o", str(tmp_path / "result"))
    assert brought.code == 0, brought
    kept = run.fleet.master.layout.work(run.job.id)
    assert any(artifact.path.endswith("adapter_model.safetensors") for artifact in run.job.artifacts)
    for artifact in run.job.artifacts:
        original = (kept / artifact.path).read_bytes()
        assert hashlib.sha256(original).hexdigest() == artifact.sha256
        assert len(original) == artifact.size_bytes
        assert artifact.hostname == run.fleet.master.host.name
        got = tmp_path / "result" / artifact.path.removeprefix("outputs/lora-out/")
        assert got.read_bytes() == original, artifact.path
    assert not list((tmp_path / "result").rglob("*.part"))


def test_base_and_tuned_answer_the_prompts(run: Run) -> None:
    assert tuple(answer.prompt for answer in run.job.comparison) == PROMPTS
    for answer in run.job.comparison:
        assert answer.base.strip()
        assert answer.tuned.strip()
    assert any(answer.base != answer.tuned for answer in run.job.comparison)


def test_progress_of_both_ranks_is_in_the_store_as_the_ranks_wrote_it(run: Run) -> None:
    steps = []
    for rank, replica in enumerate(run.by_rank):
        written = [
            ProgressRecord.model_validate_json(line)
            for line in run.fleet.stream(replica, run.job.id, "progress.0").splitlines()
        ]
        stored = run.metrics(rank)
        assert [(record.type, record.rank, record.step) for record in written] == [
            (metric.type, metric.rank, metric.step) for metric in stored
        ]
        assert [record.at for record in written] == pytest.approx(
            [metric.at.timestamp() for metric in stored], abs=1e-5
        )
        for record, metric in zip(written, stored, strict=True):
            said = record.model_dump(exclude_none=True)
            assert {name: said[name] for name in metric.values} == metric.values
        (start,) = (record for record in written if record.type == "start")
        assert (start.rank, start.world_size) == (rank, 2)
        losses = [
            (record.step, record.loss)
            for record in written
            if record.type == "log" and record.loss is not None
        ]
        assert [step for step, _ in losses] == list(range(1, (start.total_steps or 0) + 1))
        assert losses[-1][1] < losses[0][1] / 2  # type: ignore[operator]
        steps.append((start.total_steps, start.batches, losses))
    assert steps[0] == steps[1], "the loss is averaged over the ranks, so both say the same"


def test_every_stream_is_mirrored_byte_for_byte(run: Run) -> None:
    answer = run.fleet.client.get(f"/jobs/{run.job.id}/streams").raise_for_status()
    listed = {(info.rank, info.stream) for info in StreamPage.model_validate_json(answer.content).items}
    for rank, replica in enumerate(run.by_rank):
        names = sorted(path.name for path in replica.layout.attempt(run.job.id, 1).streams.iterdir())
        assert {"prepare.log", "train.log", "progress.0"} <= set(names)
        for name in names:
            written = run.fleet.stream(replica, run.job.id, name)
            if written:
                assert (rank, name) in listed
            assert run.fleet.mirrored(rank, run.job.id, name) == written, (rank, name)


def test_the_log_of_the_other_rank_is_printed_whole(run: Run) -> None:
    printed = run.fleet.replicas[1].run("logs", run.job.id, "--rank", "0")
    assert printed.code == 0
    assert printed.out.encode() == run.fleet.stream(run.fleet.master, run.job.id, "train.log").replace(
        b"\r\n", b"\n"
    )


def test_training_is_over_on_both_hosts_while_the_replicas_stay(run: Run) -> None:
    for replica in run.by_rank:
        assert launcher.marked(replica.layout) == {}
        assert replica.process is not None
        assert replica.process.poll() is None
        assert PORT not in replica.host.listeners()


def test_sigterm_ends_every_process_of_both_replicas(run: Run) -> None:
    """The last look at this run. `gone` looks by network namespace, by environment and by the attempt's folder."""
    for replica in run.by_rank:
        replica.ask()
    for replica in run.by_rank:
        assert replica.gone(within_s=ENDING_S) == 0, replica.said
        assert "Traceback" not in replica.said


def test_the_folder_of_the_job_keeps_how_each_task_ended(run: Run) -> None:
    for replica in run.by_rank:
        tasks = replica.layout.attempt(run.job.id, 1).tasks
        ending = json.loads((tasks / "train" / "exit.json").read_text())
        assert (ending["exit_code"], ending["requested"], ending["survivors"]) == (0, False, [])


# --- two more runs, each with a fault


@pytest.mark.long
def test_data_that_differs_between_the_replicas_stops_the_job_before_it_trains(
    demo: Path, tmp_path: Path, hosts: MakeHosts
) -> None:
    """The same absolute path on both hosts, with other rows behind it on the second."""
    pair = hosts(2)
    at = tmp_path / "data"
    rows = (demo / "train.jsonl").read_text().splitlines(keepends=True)
    for host, kept in zip(pair, (rows, rows[:-60]), strict=True):
        own = tmp_path / f"data-of-{host.name}"
        own.mkdir()
        (own / "train.jsonl").write_text("".join(kept))
        host.bind(at, own)
    job = shutil.copytree(demo, tmp_path / "job")
    (job / "demo.yml").write_text(
        (demo / "demo.yml").read_text().replace("./train.jsonl", f"{at}/train.jsonl")
    )
    with fleet(pair, tmp_path / "run", more={"RANKCALL_DATA_ROOTS": str(at)}) as deployment:
        deployment.up()
        deployment.ready("host-1", "host-2")
        watching = submit(deployment.replicas[1], job / "demo.yml", "--watch")
        out, err = watching.communicate(timeout=TRAINING_S)
        stopped = deployment.job(out.decode().strip())
        assert watching.returncode == 1, err.decode()
        assert (stopped.state, stopped.stage) == ("failed", "prepare"), stopped
        (found,) = (found for found in stopped.findings if found.severity == "error")
        assert found.code == "RUN002"
        assert "rank 0: 324 samples, rank 1: 270 samples" in found.message
        assert "RUN002" in err.decode()
        for replica in deployment.replicas:
            assert not (replica.layout.attempt(stopped.id, 1).tasks / "train").exists(), (
                "training never began"
            )
            assert replica.training() == set()


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 0], ids=["rank 1", "rank 0"])
def test_a_rank_killed_together_with_its_agent_ends_the_other_and_is_named(
    number: int, demo: Path, tmp_path: Path, hosts: MakeHosts
) -> None:
    with fleet(hosts(2), tmp_path) as deployment:
        deployment.up()
        deployment.ready("host-1", "host-2")
        victim, other = deployment.replicas[number], deployment.replicas[1 - number]
        watching = submit(deployment.replicas[1], demo / "demo.yml", "--watch", "--set", "num_epochs=50")
        job_id = newest_job(deployment)
        deployment.until(job_id, lambda job: job.progress is not None and job.progress.step > 2, TRAINING_S)
        members = {replica.host.name: replica.training() for replica in (victim, other)}
        assert all(members.values())
        ranks = [pid for pid in victim.training() if "LOCAL_RANK" in environment_of(pid)]
        agent = victim.pid_of(*AGENT)
        assert ranks
        assert agent is not None
        for pid in (*ranks, agent):
            os.kill(pid, signal.SIGKILL)
        failed = deployment.ended(job_id)
        assert (failed.state, failed.stage, failed.attempts) == ("failed", "train", 1)
        errors = [found for found in failed.findings if found.severity == "error"]
        replica_id = json.loads((victim.state / "replica.json").read_text())["replica_id"]
        assert [(found.code, found.replica) for found in errors] == [("RUN001", replica_id)], failed.findings
        assert f"rank {number} ({victim.host.name})" in failed.verdict
        assert any("SIGKILL" in line or "exitcode: -9" in line for line in errors[0].evidence["tail"])  # type: ignore[union-attr]
        out, err = watching.communicate(timeout=PATIENCE_S)
        assert (watching.returncode, out.decode().strip()) == (1, job_id), err.decode()
        for replica in deployment.replicas:
            assert replica.training() == set()
            assert PORT not in replica.host.listeners()
            assert replica.process is not None
            assert replica.process.poll() is None
            for name in ("train.log", "progress.0"):
                rank = deployment.replicas.index(replica)
                deployment.eventually(
                    lambda rank=rank, replica=replica, name=name: (
                        deployment.mirrored(rank, job_id, name)
                        == deployment.stream(replica, job_id, name)
                        != b""
                    ),
                    f"{name} of rank {rank} is whole",
                )
