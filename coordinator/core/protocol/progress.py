"""What the training writes about itself, a line of JSON each."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.core.protocol.message import LARGEST_RANK, Message


class ProgressRecord(Message):
    """One line of a `progress.<local_rank>` stream, written by `agent/plugin.py` on every rank.

    `start` once (sizes and world as the training itself sees them), `phase` when the kind of work
    changes (load, train, evaluate, save, done), `log` and `eval` with the trainer's numbers, `end` once.
    `losses_not_finite` of this rank's own losses were NaN or infinite since the start (the trainer's logs average them
    away), the last `losses_not_finite_run` of them in a row; the first was seen at step `not_finite_step`.
    `forward_s` and `data_s` are what this rank did by itself: computing a batch forward, and waiting for its data.
    """

    type: Literal["start", "phase", "log", "eval", "end"]
    at: float
    rank: int = Field(ge=0, le=LARGEST_RANK)
    local_rank: int = Field(default=0, ge=0, le=LARGEST_RANK)
    world_size: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    phase: str | None = None
    loss: float | None = None
    eval_loss: float | None = None
    perplexity: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    losses_not_finite: int | None = None
    losses_not_finite_run: int | None = None
    not_finite_step: int | None = None
    tokens_per_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    step_s: float | None = None
    forward_s: float | None = None
    data_s: float | None = None
    trainable_parameters: int | None = None
    all_parameters: int | None = None
    packing: bool | None = None
    batches: int | None = None
    train_loss: float | None = None
    train_runtime_s: float | None = None
