"""The Axolotl plugin that tells where the training is, on every rank. Named in every rendered config.

Axolotl loads `agent.plugin.ProgressPlugin` and calls its hooks; the numbers come from a `TrainerCallback`
and leave as `protocol.ProgressRecord` lines. World size, steps and batches are reported as the training
itself sees them, which is how the coordinator notices machines that train alone or on different data.
Cheap (one write per log, at most one a second otherwise), and never an exception into the training.
"""

# ruff: noqa: ARG002 - the signatures of the hooks are Axolotl's and transformers'

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from axolotl.integrations.base import BasePlugin
from transformers import TrainerCallback

from agent import checkpoints
from agent.own_work import Losses, OwnPace, never_raises
from agent.progress import ATTEMPT_FOLDER, ProgressWriter, now_at
from coordinator.core.protocol import ProgressRecord

# A sign of life between two logs, for a watchdog that judges within 60 s; rarer would be vague, more is waste.
HEARTBEAT_S = 1.0


class Progress:
    """What this process has said so far, and how it says more."""

    def __init__(self) -> None:
        self.writer = ProgressWriter(int(os.environ.get("LOCAL_RANK", "0") or 0))
        self.phase = ""
        self.said_at = 0.0

    def say(self, kind: Any, **values: Any) -> None:
        self.said_at = now_at()
        self.writer.write(
            ProgressRecord(
                type=kind, at=self.said_at, rank=_rank(), local_rank=self.writer.local_rank, **values
            )
        )

    def enter(self, phase: str, step: int | None = None) -> None:
        if phase != self.phase:
            self.phase = phase
            self.say("phase", phase=phase, step=step)

    def alive(self, kind: Any, **values: Any) -> None:
        """Says it only where nothing was said for `HEARTBEAT_S`."""
        if now_at() - self.said_at >= HEARTBEAT_S:
            self.say(kind, **values)


class ProgressPlugin(BasePlugin):  # type: ignore[misc]  # axolotl ships no types
    """`plugins: [agent.plugin.ProgressPlugin]`."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: Progress | None = None
        self.trained = False

    @never_raises
    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """Loads none; tells that the data's turn has come."""
        if not preprocess:
            self.progress = Progress()
            self.progress.enter("data")

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Every replica keeps checkpoints of its own, so that a further attempt can go on from them."""
        fsdp = bool(cfg.fsdp_config or cfg.fsdp)
        everywhere = checkpoints.each_replica_saves(Path(cfg.output_dir), os.environ, fsdp=fsdp)
        return {"save_on_each_node": True} if everywhere else {}

    @never_raises
    def pre_model_load(self, cfg: Any) -> None:
        if self.progress:
            self.progress.enter("load")

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[TrainerCallback]:
        if self.progress is None:
            return []
        return [ProgressCallback(self.progress, trainer, bool(cfg.sample_packing))]

    @never_raises
    def post_train(self, cfg: Any, model: Any) -> None:
        """Axolotl calls it twice: when the trainer has returned, and when the model is saved."""
        if self.progress:
            self.progress.enter("done" if self.trained else "save")
            self.trained = True


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Turns the trainer's events into records. `trainer` is asked for sizes once, at the start."""

    def __init__(self, progress: Progress, trainer: Any, packing: bool) -> None:
        self.progress = progress
        self.trainer = trainer
        self.packing = packing
        self.timed_step = 0
        self.timed_at = 0.0
        self.final: dict[str, float | None] = {}
        self.losses = Losses()
        self.own = OwnPace()

    @never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._make_way(Path(args.output_dir), state.global_step)
        self._leave_weights_to_rank_0(args)
        self._listen()
        trainable, everything = _parameters(self.trainer.model)
        self.progress.say(
            "start",
            world_size=_world_size(),
            step=state.global_step,
            total_steps=state.max_steps,
            trainable_parameters=trainable,
            all_parameters=everything,
            packing=self.packing,
            batches=_length(kwargs.get("train_dataloader")),
            memory_total_bytes=_memory()[1],
        )
        self.progress.enter("train", state.global_step)
        self.timed_step, self.timed_at = state.global_step, now_at()

    @never_raises
    def _listen(self) -> None:
        """Hear the loss of every batch as this rank computes it: what is logged is the average of all ranks."""
        train = self.trainer.training_step

        @functools.wraps(train)
        def heard(*args: Any, **kwargs: Any) -> Any:
            loss = train(*args, **kwargs)
            self.losses.note(loss)
            return loss

        self.trainer.training_step = heard
        self.own.follow(self.trainer.model)

    @never_raises
    def _leave_weights_to_rank_0(self, args: Any) -> None:
        """DeepSpeed resumes from its own files alone, and under ZeRO-3 a rank has no weights of its own to write."""
        if args.save_on_each_node and self.trainer.is_deepspeed_enabled and _rank() != 0:
            self.trainer._save = lambda *_args, **_kwargs: None

    @never_raises
    def _make_way(self, output: Path, step: int) -> None:
        """Checkpoints beyond the step this training goes on from are an earlier attempt's."""
        checkpoints.begin(output, step, _rank(), _world_size())
        attempt = Path(os.environ.get(ATTEMPT_FOLDER, "")).name
        if self.progress.writer.local_rank == 0 and attempt and checkpoints.on_own_disk(output):
            checkpoints.put_aside(output, step, attempt)

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not control.should_log:
            # Not a log: the newest of those is where loss and pace are read from.
            self.progress.alive(
                "phase",
                phase=self.progress.phase or "train",
                step=state.global_step,
                epoch=state.epoch,
                **self.losses.told(state.global_step),
                **self.own.told(),
            )
        if control.should_evaluate:
            self.progress.enter("evaluate", state.global_step)
        elif control.should_save:
            self.progress.enter("save", state.global_step)
        else:
            self.own.begin_data()

    @never_raises
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.own.end_data()

    @never_raises
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.enter("evaluate", state.global_step)
        self.progress.alive("phase", phase="evaluate", step=state.global_step)

    @never_raises
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.enter("save" if control.should_save else "train", state.global_step)

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (
            args.save_only_model or self.losses.spoiled
        ):  # nothing could be resumed from it, or nothing good
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._complete(folder, args)
            job = checkpoints.job_of(os.environ.get(ATTEMPT_FOLDER))
            checkpoints.saved(folder, _rank(), _world_size(), job)
        self.progress.enter("train", state.global_step)

    def _complete(self, folder: Path, args: Any) -> None:
        """What only rank 0 has written, although every replica was asked to: the weights, and DeepSpeed's note."""
        if not (args.save_on_each_node and args.local_process_index == 0 and _rank() != 0):
            return
        if self.trainer.is_deepspeed_enabled:
            checkpoints.name_latest(folder)
        else:  # every rank has all of the model
            self.trainer.accelerator.unwrap_model(self.trainer.model).save_pretrained(str(folder))

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "train_runtime" in logs:
            self.final = {
                "train_loss": _number(logs, "train_loss"),
                "train_runtime_s": _number(logs, "train_runtime"),
            }
        elif "eval_loss" in logs:
            loss = _number(logs, "eval_loss")
            self.progress.say(
                "eval",
                step=state.global_step,
                epoch=state.epoch,
                eval_loss=loss,
                perplexity=_number(logs, "eval_ppl") or _perplexity(loss),
            )
        elif "loss" in logs:
            self._say_log(state, logs)

    def _say_log(self, state: Any, logs: Mapping[str, Any]) -> None:
        loss = _number(logs, "loss")
        per_gpu = _number(logs, "tokens/train_per_sec_per_gpu")
        used, total = _memory()
        step, at = state.global_step, now_at()
        step_s = None
        if step > self.timed_step:
            step_s = (at - self.timed_at) / (step - self.timed_step)
            self.timed_step, self.timed_at = step, at
        self.progress.say(
            "log",
            step=step,
            total_steps=state.max_steps,
            epoch=state.epoch,
            loss=loss,
            perplexity=_number(logs, "ppl") or _perplexity(loss),
            learning_rate=_number(logs, "learning_rate"),
            grad_norm=_number(logs, "grad_norm"),
            tokens_per_s=None if per_gpu is None else per_gpu * _world_size(),
            memory_bytes=used,
            memory_total_bytes=total,
            step_s=step_s,
            **self.losses.told(step),
            **self.own.told(),
        )

    @never_raises
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.say(
            "end",
            step=state.global_step,
            total_steps=state.max_steps,
            **self.final,
            **self.losses.told(state.global_step),
        )


def _distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _world_size() -> int:
    return torch.distributed.get_world_size() if _distributed() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if _distributed() else int(os.environ.get("RANK", "0") or 0)


def _parameters(model: Any) -> tuple[int, int]:
    """Trainable and all parameters, also where ZeRO-3 has left this rank an empty shell of each."""
    trainable = everything = 0
    for parameter in model.parameters():
        count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        if type(parameter).__name__ == "Params4bit":
            count *= 2 * int(parameter.element_size())
        everything += count
        trainable += count if parameter.requires_grad else 0
    return trainable, everything


def _memory() -> tuple[int | None, int | None]:
    """Bytes this process holds at its peak, and how many there are: of the GPU, or of the machine without one."""
    if torch.cuda.is_available():
        device = torch.cuda.current_device()
        return torch.cuda.max_memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
    import resource

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, total


def _length(dataloader: Any) -> int | None:
    try:
        return len(dataloader)
    except TypeError:  # a stream has none
        return None


def _number(logs: Mapping[str, Any], key: str) -> float | None:
    try:
        value = float(logs[key])
    except (KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _perplexity(loss: float | None) -> float | None:
    return math.exp(loss) if loss is not None and loss < 700 else None
