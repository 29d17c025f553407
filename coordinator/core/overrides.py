"""`key=value` laid over a configuration, as `--set` and a submission's overrides write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from coordinator.core.yaml import MAX_DEPTH, MAX_NUMBER, UNDECODABLE, YamlError, copied, load

# Numbers that YAML 1.1 reads as strings (no dot, or no sign in the exponent): `1e-5`, `2e5`, `1.5e3`.
_SCIENTIFIC = re.compile(r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+$")
# What is wrong is shown, not all of what is wrong.
_SHOWN = 200


class OverrideError(ValueError):
    """An override that cannot be applied; `override` is what the user wrote, cut where it is endless."""

    def __init__(self, override: str, problem: str) -> None:
        shown = override if len(override) <= _SHOWN else f"{override[:_SHOWN]}…"
        super().__init__(f"override {shown!r}: {problem}")
        self.override = shown
        self.problem = problem


def scalar(text: str) -> object:
    """The value that `text` stands for on a command line: YAML, but `1e-5` is a number there.

    Raises:
        YamlError: for text that is no YAML value.
    """
    stripped = text.strip()
    if len(stripped) <= MAX_NUMBER and _SCIENTIFIC.match(stripped):
        return float(stripped)
    values = load(f"value: {stripped}\n" if stripped else "value:\n", "value")
    if list(values) != ["value"]:
        raise YamlError("value", 0, 0, "more than one value")
    return values["value"]


def apply_overrides(config: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """`config` with `key=value` and `a.b=value` laid over it in order; `config` itself is not changed.

    A part that is a number indexes a list (`datasets.0.path=x`); one past its end appends. Leading
    dashes are ignored, so that what was typed after `axolotl train` works here. `key=` sets null.

    Raises:
        OverrideError: no `=`, an empty key, one that no file could hold, an index out of range, or a path through a
            plain value.
    """
    result = copied(config)
    assert isinstance(result, dict)
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = key.strip().lstrip("-").split(".")
        if not separator:
            raise OverrideError(override, "write key=value")
        if not all(parts):
            raise OverrideError(override, "the key is empty")
        if len(parts) > MAX_DEPTH:
            raise OverrideError(override, f"nested deeper than {MAX_DEPTH} levels")
        if UNDECODABLE.search(key) is not None:
            raise OverrideError(override, "the key holds an unprintable character")
        try:
            value = scalar(text)
        except YamlError as error:
            raise OverrideError(override, error.problem) from None
        _set(result, parts, value, override)
    return {str(key): value for key, value in result.items()}


def _set(target: object, parts: Sequence[str], value: object, override: str) -> None:
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(target, dict):
            if last:
                target[part] = value
                return
            if target.get(part) is None:
                target[part] = [] if parts[depth + 1] == "0" else {}
            target = target[part]
        elif isinstance(target, list):
            index = _index(part)
            if index is None or index > len(target):
                raise OverrideError(override, f"{part[:_SHOWN]!r} is no index into a list of {len(target)}")
            if index == len(target):
                target.append({})
            if last:
                target[index] = value
                return
            target = target[index]
        else:
            above = ".".join(parts[:depth])
            problem = f"{above[:_SHOWN]} is a plain value and has no {part[:_SHOWN]!r} in it"
            raise OverrideError(override, problem)


def _index(part: str) -> int | None:
    """The index that a part of a path writes; `²` is a digit, and 5,000 nines are a number, but no index."""
    return int(part) if re.fullmatch(r"[0-9]{1,9}", part) else None
