"""Does a value fit the type that a schema (Axolotl's, DeepSpeed's) gives its key, the way pydantic converts on reading?

Types are written as `make_types.py` writes them. Lenient as pydantic is: `"8"` is a whole number and
`"yes"` is true, but 8 is no text. Called by `keys.py` and `deepspeed_schema.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

Kind = object  # a name, or a list as described in make_types.py

_TRUTH = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
# A whole number in quotes: pydantic takes `"8"` and `"8.0"`, and not `"5e8"`.
_WHOLE = re.compile(r"^[+-]?\d+(_\d+)*(\.0+)?$", re.ASCII)
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "null": "nothing",
}


@dataclass(frozen=True)
class Misfit:
    """A value that does not fit: where below the key, what is there and what should be."""

    path: tuple[str, ...]
    value: object
    expected: str
    choices: tuple[str, ...] = ()


def misfit(kind: Kind, value: object, models: Mapping[str, Mapping[str, Kind]]) -> Misfit | None:
    """The first thing wrong with `value` as a `kind`; None where it fits."""
    if isinstance(kind, str):
        if kind.startswith("#"):
            return _model_misfit(models[kind[1:]], value, models)
        return None if _is(kind, value) else Misfit((), value, _WORDS[kind])
    assert isinstance(kind, list)
    form, *parts = kind
    if form == "|":
        return _union_misfit(parts, value, models)
    if form == "=":
        return None if _among(value, parts) else Misfit((), value, expected(kind), _texts(parts))
    if form == "~":
        fits = isinstance(value, str) and re.match(str(parts[0]), value) is not None
        return None if fits else Misfit((), value, "text")
    if form == "<>":
        if not _is(parts[0], value):
            return Misfit((), value, _WORDS[parts[0]])
        return None if _within(value, parts[1]) else Misfit((), value, expected(kind))
    if form == "[]":
        if not isinstance(value, list):
            return Misfit((), value, expected(kind))
        if len(parts) > 1 and len(value) < int(str(parts[1])):
            return Misfit((), value, f"{parts[1]} item at least")
        return _items_misfit(parts[0], enumerate(value), models)
    if not isinstance(value, Mapping):
        return Misfit((), value, expected(kind))
    if len(parts) > 1:
        for key in value:
            if misfit(parts[1], key, models) is not None:
                return Misfit((str(key),), value[key], f"a key that is {expected(parts[1])}")
    return _items_misfit(parts[0], value.items(), models)


def _items_misfit(kind: Kind, pairs: object, models: Mapping[str, Mapping[str, Kind]]) -> Misfit | None:
    for key, item in pairs:  # type: ignore[attr-defined]
        wrong = misfit(kind, item, models)
        if wrong is not None:
            return Misfit((str(key), *wrong.path), wrong.value, wrong.expected, wrong.choices)
    return None


def _union_misfit(
    parts: list[Kind], value: object, models: Mapping[str, Mapping[str, Kind]]
) -> Misfit | None:
    """None where one part fits; else the misfit that goes deepest, which is the part that was meant."""
    wrong = []
    for part in parts:
        one = misfit(part, value, models)
        if one is None:
            return None
        wrong.append(one)
    deepest = max(wrong, key=lambda one: (len(one.path), bool(one.choices)))
    if deepest.path:
        return deepest
    wanted = [part for part in parts if part != "null"]
    choices = tuple(choice for one in wrong for choice in one.choices)
    return Misfit((), value, " or ".join(dict.fromkeys(expected(part) for part in wanted)), choices)


def _model_misfit(
    fields: Mapping[str, Kind], value: object, models: Mapping[str, Mapping[str, Kind]]
) -> Misfit | None:
    if not isinstance(value, Mapping):
        return Misfit((), value, "a mapping of keys")
    for key, item in value.items():
        kind = fields.get(str(key))
        wrong = misfit(kind, item, models) if kind is not None else None
        if wrong is not None:
            return Misfit((str(key), *wrong.path), wrong.value, wrong.expected, wrong.choices)
    return None


def expected(kind: Kind) -> str:
    """What a kind wants, in words."""
    if isinstance(kind, str):
        return _WORDS.get(kind, "a mapping of keys")
    assert isinstance(kind, list)
    form, *parts = kind
    if form == "=":
        names = _texts(parts)
        return "one of " + ", ".join(names) if len(names) <= 12 else f"one of {len(names)} names"
    if form == "<>":
        signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        return f"{_WORDS[parts[0]]} " + " and ".join(f"{signs[k]} {v}" for k, v in parts[1].items())
    if form == "[]":
        return "a list"
    if form == "{}":
        return "a mapping of keys"
    return " or ".join(dict.fromkeys(expected(part) for part in parts if part != "null"))


def _is(kind: str, value: object) -> bool:
    if kind == "any":
        return True
    if kind == "null":
        return value is None
    if kind == "str":
        return isinstance(value, str)
    if kind == "bool":
        if isinstance(value, str):
            return value.lower() in _TRUTH
        return isinstance(value, bool | int | float) and value in (0, 1)
    if kind == "int" and isinstance(value, str):
        return _WHOLE.match(value.strip()) is not None
    parsed = _parsed(value)
    if parsed is None:
        return False
    return kind == "float" or (math.isfinite(parsed) and parsed.is_integer())


def _parsed(value: object) -> float | None:
    if not isinstance(value, bool | int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return 0.0  # a whole number beyond a float's range is still whole
    except ValueError:
        return None


def _within(value: object, bounds: Mapping[str, float]) -> bool:
    parsed = _parsed(value)
    if parsed is None:
        return False
    return (
        parsed >= bounds.get("ge", -math.inf)
        and parsed > bounds.get("gt", -math.inf)
        and parsed <= bounds.get("le", math.inf)
        and parsed < bounds.get("lt", math.inf)
    )


def _among(value: object, choices: list[Kind]) -> bool:
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _texts(parts: list[Kind]) -> tuple[str, ...]:
    return tuple(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
