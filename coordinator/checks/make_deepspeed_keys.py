"""Writes `deepspeed_keys.json`, what the installed DeepSpeed's config class takes, for the plain check.

Run by a person when the supported DeepSpeed changes, in an environment that has it:

    DS_ACCELERATOR=cpu python -m coordinator.checks.make_deepspeed_keys

Two parts: the pydantic models of its sections (unknown keys are refused there), and for all that it reads without
a model the kinds of JSON value that it does not stumble over, which is found by trying them on the class itself.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.checks.make_types import Types, written

TABLE = Path(__file__).with_name("deepspeed_keys.json")
# Which model reads which section (`runtime/config.py`, `monitor/config.py`).
_SECTIONS = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "bfloat16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    "tensorboard": ("deepspeed.monitor.config", "TensorBoardConfig"),
    "wandb": ("deepspeed.monitor.config", "WandbConfig"),
    "csv_monitor": ("deepspeed.monitor.config", "CSVConfig"),
    "comet": ("deepspeed.monitor.config", "CometConfig"),
    "comms_logger": ("deepspeed.comm.config", "CommsLoggerConfig"),
    "hybrid_engine": ("deepspeed.runtime.config", "HybridEngineConfig"),
    "tensor_parallel": ("deepspeed.runtime.tensor_parallel.config", "TPTrainingConfig"),
    "compile": ("deepspeed.compile.config", "CompileConfig"),
}
# Bounds that stand in a validator's code, where a type cannot say them.
_SAID_IN_CODE = {("DeepSpeedFP16Config", "loss_scale"): ["<>", "float", {"ge": 0}]}
# What is tried for each kind of JSON value: one that the key takes is enough.
_TRIED: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "bool": (True, False),
    "number": (1, 2, 0.5),
    "str": ("x", "fp16"),
    "list": ([], ["x"]),
    "object": ({}, {"enabled": False}, {"type": "AdamW"}),
}


class _Watched(dict[str, Any]):
    """A config that notes which of its keys are asked for."""

    asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        return _WatchedKeys(self)

    def __copy__(self) -> _Watched:
        return self


class _WatchedKeys:
    def __init__(self, of: _Watched) -> None:
        self._of = of

    def __contains__(self, key: object) -> bool:
        return key in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)


def _takes(values: dict[str, Any]) -> bool:
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            DeepSpeedConfig(copy.deepcopy(values))
    except Exception:  # it refuses in many ways
        return False
    return True


def _asked() -> list[str]:
    """Every top-level key that the class looks at."""
    from deepspeed.runtime.config import DeepSpeedConfig

    watched = _Watched(train_micro_batch_size_per_gpu=1)
    watched.asked = set()
    DeepSpeedConfig(watched)
    return sorted(watched.asked)


def _kinds(key: str) -> list[str]:
    """The kinds of JSON value that the class takes at a key."""
    base: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    if key == "elasticity":  # wants a version and much else beside it
        return ["object"]
    if key == "train_micro_batch_size_per_gpu":  # may be left out where the other is given
        base["train_batch_size"] = 1
    return [kind for kind, tried in _TRIED.items() if any(_takes({**base, key: value}) for value in tried)]


def make() -> dict[str, Any]:
    """The table, from the DeepSpeed of this environment (DS_ACCELERATOR=cpu where there is no GPU)."""
    logging.disable(logging.ERROR)
    types = Types(leave_rewritten=True)
    sections = {
        key: types.model(getattr(importlib.import_module(module), name))
        for key, (module, name) in _SECTIONS.items()
    }
    for (model, field), kind in _SAID_IN_CODE.items():
        types.models[model][field] = kind
    asked = _asked()
    return {
        "deepspeed": importlib.metadata.version("deepspeed"),
        "sections": sections,
        "models": dict(sorted(types.models.items())),
        "top": {key: _kinds(key) for key in asked},
    }


if __name__ == "__main__":
    made = json.loads(json.dumps(make()))
    TABLE.write_text(written(made), encoding="utf-8")
    print(f"{TABLE.name}: DeepSpeed {made['deepspeed']}, {len(made['top'])} keys", file=sys.stderr)
