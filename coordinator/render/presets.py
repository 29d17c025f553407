"""DeepSpeed settings by the names Axolotl's documentation uses: `deepspeed_configs/zero2.json` and its siblings.

The files themselves come with no installation of Axolotl (`axolotl fetch` takes the newest, whatever is
installed), so that a submission that names one without bringing it gets the settings of that name from here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

_LOSS_SCALING: Final[Mapping[str, object]] = {
    "enabled": "auto",
    "auto_cast": False,
    "loss_scale": 0,
    "initial_scale_power": 32,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
_BY_THE_TRAINER: Final[Mapping[str, object]] = {
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
_TO_CPU: Final[Mapping[str, object]] = {"device": "cpu", "pin_memory": True}
_STAGE_3: Final[Mapping[str, object]] = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 0,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_STAGE_1: Final[Mapping[str, object]] = {"stage": 1, "overlap_comm": True}
_STAGE_2: Final[Mapping[str, object]] = {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "contiguous_gradients": True,
    "overlap_comm": True,
}
_ANY_OPTIMIZER: Final[Mapping[str, object]] = {
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
_COMPILED: Final[Mapping[str, object]] = {"compile": {"disable": False, "backend": "inductor"}}


def _preset(
    zero: Mapping[str, object], *, bf16: object = "auto", extra: Mapping[str, object] | None = None
) -> Mapping[str, object]:
    return {
        **(extra or {}),
        "zero_optimization": zero,
        "bf16": {"enabled": bf16},
        "fp16": _LOSS_SCALING,
        **_BY_THE_TRAINER,
    }


PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    "zero1": _preset(_STAGE_1),
    "zero1_torch_compile": _preset(_STAGE_1, extra=_COMPILED),
    "zero2": _preset(_STAGE_2),
    "zero2_torch_compile": _preset(_STAGE_2, extra=_COMPILED),
    "zero3": _preset(_STAGE_3),
    "zero3_bf16": _preset(_STAGE_3, bf16=True),
    "zero3_bf16_cpuoffload_all": _preset(
        {**_STAGE_3, "offload_optimizer": _TO_CPU, "offload_param": _TO_CPU},
        bf16=True,
        extra=_ANY_OPTIMIZER,
    ),
    "zero3_bf16_cpuoffload_params": _preset(
        {**_STAGE_3, "offload_param": _TO_CPU}, bf16=True, extra=_ANY_OPTIMIZER
    ),
}

PRESET_FOLDER: Final = "deepspeed_configs"
PRESET_FILES: Final[tuple[str, ...]] = tuple(f"{name}.json" for name in PRESETS)


def preset(path: str) -> Mapping[str, object] | None:
    """The settings that `path` names, its last two parts being `deepspeed_configs/NAME.json`; None for another path.

    The check and the rendering ask here alike, so that what the one accepts is what the other writes.
    """
    folder, name = posixpath.split(posixpath.normpath(path))
    if posixpath.basename(folder) != PRESET_FOLDER or not name.endswith(".json"):
        return None
    return PRESETS.get(name.removesuffix(".json"))
