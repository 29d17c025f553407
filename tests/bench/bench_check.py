"""How long a plain check takes: as a call, and as the command `rankcall check` with its start-up.

    python tests/bench/bench_check.py

Wall time on a machine that others use says little: each figure has this process's own CPU time beside it, and
the command has a floor, the same interpreter importing pydantic and PyYAML only.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.checks import FolderFiles, check
from coordinator.core.views import Submission, SubmittedFile

CASES = Path(__file__).parent.parent / "unit" / "data" / "cases"
CALLS = 200
STARTS = 10
CALL_LIMIT_S = 0.005
COMMAND_LIMIT_S = 0.5


def milliseconds(values: Sequence[float]) -> str:
    ordered = sorted(values)
    last = ordered[int(len(ordered) * 0.99)]
    return f"median {statistics.median(ordered) * 1e3:.2f} ms, p99 {last * 1e3:.2f} ms, best {ordered[0] * 1e3:.2f} ms"


def timed(work: Callable[[], object], times: int, clock: Callable[[], float]) -> list[float]:
    taken = []
    for _ in range(times):
        began = clock()
        work()
        taken.append(clock() - began)
    return taken


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def started(argv: Sequence[str], folder: Path) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each start of a command."""
    walls, cpus = [], []
    for _ in range(STARTS):
        began, used = time.perf_counter(), children_cpu_s()
        subprocess.run(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        walls.append(time.perf_counter() - began)
        cpus.append(children_cpu_s() - used)
    return walls, cpus


def main() -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    cases = [json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()]
    worst = 0.0
    for kind in ("accept", "reject"):
        cpu, wall = [], []
        for case in cases:
            folder = CASES / case["id"]
            if case["verdict"] != kind:
                continue
            launch = folder / "accelerate_config.yaml"
            given = Submission(
                config=(folder / "axolotl.yml").read_text(),
                accelerate=SubmittedFile(name=launch.name, text=launch.read_text()),
            )
            files = FolderFiles(folder)
            check(given, files=files)
            cpu += timed(lambda given=given, files=files: check(given, files=files), CALLS, time.process_time)
            wall += timed(
                lambda given=given, files=files: check(given, files=files), CALLS, time.perf_counter
            )
        print(f"a call, cases to {kind}: CPU {milliseconds(cpu)}; wall {milliseconds(wall)}")
        worst = max(worst, statistics.median(cpu)) if kind == "accept" else worst
    folder = CASES / "v01_lora_zero2_std"
    command = [
        sys.executable,
        "-m",
        "coordinator.cli",
        "check",
        "axolotl.yml",
        "--accelerate",
        "accelerate_config.yaml",
    ]
    walls, cpus = started([*command, "--json"], folder)
    _, floor = started([sys.executable, "-c", "import pydantic.main, yaml"], folder)
    print(
        f"the command: CPU best {min(cpus):.3f} s, wall best {min(walls):.3f} s, median {statistics.median(walls):.3f} s;"
        f" importing pydantic and PyYAML alone: CPU best {min(floor):.3f} s"
    )
    print(f"within {CALL_LIMIT_S * 1e3:.0f} ms a call: {worst <= CALL_LIMIT_S}; within {COMMAND_LIMIT_S} s a command:"
          f" {min(cpus) <= COMMAND_LIMIT_S} (CPU), {min(walls) <= COMMAND_LIMIT_S} (wall)")  # fmt: skip


if __name__ == "__main__":
    main()
