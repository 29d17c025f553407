"""Axolotl's DeepSpeed presets by name: `deepspeed_configs/zero2.json` and its like need not lie beside the config.

Axolotl's package does not carry them, so users name them by habit; `render` knows what is in them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from coordinator.render.presets import PRESETS

PRESET_FOLDER = "deepspeed_configs"
PRESET_FILES: tuple[str, ...] = tuple(f"{name}.json" for name in PRESETS)


def preset(path: str) -> Mapping[str, object] | None:
    """The preset that `path` names: its last two parts are `deepspeed_configs/NAME.json`."""
    folder, name = posixpath.split(posixpath.normpath(path))
    if posixpath.basename(folder) != PRESET_FOLDER or not name.endswith(".json"):
        return None
    return PRESETS.get(name.removesuffix(".json"))
