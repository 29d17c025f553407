"""Checkpoints on this replica's disk: what is there, the marks of whole ones, and what an attempt before left half done.

Called by `agent/prepare.py`, which reports them, and by `agent/plugin.py` inside the training. Standard library only, and
nothing that is missing or refused is an error: a checkpoint is worth less than the training.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from coordinator.core.checkpoints import STATE_FILE, is_mark, mark, step_of


def job_of(attempt: str | None) -> str:
    """The job whose attempt keeps its files in this folder."""
    return Path(attempt or "").parent.name


def listing(output: Path, job: str) -> dict[str, tuple[str, ...]]:
    """Names of the files of each checkpoint folder in `output`, without the marks of other jobs.

    An absolute output folder may hold a whole training of last week, which this one must not go on from.
    """
    found: dict[str, tuple[str, ...]] = {}
    with contextlib.suppress(OSError):
        for folder in output.iterdir():
            if step_of(folder.name) is not None and not folder.is_symlink():
                with contextlib.suppress(OSError):
                    found[folder.name] = tuple(e.name for e in folder.iterdir() if _is_of(job, e))
    return found


def _is_of(job: str, entry: Path) -> bool:
    if not is_mark(entry.name):
        return True
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return entry.read_text() == job
    return False


def on_own_disk(output: Path) -> bool:
    """Whether the output folder lies in the job's work folder, where every process of it runs. Others may be shared."""
    with contextlib.suppress(OSError):
        return output.resolve().is_relative_to(Path.cwd().resolve())
    return False


def each_replica_saves(output: Path, environment: Mapping[str, str], *, fsdp: bool) -> bool:
    """Whether every replica should write checkpoints of its own: they are several, and share no disk.

    On a shared one two replicas that write the same file would spoil it. FSDP gathers on rank 0 alone: the others would
    write empty models.
    """
    world, local = (int(environment.get(name, "1") or 1) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return world > local and not fsdp and on_own_disk(output)


def saved(folder: Path, rank: int, world_size: int, job: str) -> None:
    """This rank has written all of its part of the job's checkpoint in `folder`."""
    with contextlib.suppress(OSError):
        folder.joinpath(mark(rank, world_size)).write_text(job)


def name_latest(folder: Path) -> None:
    """Write down which of DeepSpeed's folders holds its states: it reads that on every rank, and writes it on rank 0 alone.

    Raises:
        OSError: it cannot be written.
    """
    steps = sorted(folder.glob("global_step*"))
    if steps and not folder.joinpath("latest").exists():
        folder.joinpath("latest").write_text(steps[-1].name)


def begin(output: Path, step: int, rank: int, world_size: int) -> None:
    """A training goes on after `step`: marks of later checkpoints are from an attempt before, and about to be wrong."""
    for folder in _later(output, step):
        with contextlib.suppress(OSError):
            folder.joinpath(mark(rank, world_size)).unlink(missing_ok=True)


def put_aside(output: Path, step: int, attempt: str) -> None:
    """Take later checkpoints out of the way of a training that goes on after `step`; it will make them anew.

    Else `save_total_limit` would keep those instead of the new ones. The newest that looks whole is kept under another
    name, for it may be all that is left of hours of work; the others are removed.
    """
    for number, folder in enumerate(sorted(_later(output, step), key=lambda one: -(step_of(one.name) or 0))):
        with contextlib.suppress(OSError):
            kept = output / f"before-{attempt}-{folder.name}"
            if number == 0 and folder.joinpath(STATE_FILE).is_file() and not kept.exists():
                folder.rename(kept)
            else:
                shutil.rmtree(folder)


def _later(output: Path, step: int) -> list[Path]:
    with contextlib.suppress(OSError):
        return [
            folder
            for folder in output.iterdir()
            if (at := step_of(folder.name)) is not None and at > step and not folder.is_symlink()
        ]
    return []
