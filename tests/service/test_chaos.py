"""Coordinator and agents are killed, stopped and cut off at random moments while a job runs: nothing lost, nothing twice.

Everything is real but the training, which says what is known beforehand to the last byte (`noise.py`). A seed that fails prints
its schedule; CHAOS_SEEDS=17,23 runs those seeds, CHAOS_SCHEDULE=file.json plays a schedule as it was printed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import noise
import pytest
from chaos import Act, Mischief, dumped, loaded, schedule
from deployment import Deployment, deployed
from postgresql import Server

pytestmark = pytest.mark.timeout(600)

NODES = 2
# With an even seed from the submission on, with an odd one while it trains; a fault may last six seconds longer.
CHAOS_S = 9.0
TRAINING_S = 8.0
PIECES = 80
SEEDS = range(50)
USUAL_SEED = 1
# Every agent that is started imports torch, on a machine that other tests keep busy.
GENEROUS = {"match_s": 300, "tcp_s": 60, "collective_s": 120}


def chosen() -> list[Any]:
    """The seeds asked for; else all, of which one is not marked long."""
    asked = os.environ.get("CHAOS_SEEDS")
    if asked:
        return [int(seed) for seed in asked.split(",")]
    return [seed if seed == USUAL_SEED else pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS]


@contextmanager
def playground(folder: Path, **coordinator_has: str) -> Iterator[tuple[Deployment, Mischief]]:
    """A deployment whose agents reach their coordinator over links that can fail."""
    with deployed(folder, NODES, agents=False, coordinator_has=coordinator_has) as deployment:
        deployment.agents_have = {"HF_TOKEN": noise.SECRETS[0].decode()}
        with Mischief(deployment) as mischief:
            for number in range(NODES):
                mischief.start_agent(number)
            yield deployment, mischief


def survives(deployment: Deployment, mischief: Mischief, seed: int) -> None:
    """One job with the faults of this seed."""
    asked = os.environ.get("CHAOS_SCHEDULE")
    acts = loaded(Path(asked)) if asked else schedule(seed, NODES, 0.0, CHAOS_S)
    try:
        _survives(deployment, mischief, seed, acts)
    except BaseException:
        print(f"seed {seed}\n" + "\n".join(map(str, acts)) + f"\n{dumped(acts)}")
        raise


def _survives(deployment: Deployment, mischief: Mischief, seed: int, acts: Sequence[Act]) -> None:
    deployment.eventually(lambda: len(deployment.client.get("/replicas").json()["items"]) == NODES)
    job_id = deployment.submit(
        {"noise": {"seed": seed, "pieces": PIECES, "seconds": TRAINING_S}}, deadlines=GENEROUS
    )
    if seed % 2:
        deployment.until(job_id, lambda job: job["stage"] == "train")
    mischief.play(acts, time.monotonic())
    deployment.eventually(deployment.answers)
    job = deployment.until(job_id, lambda job: job["state"] not in ("queued", "running"))
    assert job["state"] == "succeeded", (job["verdict"], job["findings"], deployment.everything_said())
    assert job["attempts"] == 1
    for rank, number in enumerate(ranks(deployment, job)):
        folder = deployment.layout(number).attempt(job_id, 1)
        assert len((folder.root / "workers").read_text().splitlines()) == 1
        log = noise.written(seed, rank, PIECES)
        records = noise.records(seed, rank, NODES, PIECES)
        progress = b"".join(map(noise.line, records))
        assert deployment.stream(number, job_id) == log
        assert deployment.stream(number, job_id, "progress.0") == progress
        deployment.eventually(folder.mirrored.exists)
        assert deployment.mirrored(rank, job_id) == noise.masked(log)
        assert deployment.mirrored(rank, job_id, "progress.0") == progress
        assert metrics(deployment, job_id, rank) == [
            {"step": None, **{name: value for name, value in record.items() if name not in ("at", "rank")}}
            for record in records
        ]
        for stream in ("prepare.log",):
            assert deployment.mirrored(rank, job_id, stream) == deployment.stream(number, job_id, stream)
    for number in range(NODES):
        deployment.eventually(lambda number=number: deployment.running(number) == set())


def ranks(deployment: Deployment, job: dict[str, Any]) -> list[int]:
    """The replicas' numbers in the order of their ranks."""
    numbers = {
        json.loads(deployment.layout(number).replica_file.read_text())["replica_id"]: number
        for number in range(NODES)
    }
    members = sorted(job["attempt"]["members"], key=lambda member: member["rank"])
    return [numbers[member["replica_id"]] for member in members]


def metrics(deployment: Deployment, job_id: str, rank: int) -> list[dict[str, Any]]:
    """What is told of a rank's progress, in its order, as it was written."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = deployment.client.get(
            f"/jobs/{job_id}/metrics", params={"limit": 100, "rank": rank, **cursor}
        ).json()
        found += [{"type": one["type"], "step": one["step"], **one["values"]} for one in page["items"]]
        if not page["next_cursor"]:
            return found
        cursor = {"cursor": page["next_cursor"]}


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """At most one playground, with what closes it: it lasts from seed to seed, and is left after one that failed."""
    kept: list[Any] = []
    yield kept
    for _, ground in kept:
        ground.__exit__(None, None, None)


@pytest.mark.parametrize("seed", chosen())
def test_a_job_survives_whatever_befalls_those_who_look_after_it(
    seed: int, grounds: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not grounds:
        ground = playground(tmp_path_factory.mktemp("chaos"))
        grounds.append((ground.__enter__(), ground))
    (deployment, mischief), ground = grounds[0]
    try:
        survives(deployment, mischief, seed)
    except BaseException as error:
        grounds.clear()
        ground.__exit__(type(error), error, error.__traceback__)
        raise


@pytest.mark.long
def test_a_job_that_ends_while_its_replicas_are_cut_off_is_not_run_twice(tmp_path: Path) -> None:
    """And an agent that dies meanwhile is back before anybody hears of it."""
    apart = [Act(1.0, "silent", "link", 0), Act(1.5, "cut", "link", 1)]
    meanwhile = [Act(3.0, "kill", "agent", 1), Act(5.0, "start", "agent", 1)]
    together = [Act(16.0, "open", "link", 0), Act(16.5, "open", "link", 1)]
    with playground(tmp_path) as (deployment, mischief):
        _survives(deployment, mischief, USUAL_SEED, (*apart, *meanwhile, *together))


@pytest.mark.long
def test_it_does_so_on_postgresql(tmp_path: Path, postgresql: Server) -> None:
    with playground(tmp_path, RANKCALL_DATABASE_URL=postgresql.database()) as (deployment, mischief):
        survives(deployment, mischief, USUAL_SEED)
