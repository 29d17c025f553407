"""Keys and values of the DeepSpeed JSON: known, misspelt, of the wrong kind.

The authority is DeepSpeed's own config class, shipped as data (`deepspeed_keys.json`, made by
`make_deepspeed_keys.py`). Its sections forbid unknown keys and say so after the model has been loaded; at the top
level it takes no notice of one. A value "auto" is left out by DeepSpeed or filled in by the trainer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files as package_files

from coordinator.checks.deepspeed import files_once
from coordinator.checks.edits import drop, put, rename
from coordinator.checks.files import nearest
from coordinator.checks.subject import DeepSpeedUse, Findings, Subject, mapping, shown
from coordinator.checks.values import Kind, Misfit, misfit
from coordinator.core.protocol import Finding

# Of an older DeepSpeed; Axolotl's `…_torch_compile.json` still have them, and rankcall leaves them out.
FORMER_COMPILE_KEYS = ("disable", "backend", "kwargs")
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# The trainer compares or computes with it, and text is neither equal nor a number.
_NUMBERS = ("gradient_clipping", "gradient_predivide_factor", "steps_per_print")
_KIND_WORDS = {
    "null": "null", "bool": "true or false", "number": "a number", "str": "text", "list": "a list",
    "object": "a mapping of keys",
}  # fmt: skip


@dataclass(frozen=True)
class DeepSpeedTable:
    """What one version of DeepSpeed takes.

    Attributes:
        sections: the model that reads each section.
        models: the keys of each model, and their types.
        top: the kinds of JSON value that each top-level key takes.
    """

    deepspeed: str
    sections: Mapping[str, Kind]
    models: Mapping[str, Mapping[str, Kind]]
    top: Mapping[str, tuple[str, ...]]


@functools.cache
def deepspeed_table() -> DeepSpeedTable:
    """The shipped table, read once."""
    made = json.loads((package_files("coordinator.checks") / "deepspeed_keys.json").read_text("utf-8"))
    top = {key: tuple(kinds) for key, kinds in made["top"].items()}
    return DeepSpeedTable(made["deepspeed"], made["sections"], made["models"], top)


def unknown_keys(subject: Subject) -> Findings:
    """CFG204: DeepSpeed refuses a key that it does not know, except at the top level, where it does nothing."""
    table = deepspeed_table()
    for use in files_once(subject):
        values = use.values or {}
        for key in values:
            near = nearest(str(key), table.top) if str(key) not in table.top else None
            if near:
                yield subject.found_in_deepspeed(
                    use,
                    "CFG204",
                    f"DeepSpeed does not know `{shown(str(key))}`, and takes no notice of it",
                    str(key),
                    hint=f"did you mean `{near}`?",
                    severity="warning",
                    edits=() if near in values else (rename(near, str(key)),),
                )
        for section, kind in table.sections.items():
            for path, known in _unknown(kind, values.get(section), (section,), table):
                if section == "compile" and path[-1] in FORMER_COMPILE_KEYS:
                    continue
                yield _refused_key(subject, use, path, known)
        former = [key for key in FORMER_COMPILE_KEYS if key in mapping(values.get("compile"))]
        if former:
            yield subject.found_in_deepspeed(
                use,
                "CFG204",
                f"DeepSpeed 0.18 no longer has `compile.{former[0]}`; rankcall leaves it out",
                "compile",
                former[0],
                hint="remove the section `compile`",
                severity="note",
                edits=(drop("compile"),),
            )


def _refused_key(
    subject: Subject, use: DeepSpeedUse, path: tuple[str, ...], known: Mapping[str, Kind]
) -> Finding:
    near = nearest(path[-1], known)
    return subject.found_in_deepspeed(
        use,
        "CFG204",
        f"DeepSpeed does not know `{shown(path[-1])}` under `{'.'.join(path[:-1])}`, and refuses it",
        *path,
        hint=f"did you mean `{near}`?" if near else "remove it",
        severity="error" if near else "warning",
        edits=(rename(near, *path),) if near else (),
    )


def _unknown(
    kind: Kind, value: object, path: tuple[str, ...], table: DeepSpeedTable
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Kind]]]:
    """(where, what is known there) for each key below `value` that its model does not have."""
    known = _fields(kind, table)
    if known is None or not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if str(key) in known:
            yield from _unknown(known[str(key)], item, (*path, str(key)), table)
        else:
            yield (*path, str(key)), known


def _fields(kind: Kind, table: DeepSpeedTable) -> Mapping[str, Kind] | None:
    """The keys of the model that a type names, alone or beside others."""
    for part in kind[1:] if isinstance(kind, list) and kind[0] == "|" else (kind,):
        if isinstance(part, str) and part.startswith("#"):
            return table.models[part[1:]]
    return None


def wrong_values(subject: Subject) -> Findings:
    """CFG220: values that DeepSpeed cannot take."""
    table = deepspeed_table()
    for use in files_once(subject):
        for key, value in (use.values or {}).items():
            kinds = table.top.get(str(key))
            if kinds is None or value == "auto" or str(key) == "zero_optimization":
                continue  # CFG203 says what is wrong with that one
            if str(key) in _NUMBERS:
                kinds = ("null", "number", "bool")
            if _json_kind(value) not in kinds:
                wanted = " or ".join(_KIND_WORDS[kind] for kind in kinds if kind != "null")
                yield subject.found_in_deepspeed(
                    use, "CFG220", f"`{key}: {shown(value)}`: DeepSpeed wants {wanted}", str(key)
                )
        for section, kind in table.sections.items():
            fields = _fields(kind, table) or {}
            for key, value in mapping((use.values or {}).get(section)).items():
                known = fields.get(str(key))
                wrong = misfit(known, _without_auto(value), table.models) if known is not None else None
                if wrong is not None and value != "auto":
                    yield _refused_value(subject, use, (section, str(key), *wrong.path), wrong)


def _refused_value(subject: Subject, use: DeepSpeedUse, path: tuple[str, ...], wrong: Misfit) -> Finding:
    near = nearest(wrong.value, wrong.choices) if isinstance(wrong.value, str) else None
    return subject.found_in_deepspeed(
        use,
        "CFG220",
        f"`{'.'.join(path)}: {shown(wrong.value)}`: DeepSpeed wants {wrong.expected}",
        *path,
        hint=f"did you mean `{near}`?" if near else f"write {wrong.expected}, or leave it out",
        edits=(put(near, *path),) if near else (),
    )


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "str"
    return "object" if isinstance(value, Mapping) else "list"


def _without_auto(value: object) -> object:
    """As DeepSpeed's models read it: what is "auto" counts as not written."""
    if isinstance(value, Mapping):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def elasticity(subject: Subject) -> Findings:
    """CFG221: elastic training sets the batch sizes itself, and accelerate always writes one of them."""
    for use in files_once(subject):
        section = mapping((use.values or {}).get("elasticity"))
        if not section.get("enabled") or section.get("ignore_non_elastic_batch_info"):
            continue
        said = next((key for key in _BATCH_KEYS if key in (use.values or {})), None)
        yield subject.found_in_deepspeed(
            use,
            "CFG221",
            f"`elasticity` beside `{said}`"
            if said
            else "`elasticity` beside the `gradient_accumulation_steps` that accelerate adds",
            "elasticity",
        )


RULES = (unknown_keys, wrong_values, elasticity)
