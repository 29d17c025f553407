"""What one rank of a training does by itself, heard inside its process: its own losses, and its own time for a step.

The trainer logs averages over all ranks, and leaves out of them what is no number; and a step takes all ranks equally
long, for they wait for each other. So both are taken where they arise. Used by `agent/plugin.py`; nothing here costs the
training a wait, nor ever raises into it.
"""

# ruff: noqa: ARG002 - the signatures of the hooks are torch's

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, ParamSpec

import torch

P = ParamSpec("P")


def never_raises(hook: Callable[P, None]) -> Callable[P, None]:
    """Progress is a courtesy: whatever goes wrong in telling it, the training goes on."""

    @functools.wraps(hook)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:  # an error of ours in a hook of torch's would end the training
            print(f"rankcall: {hook.__name__} failed: {type(error).__name__}: {error}", file=sys.stderr)

    return guarded


class OwnPace:
    """What this rank does by itself for a step, before it waits for the others: getting its data, computing forward.

    On a GPU it is timed by events on the stream, which cost microseconds and are read when they have passed.
    """

    def __init__(self) -> None:
        self.began: Any = None
        self.passing: list[tuple[Any, Any]] = []
        self.forward_s: list[float] = []
        self.data_s: list[float] = []
        self.waits_since: float | None = None

    def __deepcopy__(self, memo: Any) -> OwnPace:
        """Whoever copies the model copies its hooks; there is only one time to be taken."""
        return self

    def follow(self, model: Any) -> None:
        model.register_forward_pre_hook(self._forward_begins)
        model.register_forward_hook(self._forward_ends)

    @never_raises
    def _forward_begins(self, model: Any, given: Any) -> None:
        self.began = _moment() if model.training else None

    @never_raises
    def _forward_ends(self, model: Any, given: Any, made: Any) -> None:
        if self.began is not None and model.training:
            self.passing.append((self.began, _moment()))
        self.began = None

    def begin_data(self) -> None:
        self.waits_since = time.perf_counter()

    def end_data(self) -> None:
        if self.waits_since is not None:
            self.data_s.append(time.perf_counter() - self.waits_since)
        self.waits_since = None

    def told(self) -> dict[str, float]:
        """The fields of a record: medians since the last one; empty where nothing has passed yet."""
        while self.passing and (took_s := _between(*self.passing[0])) is not None:
            self.forward_s.append(took_s)
            del self.passing[0]
        if not self.forward_s:
            return {}
        found = {"forward_s": round(statistics.median(self.forward_s), 6)}
        if self.data_s:
            found["data_s"] = round(statistics.median(self.data_s), 6)
        self.forward_s.clear()
        self.data_s.clear()
        return found


def _moment() -> Any:
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(began: Any, ended: Any) -> float | None:
    """Seconds; None while the GPU has not come so far."""
    if isinstance(began, float):
        return float(ended - began)
    return float(began.elapsed_time(ended)) / 1000.0 if ended.query() else None


class Losses:
    """How many losses of this rank were no number, counted where they are computed: on the GPU nothing waits for it.

    The trainer leaves them out of the average that it logs, so that a training whose weights are NaN looks well.
    """

    # So many in a row, and the weights are not numbers either.
    SPOILED_RUN = 5

    def __init__(self) -> None:
        self.all: Any = None
        self.run: Any = None
        self.first_step: int | None = None

    @never_raises
    def note(self, loss: Any) -> None:
        bad = (~torch.isfinite(loss.detach())).any().long()
        self.all = bad if self.all is None else self.all + bad
        self.run = bad if self.run is None else (self.run + 1) * bad

    @property
    def spoiled(self) -> bool:
        return self.run is not None and int(self.run) >= self.SPOILED_RUN

    def told(self, step: int) -> dict[str, int | None]:
        """The fields of a record; empty as long as all were numbers. Read when the trainer has waited for the GPU anyway."""
        count = int(self.all) if self.all is not None else 0
        if not count:
            return {}
        self.first_step = step if self.first_step is None else self.first_step
        return {
            "losses_not_finite": count,
            "losses_not_finite_run": int(self.run),
            "not_finite_step": self.first_step,
        }
