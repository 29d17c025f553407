"""Writes `axolotl_keys.json`, the table of what the installed Axolotl's schema knows, for the plain check.

Run by a person when the supported Axolotl changes, in an environment that has it:

    python -m coordinator.checks.make_axolotl_keys

The check itself never imports Axolotl (which loads torch: seconds and hundreds of megabytes); it reads the
table, whose first key is the version it was made from. A type is written as `keys.py` reads it: a name
(`bool`, `int`, `float`, `str`, `null`, `any`), `#Model` for a nested mapping, or a list that begins with
`|` (one of), `[]` (list of), `{}` (mapping of), `=` (one of these values) or `~` (text that a pattern begins
with). A number with bounds is `["<>", kind, {"ge": 0, …}]`.
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

TABLE = Path(__file__).with_name("axolotl_keys.json")
# Wants a package that is not installed with Axolotl; read in its source (integrations/llm_compressor/args.py).
_NOT_IMPORTABLE = {"axolotl.integrations.llm_compressor.LLMCompressorPlugin": {"llmcompressor": "any"}}
_BOUNDS = ("ge", "gt", "le", "lt")
# Set by Axolotl itself, never by a user: a config that sets them is not a typing error either.
_INTERNAL = ("capabilities", "env_capabilities")
# Their validators only refuse, they rewrite nothing: the types hold for what the user wrote.
_ONLY_REFUSING = ("deprecate_sharegpt_datasets",)
# Axolotl takes these out before it looks at types (`normalize_attn_implementation`): whatever counts as true is.
_TRUTH_ONLY = (
    "flash_attention", "sdp_attention", "xformers_attention", "flex_attention", "sage_attention", "eager_attention",
)  # fmt: skip


class _Table:
    """Collects models as they are met, each once."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Any]] = {}

    def model(self, cls: type[BaseModel]) -> str:
        name = cls.__name__
        if name not in self.models:
            self.models[name] = {}
            self.models[name] = self.fields(cls)
            if cls.model_config.get("extra") == "allow":
                self.models[name]["*"] = "any"
        return f"#{name}"

    def fields(self, cls: type[BaseModel]) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            kind = self.kind(_annotation(field))
            for key in _names(name, field, both=bool(cls.model_config.get("populate_by_name"))):
                known[key] = kind
        return known

    def kind(self, hint: Any) -> Any:
        origin = get_origin(hint)
        if origin is Annotated:
            inner, *metadata = get_args(hint)
            return _bounded(self.kind(inner), metadata)
        if origin in (typing.Union, types.UnionType):
            return _union([self.kind(part) for part in get_args(hint)])
        if origin is Literal:
            return ["=", *[_plain(value) for value in get_args(hint)]]
        if origin in (list, tuple, set, typing.Sequence):
            parts = [part for part in get_args(hint) if part is not Ellipsis]
            return ["[]", _union([self.kind(part) for part in parts]) if parts else "any"]
        if origin is dict:
            return ["{}", self.kind(get_args(hint)[1])]
        if hint in (bool, int, float, str):
            return hint.__name__
        if hint is type(None):
            return "null"
        if hint in (list, dict):
            return ["[]" if hint is list else "{}", "any"]
        if inspect.isclass(hint) and issubclass(hint, BaseModel):
            return self.model(hint)
        if inspect.isclass(hint) and issubclass(hint, enum.Enum):
            values = [member.value for member in hint]
            return ["=", *values] if all(isinstance(value, str) for value in values) else "any"
        return "any"


def _annotation(field: FieldInfo) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _names(name: str, field: FieldInfo, *, both: bool) -> list[str]:
    """What a user may write for this field: its aliases where it has any, and its name where `both` count."""
    alias = field.validation_alias or field.alias
    if alias is None:
        return [name]
    aliases = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [str(alias)]
    return [*aliases, name] if both and name not in aliases else aliases


def _bounded(kind: Any, metadata: list[Any]) -> Any:
    bounds: dict[str, Any] = {}
    for item in metadata:
        if getattr(item, "pattern", None) and kind == "str":
            return ["~", str(item.pattern)]
        for bound in _BOUNDS:
            value = getattr(item, bound, None)
            if isinstance(value, int | float):
                bounds[bound] = value
        if type(item).__name__ in ("BeforeValidator", "WrapValidator", "PlainValidator"):
            return "any"
    if not bounds:
        return kind
    if isinstance(kind, list) and kind[0] == "|":
        return _union([_bounded(part, metadata) for part in kind[1:]])
    return ["<>", kind, bounds] if kind in ("int", "float") else kind


def _union(parts: list[Any]) -> Any:
    flat: list[Any] = []
    for part in parts:
        for one in part[1:] if isinstance(part, list) and part[0] == "|" else [part]:
            if one not in flat:
                flat.append(one)
    if "any" in flat:
        return "any"
    return flat[0] if len(flat) == 1 else ["|", *flat]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _before_validated(cls: type[BaseModel]) -> set[str]:
    """Fields whose value a validator rewrites before the type is looked at: the plain check leaves them be."""
    names: set[str] = set()
    for name, decorator in cls.__pydantic_decorators__.field_validators.items():
        if decorator.info.mode in ("before", "wrap", "plain") and name not in _ONLY_REFUSING:
            names.update(decorator.info.fields)
    return names


def _plugins(table: _Table) -> dict[str, dict[str, Any]]:
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

    table = _Table()
    keys = table.fields(AxolotlInputConfig)
    for name in _before_validated(AxolotlInputConfig):
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
    rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in made.items() if name == "axolotl"]
    for section in ("required", "keys", "models", "plugins"):
        value = made[section]
        if isinstance(value, list):
            rows.append(f"{json.dumps(section)}: {json.dumps(value)}")
        else:
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(kind)}" for key, kind in value.items())
            rows.append(f"{json.dumps(section)}: {{\n{lines}\n}}")
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{TABLE.name}: Axolotl {made['axolotl']}, {len(made['keys'])} keys", file=sys.stderr)
