"""pydantic models → the plain types that `values.py` reads; for the scripts that make the shipped tables.

Not imported by any check. A type is a name (`bool`, `int`, `float`, `str`, `null`, `any`), `#Model` for a nested
mapping, or a list that begins with `|` (one of), `[]` (list of, and how many items at least), `{}` (mapping of, and
the type of its keys), `=` (one of these values) or `~` (text that a pattern begins with). A number with bounds is
`["<>", kind, {"ge": 0, …}]`.
"""

from __future__ import annotations

import enum
import inspect
import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

_BOUNDS = ("ge", "gt", "le", "lt")


class Types:
    """Collects models as they are met, each once.

    Args:
        leave_rewritten: nested fields that a validator rewrites before their type is looked at take anything.
    """

    def __init__(self, *, leave_rewritten: bool = False) -> None:
        self._leave_rewritten = leave_rewritten
        self.models: dict[str, dict[str, Any]] = {}

    def model(self, cls: type[BaseModel]) -> str:
        name = cls.__name__
        if name not in self.models:
            self.models[name] = {}
            self.models[name] = self.fields(cls)
            if self._leave_rewritten:
                whole = any(
                    one.info.mode != "after" for one in cls.__pydantic_decorators__.model_validators.values()
                )
                named = self.models[name].keys() if whole else rewritten(cls) & self.models[name].keys()
                self.models[name] |= dict.fromkeys(named, "any")
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
            key, value = (self.kind(part) for part in get_args(hint))
            return ["{}", value] if key == "any" else ["{}", value, key]
        if hint in (bool, int, float, str):
            return hint.__name__
        if hint is type(None):
            return "null"
        if hint is Path:
            return "str"
        if hint in (list, dict):
            return ["[]" if hint is list else "{}", "any"]
        if inspect.isclass(hint) and issubclass(hint, BaseModel):
            return self.model(hint)
        if inspect.isclass(hint) and issubclass(hint, enum.Enum):
            values = [member.value for member in hint]
            return ["=", *values] if all(isinstance(value, str) for value in values) else "any"
        return "any"


def rewritten(cls: type[BaseModel], only_refusing: Sequence[str] = ()) -> set[str]:
    """Fields whose value a validator may rewrite before the type is looked at; `only_refusing` names those that do not."""
    names: set[str] = set()
    for name, decorator in cls.__pydantic_decorators__.field_validators.items():
        if decorator.info.mode in ("before", "wrap", "plain") and name not in only_refusing:
            names.update(decorator.info.fields)
    return names


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
    least = next((one.min_length for one in metadata if getattr(one, "min_length", None)), None)
    if least and isinstance(kind, list) and kind[0] == "[]":
        return [*kind, least]
    for item in metadata:
        if getattr(item, "pattern", None) and kind == "str":
            return ["~", str(item.pattern)]
        for bound in _BOUNDS:
            value = getattr(item, bound, None)
            if isinstance(value, int | float):
                bounds[bound] = value
        if type(item).__name__ in ("BeforeValidator", "WrapValidator", "PlainValidator"):
            return "any"
    if not bounds and not least:
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


def written(made: dict[str, Any]) -> str:
    """The table as JSON that a person can compare line by line."""
    rows = []
    for name, value in made.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(kind)}" for key, kind in value.items())
            rows.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        else:
            rows.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(rows) + "\n}\n"
