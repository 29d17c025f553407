"""The files that travel with a submission: what the config names relative to its own folder.

Axolotl reads paths relative to where it runs, which on a replica is a folder with exactly these files. A
name that may as well be one on the Hugging Face hub is taken for that unless such a file is there.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coordinator.cli.exits import Exit, Stop
from coordinator.core.catalogue import finding
from coordinator.core.protocol import BundleFile, Finding
from coordinator.core.regular import read_regular
from coordinator.core.words import size

_DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow", ".txt", ".gz", ".zst"})
# `path: json, data_files: …` names one of the datasets library's builders, not a place.
_BUILDERS = frozenset({"json", "csv", "parquet", "arrow", "text", "pandas", "xml"})
_DATASET_LISTS = ("datasets", "test_datasets", "pretraining_dataset")
_DATA_FILE_KEYS = ("data_files", "split_data_files")
# Folders or files that may also be names on the hub.
_MODEL_KEYS = ("base_model", "base_model_config", "tokenizer_config", "processor_config", "lora_model_dir")
_UNWANTED = frozenset({".git", "__pycache__", ".cache", ".ipynb_checkpoints"})


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """What travels with a submission at most, all its files together.

    Attributes:
        looked_at: files are counted so far: what names more names too many, however many.
    """

    bytes: int = 64 << 20
    files: int = 1024
    looked_at: int = 20_000


LIMITS = BundleLimits()


@dataclass(frozen=True, slots=True)
class Reference:
    """One path a config names. `must_exist`: it cannot be anything else than a file beside the config."""

    key: str
    path: str
    must_exist: bool


def references(config: Mapping[str, object]) -> Iterator[Reference]:
    """Every path in an Axolotl config that may lie beside it."""
    for name in _DATASET_LISTS:
        entries = config.get(name)
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            where = f"{name}.{index}" if isinstance(entries, list) else name
            if isinstance(entry, Mapping):
                yield from _dataset(where, entry)
            elif isinstance(entry, str):
                yield Reference(where, entry, _is_local(entry))
    deepspeed = config.get("deepspeed")
    if isinstance(deepspeed, str):
        # Where there is no such file it may be one of Axolotl's presets: the check knows them.
        yield Reference("deepspeed", deepspeed, must_exist=False)
    template = config.get("chat_template_jinja")
    if isinstance(template, str) and _is_template_path(template):
        yield Reference("chat_template_jinja", template, must_exist=True)
    for key in _MODEL_KEYS:
        value = config.get(key)
        if isinstance(value, str):
            yield Reference(key, value, value.startswith(("./", "../")))


def _dataset(where: str, entry: Mapping[object, object]) -> Iterator[Reference]:
    path = entry.get("path")
    beside = isinstance(path, str) and path in _BUILDERS
    if isinstance(path, str) and not beside:
        yield Reference(f"{where}.path", path, _is_local(path))
    for key in _DATA_FILE_KEYS:
        files = entry.get(key)
        for index, name in enumerate(files if isinstance(files, list) else [files]):
            if isinstance(name, str):
                at = f"{where}.{key}.{index}" if isinstance(files, list) else f"{where}.{key}"
                yield Reference(at, name, beside and "*" not in name and "://" not in name)
    template = entry.get("chat_template_jinja")
    if isinstance(template, str) and _is_template_path(template):
        yield Reference(f"{where}.chat_template_jinja", template, must_exist=True)


def _is_local(path: str) -> bool:
    """Whether it can only be a file here: hub names have no such suffix and no leading dot."""
    if "://" in path or path.startswith("/"):
        return False
    return path.startswith(("./", "../", "~")) or PurePosixPath(path).suffix.lower() in _DATA_SUFFIXES


def _is_template_path(text: str) -> bool:
    return "\n" not in text and "{" not in text and len(text) < 1024


@dataclass(frozen=True, slots=True)
class Survey:
    """What would travel, by its path in the bundle, and why it cannot where it cannot."""

    files: Mapping[str, Path]
    findings: tuple[Finding, ...]


def survey(
    folder: Path,
    config: Mapping[str, object],
    more: tuple[Reference, ...] = (),
    *,
    name: str = "config.yml",
    limits: BundleLimits = LIMITS,
) -> Survey:
    """Looks for the files a config names, relative to `folder`, and reads none of them.

    Args:
        more: references of other files of the submission (`deepspeed_config_file` of an accelerate file).
        name: the config's own, for findings: CFG021, CFG025, CFG026.
    """
    found: dict[str, Path] = {}
    keys: dict[str, str] = {}
    refused: list[Finding] = []
    for reference in (*references(config), *more):
        try:
            for relative, path in _files(folder, reference):
                if len(found) > limits.looked_at:
                    break
                found.setdefault(relative, path)
                keys.setdefault(relative, reference.key)
        except _Refused as why:
            refused.append(why.finding.model_copy(update={"file": name, "key": reference.key}))
    refused.extend(_too_much(_sizes(found), keys, name, limits))
    return Survey(found, tuple(refused))


def collect(
    folder: Path,
    config: Mapping[str, object],
    more: tuple[Reference, ...] = (),
    limits: BundleLimits = LIMITS,
) -> tuple[BundleFile, ...]:
    """Reads the files a config names, relative to `folder`. `more` as in `survey`.

    Raises:
        Stop: for a file that is missing, lies outside the folder, or makes the bundle too large.
    """
    seen = survey(folder, config, more, limits=limits)
    for refusal in seen.findings:
        place = f"{refusal.key}: " if refusal.code != "CFG026" else ""
        raise Stop(Exit.FAILED, f"{place}{refusal.message}.", hint=refusal.hint or "")
    return read_files(seen.files, limits)


class _Refused(Exception):
    """A reference that cannot travel; `finding` lacks its place."""

    def __init__(self, code: str, path: str, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.finding = finding(
            code, f"{path} {problem}", hint=hint, severity="error", evidence={"path": path}
        )


def _files(folder: Path, reference: Reference) -> Iterator[tuple[str, Path]]:
    name = reference.path
    if not name or name.startswith(("/", "~")) or "://" in name or "\0" in name:
        return  # absolute paths must be on the replicas; the submission's check says so if they may not
    path = folder / name
    if not os.path.lexists(path):
        if reference.must_exist:
            raise _missing(folder, reference)
        return
    base, real = folder.resolve(), path.resolve()
    if not real.is_relative_to(base) or real == base:
        hint = "Only files in the config's own folder travel with it; move the config or the file."
        raise _Refused("CFG025", name, f"lies outside the config's folder {base}", hint)
    if real.is_dir():
        yield from _tree(base, real, PurePosixPath(os.path.normpath(name)))
    elif real.is_file():
        yield os.path.normpath(name), real
    else:
        raise _Refused("CFG021", name, "is neither a file nor a folder", "")


def _tree(base: Path, root: Path, name: PurePosixPath) -> Iterator[tuple[str, Path]]:
    """All files below a folder, under the name it was given; what links out of the config's folder is left out."""
    for above, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _UNWANTED)
        for one in sorted(set(names) - _UNWANTED):
            path = Path(above, one)
            if path.is_file() and path.resolve().is_relative_to(base):
                yield str(name / path.relative_to(root).as_posix()), path


def _sizes(found: Mapping[str, Path]) -> dict[str, int]:
    """What cannot be looked at weighs nothing here: reading it says why."""
    sizes = {}
    for name, path in found.items():
        try:
            sizes[name] = path.stat().st_size
        except OSError:
            sizes[name] = 0
    return sizes


def _too_much(
    sizes: Mapping[str, int], keys: Mapping[str, str], name: str, limits: BundleLimits
) -> Iterator[Finding]:
    """CFG026: more than a submission carries."""
    total = sum(sizes.values())
    if len(sizes) > limits.files:
        count = f"{len(sizes)}" if len(sizes) <= limits.looked_at else f"more than {limits.looked_at}"
        message = f"the config names {count} files; at most {limits.files} travel with a submission"
    elif total > limits.bytes:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        named = ", ".join(f"{path} ({size(count)})" for path, count in largest)
        message = (
            f"the files that travel with the config are {size(total)}; the limit is {size(limits.bytes)}"
            f" (the largest: {named})"
        )
    else:
        return
    heaviest = max(sizes, key=lambda one: sizes[one])
    yield finding("CFG026", message, file=name, key=keys[heaviest])


def read_files(found: Mapping[str, Path], limits: BundleLimits = LIMITS) -> tuple[BundleFile, ...]:
    """The files, of which nothing is read that is over the limit: one may grow meanwhile, or have no true size."""
    files = []
    left = limits.bytes
    try:
        for name, path in found.items():
            data = read_regular(path, left)
            left -= len(data)
            if left < 0:
                said = (
                    f"{name} is larger than its size says; the limit is {size(limits.bytes)} for all files."
                )
                raise Stop(Exit.FAILED, said, hint="Put it elsewhere; `rankcall explain CFG026` says more.")
            files.append(BundleFile(path=name, data=data))
    except OSError as error:
        raise Stop(Exit.FAILED, f"{error.filename} cannot be read: {error.strerror}.") from None
    return tuple(files)


def _missing(folder: Path, reference: Reference) -> _Refused:
    near = near_names(folder, reference.path)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Paths are relative to {folder.resolve()}."
    if not near and Path(reference.path).exists():
        hint = f"There is one in the current directory, but paths are relative to the config: {folder.resolve()}."
    return _Refused("CFG021", reference.path, "does not exist", hint)


def near_names(folder: Path, wanted: str, count: int = 3) -> list[str]:
    """Names of files that exist and resemble the wanted one: in its folder first, then below the config's."""
    pure = PurePosixPath(wanted)
    beside = folder / pure.parent
    names = [str(pure.parent / entry.name) for entry in _listed(beside)]
    near = difflib.get_close_matches(str(pure), names, n=count, cutoff=0.6)
    if near:
        return near
    elsewhere = [
        str(path.relative_to(folder))
        for entry in _listed(folder)
        for path in (entry, *(_listed(entry) if entry.is_dir() else ()))
    ]
    same_name = [name for name in elsewhere if PurePosixPath(name).name == pure.name]
    return same_name[:count] or difflib.get_close_matches(str(pure), elsewhere, n=count, cutoff=0.6)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:2000]
    except OSError:
        return []
