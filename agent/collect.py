"""What a training left behind: the files of the model, their hashes, and whether every tensor is whole.

A safetensors file names its tensors and their shapes in a header (8 bytes of length, then JSON), so a model
that was saved without its weights (ZeRO-3, not gathered) is seen without loading it. Only the top level of the
output folder counts; checkpoints are not the result, nor is what lay there before the attempt (`leftovers.py`). Called by
`tasks.py` in a thread; hashes in pieces.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeGuard

from pydantic import JsonValue

from agent.leftovers import State, is_left
from coordinator.core.catalogue import finding
from coordinator.core.paths import PathRefused, contained
from coordinator.core.protocol import ArtifactFacts, CollectResult, Finding, Stage
from coordinator.core.words import counted

_PIECE_BYTES = 1 << 20
_HEADER_LIMIT_BYTES = 100 << 20  # the format's own limit
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
Kind = Literal["model", "adapter", "tokenizer", "config", "other"]
_WEIGHTS: Final[frozenset[Kind]] = frozenset({"model", "adapter"})
_NOTHING: Final[Mapping[str, State]] = {}


class Damaged(Exception):
    """A safetensors file that is cut short or is not one; the text says how."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a safetensors header says."""

    count: int
    empty: tuple[str, ...]


def kind_of(name: str) -> Kind:
    """What a file of the output folder is, by the names Hugging Face's libraries give them."""
    if name.startswith("adapter_model"):
        return "adapter"
    if name.startswith(("model", "pytorch_model", "consolidated")) and name.endswith(
        (".safetensors", ".bin", ".pt", ".pth")
    ):
        return "model"
    if name.startswith(
        ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template", "spiece")
    ):
        return "tokenizer"
    return "config" if name.endswith((".json", ".yaml", ".yml")) else "other"


def read_header(path: Path) -> Tensors:
    """Tensors of a safetensors file, after checking that its header and its size agree.

    Raises:
        Damaged: when they do not.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise Damaged(f"it has {size} bytes, which is too short for a header")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(_HEADER_LIMIT_BYTES, size - 8):
            raise Damaged(f"its header should have {length} bytes, but the file has only {size}")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise Damaged("its header is not JSON") from None
    if not isinstance(header, dict):
        raise Damaged("its header is not a JSON object")
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = max((_checked(name, entry) for name, entry in tensors.items()), default=0)
    if 8 + length + end != size:
        raise Damaged(f"its header describes {8 + length + end} bytes, but the file has {size}")
    empty = tuple(sorted(name for name, entry in tensors.items() if 0 in entry["shape"]))
    return Tensors(len(tensors), empty)


def _checked(name: str, entry: object) -> int:
    """Where a tensor ends, once its entry makes sense."""
    if not isinstance(entry, Mapping):
        raise Damaged(f"the entry of tensor {name} is not an object")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise Damaged(f"the entry of tensor {name} has no shape or no place")
    begin, end = offsets
    width = _DTYPE_BYTES.get(str(dtype))
    if end < begin or (width is not None and math.prod(shape) * width != end - begin):
        raise Damaged(
            f"tensor {name} of shape {list(shape)} and type {dtype} cannot have {end - begin} bytes"
        )
    return int(end)


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(one, int) and one >= 0 for one in value)


def collect(
    work: Path,
    output_dir: str,
    going_on: Callable[[], bool] = lambda: True,
    before: Mapping[str, State] = _NOTHING,
) -> tuple[CollectResult, tuple[Finding, ...]]:
    """Find, hash and verify what was saved in `output_dir` of the job's work folder. Blocks; gives up when not `going_on`.

    Args:
        before: what lay there before the attempt; it is left aside, and that is said.

    An absolute `output_dir` is taken as it is: the submission's check has allowed it. Files in it are named by their
    path relative to `work` where they lie in it, else by their absolute path.
    """
    try:
        folder = Path(output_dir) if Path(output_dir).is_absolute() else contained(work, output_dir)
    except PathRefused as error:
        return CollectResult(folder=output_dir), (_lost(f"output_dir {error}."),)
    artifacts: list[ArtifactFacts] = []
    findings: list[Finding] = []
    tensors = 0
    empty: list[str] = []
    files = list(_files(folder))
    left = [path for path in files if is_left(path, before)]
    for path in files:
        if not going_on():
            break
        if path in left:
            continue
        name = _relative(path, work)
        if path.name.endswith(".safetensors"):
            try:
                header = read_header(path)
                tensors += header.count
                empty += header.empty
            except (Damaged, OSError) as damage:
                findings.append(_damaged(name, damage))
        try:
            digest, size = _hash(path, going_on)
        except OSError as error:
            findings.append(_damaged(name, error))
            continue
        artifacts.append(ArtifactFacts(path=name, size_bytes=size, sha256=digest, kind=kind_of(path.name)))
    findings += _missing_shards(folder, {path.name for path in left})
    if left:
        findings.append(_left_aside(folder, left, [one.kind for one in artifacts]))
    result = CollectResult(
        folder=str(folder), artifacts=tuple(artifacts), tensors=tensors, empty_tensors=tuple(empty)
    )
    return result, tuple(findings)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files at the top level of the output folder; links that lead out of it are left alone."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file() and entry.resolve().is_relative_to(folder.resolve()):
            yield entry


def _relative(path: Path, work: Path) -> str:
    base = work.resolve()
    real = path.resolve()
    return str(real.relative_to(base)) if real.is_relative_to(base) else str(real)


def _hash(path: Path, going_on: Callable[[], bool]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while going_on() and (piece := file.read(_PIECE_BYTES)):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size


def _missing_shards(folder: Path, left: Set[str]) -> list[Finding]:
    """Files that a sharded model's index names and that are not there, or are not of this attempt."""
    found: list[Finding] = []
    for index in sorted(folder.glob("*.safetensors.index.json")) if folder.is_dir() else ():
        if index.name in left:
            continue
        try:
            shards = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            found.append(_damaged(index.name, error))
            continue
        missing = sorted(shard for shard in shards if shard in left or not (folder / shard).is_file())
        if missing:
            text = f"{index.name} names {counted(len(missing), 'file')} not there, such as {missing[0]}."
            found.append(finding("RUN023", text, evidence={"missing": list(missing[:20])}))
    return found


def _left_aside(folder: Path, left: Sequence[Path], saved: Sequence[Kind]) -> Finding:
    """An error where the only model that is there is one from before."""
    names = [path.name for path in left]
    evidence: dict[str, JsonValue] = {"left_aside": [*names[:50]]}
    models = [name for name in names if kind_of(name) in _WEIGHTS]
    if models and not _WEIGHTS.intersection(saved):
        text = f"This attempt saved no model in {folder}: {models[0]} was there before it began."
        return finding("RUN005", text, stage=Stage.COLLECT, evidence=evidence)
    text = f"{len(names)} files in {folder} were there before this attempt and are not part of its result: "
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return finding("RUN029", f"{text}{shown}.", stage=Stage.COLLECT, evidence=evidence)


def _damaged(name: str, error: Exception) -> Finding:
    return finding("RUN023", f"{name} is damaged: {error}.", file=name)


def _lost(text: str) -> Finding:
    return finding("RUN005", text, stage=Stage.COLLECT)
