"""An Axolotl plugin that does what the user fears, at the step, on the rank and in the attempt that `faults.json` names.

Travels with a submission's bundle: `plugins: [faults.FaultPlugin]` is found in the job's work folder. `what` is one of
kill, stop, raise, nan, block (the data loader never answers), idle (before the first step this rank does nothing, while the
others wait at a barrier), limit and memory (it needs more than an rlimit, or its container, allows), disk (checkpoints go to
a disk that is too small). When it was done is left in `fault.at` of the attempt's folder.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from axolotl.integrations.base import BasePlugin
from transformers import TrainerCallback

PLAN = json.loads(Path("faults.json").read_text())
ATTEMPT = Path(os.environ["RANKCALL_ATTEMPT_DIR"])
NOW = ATTEMPT.name == f"attempt-{PLAN['attempt']}"
HERE = int(os.environ.get("RANK", "0")) == PLAN["rank"]
PIECE = 16 << 20
DISK = "256k"


class FaultPlugin(BasePlugin):  # type: ignore[misc]
    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        if NOW and HERE and PLAN["what"] == "block":
            trainer.data_collator = trainer.train_data_collator = Blocking(trainer.data_collator)
        return [Fault()] if NOW else []


class Blocking:
    """A collator that never answers from some batch on, as one does whose file system is gone."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate
        self.batches = 0

    def __call__(self, rows: Any) -> Any:
        self.batches += 1
        if self.batches >= PLAN["step"]:
            note()
            never()
        return self.collate(rows)


class Fault(TrainerCallback):  # type: ignore[misc]
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if PLAN["what"] == "disk" and HERE:
            disk = Path(args.output_dir)
            disk.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
        if PLAN["what"] == "idle" and HERE:
            note()
            never()
        if PLAN["what"] == "idle":
            torch.distributed.barrier()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not HERE or state.global_step + 1 < PLAN["step"]:
            return
        what = PLAN["what"]
        if what in ("kill", "stop", "raise", "limit", "memory"):
            note()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "raise":
            raise RuntimeError("the rank's own fault")
        if what == "nan":
            for parameter in kwargs["model"].parameters():
                if parameter.requires_grad:
                    parameter.data.fill_(torch.nan)
        if what == "limit":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + 8 * PIECE, used + 8 * PIECE))
        if what in ("limit", "memory"):
            held = []
            while True:
                held.append(torch.ones(PIECE, dtype=torch.uint8))


def note() -> None:
    (ATTEMPT / "fault.at").write_text(str(time.time()))


def never() -> None:
    while True:
        time.sleep(3600)
