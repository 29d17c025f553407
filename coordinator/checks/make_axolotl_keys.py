"""Writes `axolotl_keys.json`, the table of what the installed Axolotl's schema knows, for the plain check.

Run by a person when the supported Axolotl changes, in an environment that has it:

    python -m coordinator.checks.make_axolotl_keys

The check itself never imports Axolotl (which loads torch: seconds and hundreds of megabytes); it reads the
table, whose first key is the version it was made from. Types are written as `make_types.py` says.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

from coordinator.checks.make_types import Types, rewritten, written

TABLE = Path(__file__).with_name("axolotl_keys.json")
# Wants a package that is not installed with Axolotl; read in its source (integrations/llm_compressor/args.py).
_NOT_IMPORTABLE = {"axolotl.integrations.llm_compressor.LLMCompressorPlugin": {"llmcompressor": "any"}}
# Set by Axolotl itself, never by a user: a config that sets them is not a typing error either.
_INTERNAL = ("capabilities", "env_capabilities")
# Their validators only refuse, they rewrite nothing: the types hold for what the user wrote.
_ONLY_REFUSING = ("deprecate_sharegpt_datasets",)
# Axolotl takes these out before it looks at types (`normalize_attn_implementation`): whatever counts as true is.
_TRUTH_ONLY = (
    "flash_attention", "sdp_attention", "xformers_attention", "flex_attention", "sage_attention", "eager_attention",
)  # fmt: skip


def _plugins(table: Types) -> dict[str, dict[str, Any]]:
    """Keys that each of Axolotl's own plugins adds, by the plugin's dotted name."""
    from axolotl import integrations
    from axolotl.integrations.base import BasePlugin

    found: dict[str, dict[str, Any]] = {name: dict(keys) for name, keys in _NOT_IMPORTABLE.items()}
    for module in pkgutil.iter_modules(integrations.__path__, "axolotl.integrations."):
        try:
            package = importlib.import_module(module.name)
        except ImportError as error:
            print(f"{module.name}: left out, {error}", file=sys.stderr)
            continue
        for name, cls in inspect.getmembers(package, inspect.isclass):
            if (
                not issubclass(cls, BasePlugin)
                or cls is BasePlugin
                or not cls.__module__.startswith(module.name)
            ):
                continue
            arguments: str | list[str] | None = cls().get_input_args()  # type: ignore[attr-defined]
            keys: dict[str, Any] = {}
            for path in [arguments] if isinstance(arguments, str) else arguments or []:
                holder, _, attribute = path.rpartition(".")
                keys |= table.fields(getattr(importlib.import_module(holder), attribute))
            found[f"{module.name}.{name}"] = keys
    return found


def make() -> dict[str, Any]:
    """The table, from the Axolotl of this environment."""
    from axolotl.utils.schemas.config import AxolotlInputConfig

    table = Types()
    keys = table.fields(AxolotlInputConfig)
    for name in rewritten(AxolotlInputConfig, _ONLY_REFUSING):
        if name in keys:
            keys[name] = "any"
    for name in _TRUTH_ONLY:
        keys[name] = "any"
    for name in _INTERNAL:
        keys.setdefault(name, "any")
    plugins = _plugins(table)
    return {
        "axolotl": importlib.metadata.version("axolotl"),
        "required": sorted(n for n, f in AxolotlInputConfig.model_fields.items() if f.is_required()),
        "keys": dict(sorted(keys.items())),
        "models": dict(sorted(table.models.items())),
        "plugins": dict(sorted(plugins.items())),
    }


if __name__ == "__main__":
    made = make()
    TABLE.write_text(written(made), encoding="utf-8")
    print(f"{TABLE.name}: Axolotl {made['axolotl']}, {len(made['keys'])} keys", file=sys.stderr)
