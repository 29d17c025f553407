"""What watching a training costs: CPU of a reading, and training time with and without, pair by pair.

    .venv/bin/python tests/bench/bench_sampling.py [--pairs 3] [--steps 120]

Two ranks of the real stack on this machine, without agent and coordinator; in every second run a process of its own takes the
agent's readings of both ranks' processes every two seconds, as two agents do. The training's time is its own, between its
first and its last record of a step, so that imports do not blur it.
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


def sample(folder: Path, root: int) -> None:
    """Take readings of everything below `root` until there is nothing; prints what they cost."""
    meter = Meter(folder, os.environ)
    took: list[float] = []
    ranks = 0
    me = process.identify(root)
    assert me is not None
    while process.is_alive(me):
        children = [one for one in process.tree(me) if one != me and one.pid != os.getpid()]
        began, used = time.monotonic(), time.process_time()
        reading = meter.read(_tops(children), folder / "machine0" / "attempt-1" / "streams")
        took.append(time.process_time() - used)
        ranks = max(ranks, len(reading.ranks))
        print(json.dumps({"cpu_s": took, "ranks": ranks}), flush=True)
        time.sleep(max(0.0, READING_S - (time.monotonic() - began)))


def _tops(children: list[process.ProcessId]) -> list[process.ProcessId]:
    """The launchers, one a machine, as the shims are."""
    below = {one for child in children for one in process.tree(child) if one != child}
    return [child for child in children if child not in below]


def train(demo: Path, folder: Path, steps: int, *, sampled: bool) -> tuple[float, list[float]]:
    """Seconds from the first to the last step, and CPU seconds of each reading."""
    short = ("num_epochs=100", f"max_steps={steps}", "evals_per_epoch=", "saves_per_epoch=", "val_set_size=0")
    built = machines.build(folder, machines.demo_submission(demo, *short, "save_steps=100000"))
    assert machines.together(built, "prepare") == [0, 0], built[0].log("prepare.log")[-2000:]
    sampler = None
    if sampled:
        argv = [sys.executable, __file__, "--sample", str(folder), "--root", str(os.getpid())]
        sampler = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert machines.together(built, "train") == [0, 0], built[0].log("train.log")[-2000:]
    finally:
        if sampler is not None:
            sampler.kill()
    at = [one.at for one in built[0].progress() if one.type == "log" and one.step]
    said = sampler.communicate()[0].splitlines() if sampler is not None else []
    last = json.loads(said[-1]) if said else {"cpu_s": [], "ranks": 2}
    assert last["ranks"] == 2, "both ranks were seen"
    return at[-1] - at[0], [float(one) for one in last["cpu_s"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--root", type=int, default=0)
    options = parser.parse_args()
    if options.sample is not None:
        sample(options.sample, options.root)
        return
    with tempfile.TemporaryDirectory() as folder:
        demo = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "coordinator.demo.model", str(demo)], check=True, timeout=600)
        with_s, without_s, cpu = [], [], []
        for number in range(options.pairs):
            order = (True, False) if number % 2 else (False, True)
            for sampled in order:
                run = Path(folder) / f"{number}-{sampled}"
                took_s, used = train(demo, run, options.steps, sampled=sampled)
                (with_s if sampled else without_s).append(took_s)
                cpu += used
                load = Path("/proc/loadavg").read_text().split()[0]
                print(f"{'with' if sampled else 'without'}: {took_s:.2f} s (load {load})", flush=True)
        core = statistics.mean(cpu) / READING_S
        print(
            f"a reading of two ranks: {1e3 * statistics.mean(cpu):.1f} ms CPU (median "
            f"{1e3 * statistics.median(cpu):.1f}), {100 * core:.2f} % of a core; "
            f"training: {statistics.median(with_s):.2f} s with, {statistics.median(without_s):.2f} s without"
        )


if __name__ == "__main__":
    main()
