"""An Axolotl plugin that does what the user fears, at the step, on the rank and in the attempt that `faults.json` names.

Travels with a submission's bundle: `plugins: [faults.FaultPlugin]` is found in the job's work folder. `what` is one of
kill, stop, raise, nan, block (a data loader that never answers).
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from axolotl.integrations.base import BasePlugin
from transformers import TrainerCallback

PLAN = json.loads(Path("faults.json").read_text())
HERE = (
    int(os.environ.get("RANK", "0")) == PLAN["rank"]
    and Path(os.environ["RANKCALL_ATTEMPT_DIR"]).name == f"attempt-{PLAN['attempt']}"
)


class FaultPlugin(BasePlugin):  # type: ignore[misc]
    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        return [Fault(trainer)] if HERE else []


class Fault(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 < PLAN["step"]:
            return
        what = PLAN["what"]
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "raise":
            raise RuntimeError("the rank's own fault")
        if what == "block":
            while True:
                time.sleep(3600)
        if what == "nan":
            for parameter in kwargs["model"].parameters():
                if parameter.requires_grad:
                    parameter.data.fill_(torch.nan)
