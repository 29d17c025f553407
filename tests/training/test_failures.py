"""What users fear, done to the real stack on two hosts: found, named, ended everywhere, explained, and tried again.

Axolotl, accelerate, DeepSpeed and gloo train a small model for eight steps and save after every second. A plugin of the
test's own (`faults.py`) does the damage from inside on rank 1; what happens to the network is done from outside.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import machines
import pytest
from fleet import Fleet, fleet
from namespaces import making

from coordinator.core.protocol import BundleFile, Finding
from coordinator.core.views import Deadlines, JobView

pytestmark = [pytest.mark.training, pytest.mark.hosts, pytest.mark.timeout(1800)]

PATIENCE_S = 900.0
SHORT = (
    "num_epochs=1",
    "max_steps=8",
    "evals_per_epoch=",
    "saves_per_epoch=",
    "save_steps=2",
    "val_set_size=0",
)
# No deadline is what this is about, on a machine where other tests import torch.
GENEROUS = Deadlines(match_s=300, tcp_s=180, collective_s=300, prepare_s=3600, prepare_idle_s=1800)
TERMINAL = ("succeeded", "failed", "cancelled")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with making() as hosts, fleet(hosts(2), tmp_path_factory.mktemp("failures")) as deployment:
        deployment.up()
        deployment.ready(*(replica.host.name for replica in deployment.replicas))
        yield deployment


def submit(
    pair: Fleet, demo: Path, what: str, *, step: int = 7, attempts: int = 1, overrides: tuple[str, ...] = ()
) -> str:
    """A job whose rank 1 does that at the beginning of this step, in the first attempt."""
    faulty = machines.demo_submission(demo, *SHORT, "plugins=[faults.FaultPlugin]", *overrides)
    plan = json.dumps({"what": what, "rank": 1, "step": step, "attempt": 1}).encode()
    plugin = (Path(__file__).parent / "faults.py").read_bytes()
    given = faulty.model_copy(
        update={
            "files": (
                *faulty.files,
                BundleFile(path="faults.py", data=plugin),
                BundleFile(path="faults.json", data=plan),
            ),
            "gpus_per_node": 0,
            "max_attempts": attempts,
            "deadlines": GENEROUS,
        }
    )
    answer = pair.client.post(
        "/jobs", json=given.model_dump(mode="json", exclude_none=True)
    ).raise_for_status()
    return str(answer.json()["id"])


def ended(pair: Fleet, job_id: str) -> JobView:
    job = pair.until(job_id, lambda job: job.state in TERMINAL, PATIENCE_S)
    for replica in pair.replicas:
        pair.eventually(lambda replica=replica: not replica.training(), "nothing of it is left")  # type: ignore[misc]
    return job


def found(job: JobView, code: str) -> Finding:
    return next(one for one in job.findings if one.code == code)


def training(job: JobView, step: int) -> bool:
    assert job.state not in TERMINAL, job.verdict
    return job.progress is not None and job.progress.step >= step


def test_a_rank_that_is_stopped_in_mid_training_is_named_and_the_next_attempt_loses_no_step_that_was_saved(
    pair: Fleet, demo: Path
) -> None:
    job = ended(pair, submit(pair, demo, "stop", attempts=2))
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert [past.number for past in job.previous] == [1]
    hang = found(job, "RUN030")
    assert hang.evidence["behind"] == [1] and "it is stopped" in hang.message
    second = pair.replicas[1]
    stacks = pair.stream(second, job.id, "evidence.stacks").decode()
    assert "=== rank 1" in stacks and "state T" in stacks and "on_step_begin" in stacks
    assert "ESTABLISHED" in pair.stream(second, job.id, "evidence.sockets").decode()
    verdict = found(job, "RUN033")
    assert (verdict.evidence["verdict"], verdict.evidence["passes"]) == ("transient", 3)
    assert "checkpoint-6" in found(job, "RUN038").message
    for replica in pair.replicas:
        records = pair.stream(replica, job.id, "progress.0", attempt=2).splitlines()
        (start,) = [one for line in records if (one := json.loads(line))["type"] == "start"]
        assert (start["step"], start["total_steps"]) == (6, 8)


@pytest.mark.long
def test_a_rank_that_is_killed_is_the_first_failure_and_the_others_are_ended(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "kill", attempts=2))
    assert job.state == "succeeded", (job.verdict, job.findings)
    first = next(one for one in job.findings if one.severity == "error")
    assert first.replica == job.previous[0].members[1].replica_id and "rank 1" in first.message
    assert "checkpoint-6" in found(job, "RUN038").message


@pytest.mark.long
def test_an_exception_in_one_rank_is_shown_with_its_traceback_and_not_the_one_that_lost_it(
    pair: Fleet, demo: Path
) -> None:
    job = ended(pair, submit(pair, demo, "raise"))
    assert job.state == "failed" and "the rank's own fault" in job.verdict
    first = next(one for one in job.findings if one.severity == "error")
    traceback = first.evidence["traceback"]
    assert isinstance(traceback, list) and any("faults.py" in str(line) for line in traceback)
    assert not [one for one in job.findings if one.code == "RUN030"]


@pytest.mark.long
def test_a_data_loader_that_blocks_is_a_hang_whose_links_are_good(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "block"))
    assert job.state == "failed" and job.stage == "train"
    stacks = pair.stream(pair.replicas[1], job.id, "evidence.stacks").decode()
    assert "on_step_begin (faults.py" in stacks
    assert found(job, "RUN033").evidence["verdict"] == "transient"


@pytest.mark.long
def test_weights_that_are_no_numbers_end_the_training_with_rank_and_step(pair: Fleet, demo: Path) -> None:
    job = ended(pair, submit(pair, demo, "nan", step=5, attempts=3, overrides=("max_steps=60",)))
    assert (job.state, len(job.previous)) == ("failed", 0)
    spoiled = found(job, "RUN049")
    assert "rank 1" in spoiled.message and spoiled.evidence["step"] in (4, 5)


@pytest.mark.long
@pytest.mark.parametrize("how", ["both", "one way"])
def test_a_link_that_is_dropped_in_mid_training_and_comes_back_costs_an_attempt_and_no_saved_step(
    pair: Fleet, demo: Path, how: str
) -> None:
    first, second = pair.replicas
    job_id = submit(pair, demo, "nothing", attempts=3, overrides=("max_steps=200", "save_steps=20"))
    pair.until(job_id, lambda job: training(job, 45), PATIENCE_S)
    cut: list[Callable[[], None]] = [lambda: first.host.drop_from(second.host)]
    if how == "both":
        cut.append(lambda: second.host.drop_from(first.host))
    for rule in cut:
        rule()
    try:
        pair.until(job_id, lambda job: [one for one in job.findings if one.code == "RUN030"], PATIENCE_S)
        time.sleep(20.0)
    finally:
        first.host.clear()
        second.host.clear()
    job = ended(pair, job_id)
    assert job.state == "succeeded", (job.verdict, job.findings, pair.said)
    assert "goes on from checkpoint-" in found(job, "RUN038").message


@pytest.mark.long
def test_quiet_phases_of_a_healthy_training_raise_no_alarm(pair: Fleet, demo: Path) -> None:
    """An evaluation and a save every few steps, on a machine that other tests keep busy."""
    overrides = ("max_steps=40", "save_steps=10", "val_set_size=0.3", "eval_steps=10")
    job = ended(pair, submit(pair, demo, "nothing", overrides=overrides))
    assert job.state == "succeeded", job.verdict
    assert not [one for one in job.findings if one.code in ("RUN030", "RUN031", "RUN056", "RUN057")]
