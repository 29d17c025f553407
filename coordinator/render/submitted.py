"""What the user brought, read once: the Axolotl config with its overrides, accelerate's file, DeepSpeed's settings. Pure."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from coordinator.core.overrides import OverrideError, apply_overrides
from coordinator.core.views import Submission
from coordinator.core.yaml import YamlError, load
from coordinator.render.model import RenderError
from coordinator.render.presets import preset


@dataclass(frozen=True, slots=True)
class DeepSpeedSource:
    """DeepSpeed settings and where they come from. `values` is None for a file that only the replicas have."""

    name: str
    values: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The parsed submission. `accelerate` is empty where the user brought none."""

    config: dict[str, object]
    accelerate: dict[str, object]
    deepspeed: DeepSpeedSource | None
    prompts: tuple[str, ...]


def read(submission: Submission) -> Submitted:
    """
    Raises:
        RenderError: for what is no YAML, no JSON, or names a file that is not there.
    """
    try:
        config = apply_overrides(load(submission.config, submission.config_name), submission.overrides)
        brought = submission.accelerate
        accelerate = load(brought.text, brought.name) if brought else {}
    except YamlError as error:
        raise RenderError(error.problem, file=error.name, line=error.line or None) from None
    except OverrideError as error:
        raise RenderError(str(error), key=error.override.partition("=")[0]) from None
    deepspeed = _deepspeed(submission, config, accelerate)
    return Submitted(config, accelerate, deepspeed, submission.prompts)


def mapping(value: object) -> dict[str, object]:
    """`value` where it is a mapping, else an empty one."""
    return dict(cast("Mapping[str, object]", value)) if isinstance(value, Mapping) else {}


def _deepspeed(
    submission: Submission, config: Mapping[str, object], accelerate: Mapping[str, object]
) -> DeepSpeedSource | None:
    """A file given by itself wins, then Axolotl's key, then accelerate's file or its own settings."""
    if submission.deepspeed is not None:
        brought = submission.deepspeed
        return DeepSpeedSource(brought.name, _json(brought.text, brought.name))
    named = config.get("deepspeed")
    if named:
        return _named(named, submission, submission.config_name, "deepspeed")
    if accelerate.get("distributed_type") != "DEEPSPEED":
        return None  # accelerate takes no notice of a `deepspeed_config` then
    inner = mapping(accelerate.get("deepspeed_config"))
    file = submission.accelerate.name if submission.accelerate else ""
    if inner.get("deepspeed_config_file"):
        return _named(
            inner["deepspeed_config_file"], submission, file, "deepspeed_config.deepspeed_config_file"
        )
    return DeepSpeedSource(file, _from_accelerate(inner))


def _named(named: object, submission: Submission, file: str, key: str) -> DeepSpeedSource:
    if isinstance(named, Mapping):
        return DeepSpeedSource(f"{file} ({key})", mapping(named))
    if not isinstance(named, str):
        raise RenderError(f"{key} is {named!r}, neither a path nor settings", file=file, key=key)
    wanted = posixpath.normpath(named)
    for brought in submission.files:
        if posixpath.normpath(brought.path) == wanted:
            return DeepSpeedSource(named, _json(brought.data.decode("utf-8", "replace"), named))
    values = preset(wanted)
    if values is not None:
        return DeepSpeedSource(named, values)
    if posixpath.isabs(named):
        return DeepSpeedSource(named, None)
    raise RenderError(f"{named} was not submitted and is no preset of Axolotl's", file=file, key=key)


def _json(text: str, name: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RenderError(f"not JSON: {error.msg}", file=name, line=error.lineno) from None
    except RecursionError:
        raise RenderError("not JSON: nested too deep", file=name) from None
    if not isinstance(values, dict):
        raise RenderError("a JSON object is expected", file=name)
    return values


def _from_accelerate(inner: Mapping[str, object]) -> dict[str, object]:
    """The JSON that accelerate would make of its own settings (`zero_stage` and its like, with its defaults)."""
    zero: dict[str, object] = {"stage": inner.get("zero_stage", 2)}
    for which in ("optimizer", "param"):
        device = inner.get(f"offload_{which}_device")
        if device and device != "none":
            offload: dict[str, object] = {"device": device}
            if device == "nvme":
                offload["nvme_path"] = inner.get(f"offload_{which}_nvme_path")
            zero[f"offload_{which}"] = offload
    if zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": inner.get("gradient_clipping", "auto"),
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }
