"""What torch's flight recorder knows of a hung training: which collectives each rank has begun and not finished.

torch writes its record when something is written to the pipe that the rendered environment names, and every rank's thread
for that lives on while its collective hangs. The record is a pickle: it is read without ever naming a class, so that a
file that is not what it seems cannot run anything. Called by `forensics.py`. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.core.clock import monotonic_s
from coordinator.core.words import counted

# The stem in the rendered environment, without the rank (`coordinator/render/environment.py`).
STEM = "flight-recorder."
_RECORD_BYTES = 64 << 20
_UNFINISHED_SHOWN = 20
_FINISHED_SHOWN = 3
_LOOK_S = 0.1


class _Plain(pickle.Unpickler):
    """Reads containers, numbers and strings only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def ask(folder: Path) -> tuple[Path, ...]:
    """Have every rank of this replica write its record; the files that are going to be there. At once."""
    expected = []
    for pipe in sorted(folder.glob(f"{STEM}*.pipe")):
        with contextlib.suppress(OSError):
            # without a reader it fails instead of waiting for one
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(handle, b"1\n")
            finally:
                os.close(handle)
            expected.append(pipe.with_suffix(""))
    return tuple(expected)


def wait(files: Iterable[Path], until_s: float, since_at: float) -> None:
    """Until all of them were written after `since_at` (epoch), and have stopped growing; at most until `until_s`."""
    sizes: dict[Path, int] = {}
    left = set(files)
    while left and monotonic_s() < until_s:
        for path in tuple(left):
            with contextlib.suppress(OSError):
                found = path.stat()
                if found.st_mtime >= since_at - 1.0 and found.st_size and sizes.get(path) == found.st_size:
                    left.discard(path)
                sizes[path] = found.st_size
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Told:
    """What the records say: in lines, and of each rank in a few words what its GPU waits for; `pending`: those that do."""

    lines: tuple[str, ...] = ()
    waits: Mapping[int, str] = field(default_factory=dict)
    pending: frozenset[int] = frozenset()


def told(folder: Path) -> Told:
    """What the records in the attempt's folder say; nothing where there is none."""
    lines: list[str] = []
    waits: dict[int, str] = {}
    pending: set[int] = set()
    for path in sorted(folder.glob(f"{STEM}*")):
        rank = path.name.removeprefix(STEM)
        if not rank.isdigit() or not path.is_file():
            continue
        try:
            if path.stat().st_size > _RECORD_BYTES:
                raise ValueError("it is too large")
            with path.open("rb") as file:
                record = _Plain(file).load()
            lines += _lines(rank, record)
            waits[int(rank)] = _wait(record)
            if _pending(record) is not None:
                pending.add(int(rank))
        except Exception as error:  # whatever lies in that file: it is evidence, no reason to fail
            lines.append(f"=== rank {rank}: the record cannot be read ({type(error).__name__}: {error})")
    return Told(tuple(lines), waits, frozenset(pending))


def _wait(record: Mapping[str, Any]) -> str:
    """The number tells who is behind: a rank that has begun fewer never came to the one that the others wait in."""
    pending = _pending(record)
    if pending is not None:
        return (
            f"its GPU waits in {pending.get('profiling_name')}, collective {pending.get('collective_seq_id')}"
        )
    last = max((int(one.get("collective_seq_id") or 0) for one in _entries(record)), default=0)
    return f"its GPU waits in no collective, {last} are done"


def _pending(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((one for one in _entries(record) if one.get("state") != "completed"), None)


def _entries(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in record.get("entries", ()) if isinstance(one, dict)]


def _lines(rank: str, record: Mapping[str, Any]) -> Iterator[str]:
    entries = _entries(record)
    unfinished = [one for one in entries if one.get("state") != "completed"]
    yield f"=== rank {rank}: {counted(len(entries), 'collective')} recorded, {len(unfinished)} not finished"
    finished = [one for one in entries if one.get("state") == "completed"]
    for one in finished[-_FINISHED_SHOWN:]:
        yield _line(one)
    for one in unfinished[:_UNFINISHED_SHOWN]:
        yield _line(one)
        for frame in list(one.get("frames") or ())[:8]:
            yield f"      at {frame.get('name')} ({frame.get('filename')}:{frame.get('line')})"
    if len(unfinished) > _UNFINISHED_SHOWN:
        yield f"  … {len(unfinished) - _UNFINISHED_SHOWN} more that wait behind these"


def _line(one: Mapping[str, Any]) -> str:
    group = one.get("process_group")
    name = " ".join(str(part) for part in group) if isinstance(group, list | tuple) else group
    what = "p2p" if one.get("is_p2p") else "collective"
    number = one.get("p2p_seq_id") if one.get("is_p2p") else one.get("collective_seq_id")
    return (
        f"  {what} {number} of group {name}: {one.get('profiling_name')} {one.get('input_sizes')} "
        f"{one.get('input_dtypes')}: {one.get('state')}"
    )
