"""What watching a training costs: CPU of a reading, and the training's pace with and without, window by window.

    .venv/bin/python tests/bench/bench_sampling.py [--steps 1500]

Two ranks of the real stack on this machine, without agent and coordinator. A process of its own takes the readings that their
two agents take, every two seconds, in half of the windows of four seconds; the pace of a window is told by the steps that rank 0
has recorded in it. Neighbouring windows of one run are compared, in turns first with and then without or the other way
round: whole runs differ by what else the machine does, and so does a run's first half from its second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "training")]

import machines  # noqa: E402 - it lies beside the tests

from agent.telemetry import Meter  # noqa: E402
from coordinator.core import process  # noqa: E402

READING_S = 2.0
WINDOW_S = 4.0
WITH = (1, 2)  # of each four windows; so neither comes first in all pairs


def sample(folder: Path, root: int) -> None:
    """Take readings of both machines in half of the windows until `root` is gone; prints windows and costs."""
    streams = [folder / f"machine{number}" / "attempt-1" / "streams" for number in (0, 1)]
    meters = [Meter(folder, os.environ) for _ in streams]
    me = process.identify(root)
    assert me is not None
    while process.is_alive(me):
        window = int(time.time() // WINDOW_S)
        launchers = _launchers(me)
        if window % 4 in WITH and len(launchers) == 2:
            began = time.process_time()
            seen = [
                meter.read([launcher], where)
                for meter, launcher, where in zip(meters, launchers, streams, strict=True)
            ]
            cost = (time.process_time() - began) / len(seen)
            ranks = sum(one.rank is not None for reading in seen for one in reading.ranks)
            print(json.dumps({"cpu_s": cost, "ranks": ranks}), flush=True)
        time.sleep(READING_S)


def _launchers(root: process.ProcessId) -> list[process.ProcessId]:
    """One a machine, as each has its shim."""
    children = [one for one in process.tree(root) if one not in (root, process.identify(os.getpid()))]
    below = {one for child in children for one in process.tree(child) if one != child}
    return [child for child in children if child not in below]


def paces(at: list[float]) -> list[tuple[float, float]]:
    """Steps a second in neighbouring windows: (with readings, without)."""
    counts: dict[int, int] = {}
    for one in at:
        counts[int(one // WINDOW_S)] = counts.get(int(one // WINDOW_S), 0) + 1
    whole = set(sorted(counts)[1:-1])
    found = []
    for first in sorted(one for one in whole if one % 2 == 0 and one + 1 in whole):
        on, off = (first, first + 1) if first % 4 in WITH else (first + 1, first)
        found.append((counts[on] / WINDOW_S, counts[off] / WINDOW_S))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--root", type=int, default=0)
    options = parser.parse_args()
    if options.sample is not None:
        sample(options.sample, options.root)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, demo = Path(name), Path(name) / "demo"
        subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, timeout=600)
        overrides = ("num_epochs=1000", f"max_steps={options.steps}", "evals_per_epoch=", "saves_per_epoch=")
        submission = machines.demo_submission(demo, *overrides, "val_set_size=0", "save_steps=1000000")
        built = machines.build(folder, submission)
        assert machines.together(built, "prepare") == [0, 0], built[0].log("prepare.log")[-2000:]
        argv = [sys.executable, __file__, "--sample", str(folder), "--root", str(os.getpid())]
        sampler = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        try:
            assert machines.together(built, "train") == [0, 0], built[0].log("train.log")[-2000:]
        finally:
            sampler.kill()
        readings = [json.loads(line) for line in sampler.communicate()[0].splitlines()]
        at = [one.at for one in built[0].progress() if one.type == "log" and one.step]
    cpu = [one["cpu_s"] for one in readings if one["ranks"] == 2]
    pairs = paces(at)
    slower = [1.0 - with_ / without for with_, without in pairs]
    error = statistics.stdev(slower) / len(slower) ** 0.5
    print(
        f"a reading of one rank's processes: {1e3 * statistics.mean(cpu):.1f} ms CPU (median "
        f"{1e3 * statistics.median(cpu):.1f}), {100 * statistics.mean(cpu) / READING_S:.2f} % of a core each 2 s"
    )
    load = Path("/proc/loadavg").read_text().split()[0]
    print(
        f"{len(pairs)} pairs of windows, {len(at)} steps (load {load}): {100 * statistics.mean(slower):+.2f} % slower with "
        f"readings, median {100 * statistics.median(slower):+.2f} %, standard error {100 * error:.2f} %"
    )


if __name__ == "__main__":
    main()
