"""Which checkpoints of a training are whole, told from the names of their files. Pure.

`transformers` writes the files of a checkpoint one after the other, so a folder of the right name proves nothing. A rank
leaves a mark in it when it has written all of its own (`agent/plugin.py`, after the trainer's `on_save`). A checkpoint can
be resumed from where the trainer's own state lies beside the marks of all ranks of the replica; under ZeRO each replica
has its own shards, without it each has all. Used by the agent and by `stages/resume.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pydantic import Field

from coordinator.core.protocol import LARGEST_COUNT, Message

# What the trainer needs to go on at all; it writes that last.
STATE_FILE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-(\d{1,15})")
_MARK = re.compile(r"rankcall-saved\.(\d{1,9})-of-(\d{1,9})")


class HeldCheckpoint(Message):
    """A checkpoint on a replica's disk: after which step, and which ranks of how many have written all of theirs."""

    step: int = Field(ge=0, le=LARGEST_COUNT)
    name: str = Field(max_length=64)
    world_size: int
    ranks: tuple[int, ...]


def mark(rank: int, world_size: int) -> str:
    """The name of the file that says that this rank has written all that is its own."""
    return f"rankcall-saved.{rank}-of-{world_size}"


def is_mark(name: str) -> bool:
    """Whether a file of this name is such a mark; it holds the job's id."""
    return _MARK.fullmatch(name) is not None


def step_of(folder: str) -> int | None:
    """The step of a checkpoint folder by its name; None for any other folder."""
    found = _FOLDER.fullmatch(folder)
    return int(found[1]) if found else None


def held(listing: Mapping[str, Collection[str]]) -> tuple[HeldCheckpoint, ...]:
    """The checkpoints among these folders that somebody has finished, newest first.

    Args:
        listing: names of the files of each folder.
    """
    found: list[HeldCheckpoint] = []
    for folder, files in listing.items():
        step = step_of(folder)
        if step is None or STATE_FILE not in files:
            continue
        ranks: dict[int, list[int]] = {}
        for name in files:
            if matched := _MARK.fullmatch(name):
                ranks.setdefault(int(matched[2]), []).append(int(matched[1]))
        found += [
            HeldCheckpoint(step=step, name=folder, world_size=world, ranks=tuple(sorted(of_world)))
            for world, of_world in ranks.items()
        ]
    return tuple(sorted(found, key=lambda one: -one.step))
