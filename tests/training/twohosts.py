"""Jobs on two hosts with a plugin of the test's own in the training: how they are submitted, and waited for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import machines
from fleet import Fleet

from coordinator.core.protocol import BundleFile, Finding
from coordinator.core.views import TERMINAL_STATES, Deadlines, JobView

PATIENCE_S = 900.0
# What is said of a training that does not go well; none of it may be said of one that does.
ALARMS = frozenset({"RUN030", "RUN031", "RUN032", "RUN039", "RUN049", "RUN056", "RUN057"})
# Eight steps, saved after every second.
SHORT = (
    "num_epochs=1",
    "max_steps=8",
    "evals_per_epoch=",
    "saves_per_epoch=",
    "save_steps=2",
    "val_set_size=0",
)
# No deadline is what these are about, on a machine where other tests import torch.
GENEROUS = Deadlines(match_s=300, tcp_s=180, collective_s=300, prepare_s=3600, prepare_idle_s=1800)


def submit(
    pair: Fleet,
    demo: Path,
    plugin: str,
    plan: Mapping[str, object],
    *,
    attempts: int = 1,
    overrides: tuple[str, ...] = SHORT,
) -> str:
    """The demo's job, its training with this file's plugin (`faults.FaultPlugin`), which reads its plan beside it."""
    module = plugin.partition(".")[0]
    given = machines.demo_submission(demo, *overrides, f"plugins=[{plugin}]")
    files = (
        BundleFile(path=f"{module}.py", data=Path(__file__).with_name(f"{module}.py").read_bytes()),
        BundleFile(path=f"{module}.json", data=json.dumps(plan).encode()),
    )
    given = given.model_copy(
        update={
            "files": (*given.files, *files),
            "gpus_per_node": 0,
            "max_attempts": attempts,
            "deadlines": GENEROUS,
        }
    )
    asked = given.model_dump(mode="json", exclude_none=True)
    return str(pair.client.post("/jobs", json=asked).raise_for_status().json()["id"])


def ended(pair: Fleet, job_id: str) -> JobView:
    """The job at its end; nothing of it runs any more on any host."""
    job = pair.ended(job_id, PATIENCE_S)
    for replica in pair.replicas:
        pair.eventually(lambda replica=replica: not replica.training(), "nothing of it is left")  # type: ignore[misc]
    return job


def found(job: JobView, code: str) -> Finding:
    return next(one for one in job.findings if one.code == code)


def training(job: JobView, step: int) -> bool:
    """Whether it has come so far."""
    assert job.state not in TERMINAL_STATES, job.verdict
    return job.progress is not None and job.progress.step >= step
