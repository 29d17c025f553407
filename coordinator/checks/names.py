"""Names that Axolotl's schema lets through and its trainer then refuses: optimizers, schedules, dataset types.

Shipped as data (`axolotl_names.json`, made by `make_axolotl_names.py`). The Axolotl of the image may be newer, and
a dataset type or a trainer may be the user's own: an unknown name is an error only where a known one is near.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as package_files

from coordinator.checks.edits import put
from coordinator.checks.files import nearest
from coordinator.checks.subject import Findings, Subject, items, mapping, shown, text
from coordinator.core.protocol import Finding

# Less alike, and the nearest name is a guess.
NEAR = 0.8
_SECTIONS = ("datasets", "test_datasets")
# `utils/data/rl.py`: which package reads the types of which `rl`; GRPO's are functions of the user's own.
_READERS = {"dpo": "dpo", "ipo": "dpo", "simpo": "dpo", "kto": "kto", "orpo": "orpo", "ebft": "ebft"}


@dataclass(frozen=True)
class NameTable:
    """`names`: by key. `datasets`: types of datasets by what reads them (`supervised`, `dpo`, `kto` …)."""

    names: Mapping[str, tuple[str, ...]]
    datasets: Mapping[str, frozenset[str]]


@functools.cache
def name_table() -> NameTable:
    """The shipped table, read once."""
    made = json.loads((package_files("coordinator.checks") / "axolotl_names.json").read_text("utf-8"))
    return NameTable(
        {key: tuple(names) for key, names in made["names"].items()},
        {reader: frozenset(names) for reader, names in made["datasets"].items()},
    )


def trainer_names(subject: Subject) -> Findings:
    """CFG616: an optimizer, a schedule or a strategy that the trainer does not know."""
    for key, names in name_table().names.items():
        value = subject.get(key)
        if not isinstance(value, str) or not value or value in names or _unused(subject, key):
            continue
        near = nearest(value, names, cutoff=NEAR)
        yield subject.found(
            "CFG616",
            f"`{key}: {shown(value)}` is none that the trainer knows",
            key,
            hint=f"did you mean `{near}`?"
            if near
            else f"one of {', '.join(names)}"
            if len(names) < 20
            else None,
            severity="error" if near else "warning",
            edits=(put(near, key),) if near else (),
        )


def _unused(subject: Subject, key: str) -> bool:
    """Axolotl does not hand it on (`core/builders/base.py`)."""
    if key == "save_strategy":
        return bool(subject.get("save_steps") or subject.get("saves_per_epoch"))
    return key == "hub_strategy" and not subject.get("hub_model_id")


def dataset_types(subject: Subject) -> Findings:
    """CFG702: a dataset type that nothing reads."""
    if subject.get("skip_prepare_dataset"):
        return
    rl = subject.get("rl")
    reader = _READERS.get(str(rl)) if rl else "supervised"
    if reader is None:
        return
    for section in _SECTIONS:
        for index, item in enumerate(items(subject.get(section))):
            kind = text(mapping(item).get("type"))
            if kind and not kind.startswith("sharegpt"):  # CFG701 has that
                found = _judged(subject, kind, reader, (section, str(index), "type"))
                if found is not None:
                    yield found


def _judged(subject: Subject, kind: str, reader: str, path: tuple[str, ...]) -> Finding | None:
    tables = name_table().datasets
    prefix = ""
    if reader == "supervised" and kind.startswith("bradley_terry"):
        prefix, _, kind = kind.partition(".")
        prefix, reader = f"{prefix}.", "bradley_terry"
    known = tables[reader]
    # `alpaca:chat`: a style after the colon
    plain = kind.split(":")[0] if reader == "supervised" else kind
    if plain in known or (reader == "supervised" and plain.startswith("stepwise_supervised")):
        return None
    other = next((name for name, names in tables.items() if name != reader and kind in names), None)
    if other is not None and not prefix:
        return subject.found(
            "CFG702",
            f"`type: {shown(kind)}` is read {_how(other)} only, and this training is {_how(reader)}",
            *path,
            hint=f"one of {', '.join(sorted(known))}" if len(known) < 25 else None,
        )
    near = _near(kind, plain, known)
    if near is None and "." in kind and not prefix:
        return None  # a module of the user's own
    return subject.found(
        "CFG702",
        f"`type: {shown(prefix + kind)}` is no dataset type that Axolotl has",
        *path,
        hint=f"did you mean `{prefix}{near}`?" if near else None,
        severity="error" if near else "warning",
        edits=(put(prefix + near, *path),) if near else (),
    )


def _near(kind: str, plain: str, known: frozenset[str]) -> str | None:
    """The known type that was meant; one with a dot only where its module is a known one or nearly so."""
    module, dot, function = plain.rpartition(".")
    if not dot:
        near = nearest(plain, [name for name in known if "." not in name], cutoff=NEAR)
        if near is not None:
            return near + kind[len(plain) :]
        return next((name for name in sorted(known) if name.startswith(f"{plain}.")), None)
    modules = {name.partition(".")[0] for name in known}
    meant = module if module in modules else nearest(module, modules, cutoff=NEAR)
    if meant is None:
        return None
    functions = [name.partition(".")[2] for name in known if name.startswith(f"{meant}.")]
    return nearest(f"{meant}.{function}", [f"{meant}.{one}" for one in functions], cutoff=NEAR)


def _how(reader: str) -> str:
    if reader == "supervised":
        return "in supervised training"
    return "as `bradley_terry.…`" if reader == "bradley_terry" else f"under `rl: {reader}`"


RULES = (trainer_names, dataset_types)
