"""From a hang to the next attempt: found, evidence on disk, processes gone, training again. The real stack on two hosts.

    .venv/bin/python tests/bench/bench_hang.py [idle] [stop] [kill]      (root: it makes network namespaces)

`idle`: before the first step one rank does nothing while the other waits at a barrier; `stop`: a rank is stopped between steps
that take less than a second; `kill`: a rank dies. Instants are those of one machine's clock: the plugin's own note of what it
did, the files of the evidence, the process table looked at every tenth of a second, and the training's own records.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "hosts"), str(TESTS / "training")]

import twohosts  # noqa: E402 - they lie beside the tests
from fleet import Fleet, fleet  # noqa: E402
from namespaces import making  # noqa: E402

from agent import launcher  # noqa: E402
from coordinator.core.protocol import Stage  # noqa: E402
from coordinator.core.views import JobView  # noqa: E402

LIMIT_S = 400.0
LOOK_S = 0.1


def measure(pair: Fleet, demo: Path, what: str) -> dict[str, float]:
    """Seconds between the events, in their order."""
    rank = 0 if what == "idle" else 1
    plan = {"what": what, "rank": rank, "step": 7, "attempt": 1}
    job_id = twohosts.submit(pair, demo, "faults.FaultPlugin", plan, attempts=2)
    folders = [replica.layout.attempt(job_id, 1) for replica in pair.replicas]
    fault = folders[rank].root / "fault.at"
    _until(lambda: fault.exists() and fault.read_text())
    done_at = float(fault.read_text())
    found_at = 0.0
    if what != "kill":
        evidence = [folder.streams / "evidence.sockets" for folder in folders]
        _until(lambda: any(path.exists() for path in evidence))
        found_at = time.time()
    _until(lambda: not any(_running(pair, f"{job_id}-1")))
    gone_at = time.time()
    again = [replica.layout.attempt(job_id, 2).streams / "progress.0" for replica in pair.replicas]
    _until(lambda: all(_started_at(path) for path in again))
    trains_at = max(_started_at(path) for path in again)
    job = pair.ended(job_id, LIMIT_S)
    assert job.state == "succeeded", job.findings
    figures: dict[str, float] = {}
    if found_at:
        written_at = max(
            path.stat().st_mtime for folder in folders for path in folder.streams.glob("evidence.*")
        )
        figures |= {
            "found": found_at - done_at,
            "evidence": written_at - found_at,
            "gone": gone_at - written_at,
        }
    else:
        figures["gone"] = gone_at - done_at
    stacks = _axolotl_s(job, trains_at)
    return figures | {"training again": trains_at - gone_at, "of which Axolotl's": stacks}


def _axolotl_s(job: JobView, trains_at: float) -> float:
    """What `axolotl preprocess` and the start of the training took in the attempt after."""
    assert job.attempt is not None
    stages = {stage.stage: stage for stage in job.attempt.stages}
    began = stages[Stage.PREPARE].started_at
    assert began is not None
    return trains_at - began.timestamp()


def _running(pair: Fleet, attempt_id: str) -> list[int]:
    """How many processes of the attempt each replica has."""
    return [len(launcher.marked(replica.layout).get(attempt_id, ())) for replica in pair.replicas]


def _started_at(path: Path) -> float:
    """When a rank said that its training begins."""
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return 0.0
    return next((float(record["at"]) for record in records if record["type"] == "start"), 0.0)


def _until(seen: object) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not seen():  # type: ignore[operator]
        if time.monotonic() > give_up:
            raise SystemExit("it did not come that far")
        time.sleep(LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["idle", "stop", "kill"])
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        making() as make,
        fleet(make(2), Path(folder)) as pair,
    ):
        demo = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, timeout=600)
        pair.up()
        pair.ready(*(replica.host.name for replica in pair.replicas))
        for what in options.what:
            figures = measure(pair, demo, what)
            load = Path("/proc/loadavg").read_text().split()[0]
            said = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in figures.items())
            print(f"{what} (load {load}): {said}", flush=True)


if __name__ == "__main__":
    main()
