"""Loopback "machines" for training tests: rendered files, real processes, no agent and no coordinator.

`build(folder, submission)` renders a submission for each rank, lays the files out as an agent does; `together` runs
prepare and train on all of them at the same time, as `agent/launcher.py` would.
With GPUs each machine sees one, and NCCL has sockets only, as between containers of different hosts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.core.protocol import BundleFile, ProgressRecord
from coordinator.core.views import Submission
from coordinator.render import Rendered, Site, Topology, render

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Machine:
    rank: int
    home: Path
    rendered: Rendered
    own: tuple[tuple[str, str], ...] = ()
    number: int = 1

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def attempt(self) -> Path:
        return self.home / f"attempt-{self.number}"

    def log(self, name: str) -> str:
        return (self.attempt / "streams" / name).read_text(errors="replace")

    def result(self, name: str) -> Any:
        return json.loads((self.attempt / name).read_text())

    def progress(self) -> list[ProgressRecord]:
        return [ProgressRecord.model_validate_json(line) for line in self.log("progress.0").splitlines()]

    def start(self, name: str, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        command = [sys.executable if part == "python" else part for part in argv]
        with (self.attempt / "streams" / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=self.work, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
            )

    def _environment(self) -> dict[str, str]:
        unset = self.rendered.unset
        kept = {
            name: value
            for name, value in os.environ.items()
            if not any(
                name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in unset
            )
        }
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        common = {"RANKCALL_ATTEMPT_DIR": str(self.attempt), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
        return kept | self.rendered.environment | common | dict(self.own)


def demo_submission(demo: Path, *overrides: str, prompts: tuple[str, ...] = ()) -> Submission:
    """The demo's job, its files travelling in the bundle."""
    names = [path for path in sorted(demo.rglob("*")) if path.is_file() and path.name != "demo.yml"]
    return Submission(
        config=(demo / "demo.yml").read_text(),
        config_name="demo.yml",
        overrides=overrides,
        files=tuple(BundleFile(path=str(path.relative_to(demo)), data=path.read_bytes()) for path in names),
        prompts=prompts,
    )


def build(
    folder: Path,
    submission: Submission,
    nodes: int = 2,
    address: str = "127.0.0.1",
    gpus: int = 0,
    number: int = 1,
    resume: str | None = None,
) -> list[Machine]:
    """`number` and `resume`: a further attempt on the same disks, and the checkpoint it goes on from."""
    topology = Topology(nodes, gpus, address, free_port())
    machines = []
    for rank in range(nodes):
        family = "ipv6" if ":" in address else "ipv4"
        site = Site(rank, "lo", family, host_id=f"r-{rank:010d}")
        own = (
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": str(rank)}
            if gpus
            else {}
        )
        machine = Machine(
            rank,
            folder / f"machine{rank}",
            render(submission, topology, site, number, resume),
            tuple(own.items()),
            number,
        )
        (machine.attempt / "streams").mkdir(parents=True, exist_ok=True)
        for brought in submission.files:
            path = machine.work / brought.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(brought.data)
        for file in machine.rendered.files:
            (machine.attempt / file.path).write_text(file.content)
        machines.append(machine)
    return machines


def together(machines: list[Machine], name: str, timeout_s: float = 540) -> list[int]:
    """Runs `prepare`, `train` or `compare` on all machines at once; exit codes in rank order."""
    began = time.monotonic()
    processes = []
    for machine in machines:
        argv = getattr(machine.rendered, f"{name}_argv")
        processes.append(machine.start(name, argv))
    try:
        return [process.wait(max(1.0, timeout_s - (time.monotonic() - began))) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
