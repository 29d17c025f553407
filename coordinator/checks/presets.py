"""Axolotl's DeepSpeed presets by name, as far as a check looks into them.

`deepspeed_configs/zero2.json` and its like mean Axolotl's preset whether or not the file lies beside the
config: Axolotl's package does not carry them, so users name them by habit.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

PRESET_FOLDER = "deepspeed_configs"

_AUTO_BATCH = {
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
_AUTO_PRECISION = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
_BF16 = {"bf16": {"enabled": True}}
_ON_CPU = {"device": "cpu"}


def _preset(stage: int, precision: Mapping[str, object], **more: object) -> dict[str, object]:
    return {"zero_optimization": {"stage": stage, **more}, **precision, **_AUTO_BATCH}


# axolotl-ai-cloud/axolotl, deepspeed_configs/, 0.19
PRESETS: Mapping[str, dict[str, object]] = {
    "zero1.json": _preset(1, _AUTO_PRECISION),
    "zero1_torch_compile.json": _preset(1, _AUTO_PRECISION),
    "zero2.json": _preset(2, _AUTO_PRECISION, offload_optimizer=_ON_CPU),
    "zero2_torch_compile.json": _preset(2, _AUTO_PRECISION, offload_optimizer=_ON_CPU),
    "zero3.json": _preset(3, _AUTO_PRECISION, gather_16bit_weights_on_model_save=True),
    "zero3_bf16.json": _preset(3, _BF16, gather_16bit_weights_on_model_save=True),
    "zero3_bf16_cpuoffload_all.json": _preset(
        3, _BF16, gather_16bit_weights_on_model_save=True, offload_optimizer=_ON_CPU, offload_param=_ON_CPU
    ),
    "zero3_bf16_cpuoffload_params.json": _preset(
        3, _BF16, gather_16bit_weights_on_model_save=True, offload_param=_ON_CPU
    ),
}


def preset(path: str) -> dict[str, object] | None:
    """The preset that `path` names: its last two parts are `deepspeed_configs/NAME.json`."""
    folder, name = posixpath.split(posixpath.normpath(path))
    return PRESETS.get(name) if posixpath.basename(folder) == PRESET_FOLDER else None
