"""Asks DeepSpeed's own config class what it refuses; only where DeepSpeed is installed.

Called by `checks/axolotl_worker.py` (which loads this file by its path, and may have no rankcall around it) and by
`agent/prepare.py`. Standard library and DeepSpeed only.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Mapping
from typing import Any

# The section that a model reads, by the title of its ValidationError; monitors name their section themselves.
_SECTIONS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedBF16Config": "bf16",
    "DeepSpeedFP16Config": "fp16",
    "CommsLoggerConfig": "comms_logger",
    "HybridEngineConfig": "hybrid_engine",
    "TPTrainingConfig": "tensor_parallel",
    "CompileConfig": "compile",
}


def refusals(values: Mapping[str, Any]) -> list[tuple[list[str], str]]:
    """(the keys that lead to it, the message) for each thing that DeepSpeed refuses.

    What is "auto" is filled in by the trainer and counts as not written. The total batch size and elasticity
    depend on the number of processes, and are not asked about.

    Raises:
        ImportError: there is no DeepSpeed, or it cannot be loaded here.
    """
    from deepspeed.runtime.config import DeepSpeedConfig
    from pydantic import ValidationError

    written: dict[str, Any] = copy.deepcopy(_without_auto(dict(values)))
    for key in ("train_batch_size", "elasticity"):
        written.pop(key, None)
    written.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            DeepSpeedConfig(written)
    except ValidationError as error:
        above = [_SECTIONS[error.title]] if error.title in _SECTIONS else []
        return [
            ([*above, *map(str, one["loc"])], one["msg"].removeprefix("Value error, "))
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
    except (ImportError, OSError):
        raise
    except Exception as error:  # asserts, KeyErrors and more: whatever ends DeepSpeed's start is its refusal
        return [([], f"{error}" or type(error).__name__)]
    return []


def _without_auto(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value
