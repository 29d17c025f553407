"""Where a rank is, in a few words, and whether it waits for others there, from the dump of its stacks. Pure.

Called by `forensics.py` for the finding about a hang. A py-spy dump lists threads, and of each the innermost call first.
What a reader wants is the main thread: in which collective it waits, if in any, and what of the training called it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_THREAD = re.compile(r'^Thread .*?(?:"(?P<name>[^"]*)")?$')
_FRAME = re.compile(r"^\s+(?P<function>\S+) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
# Entrances to a collective, or to the making of a group of ranks, in torch.distributed and DeepSpeed: there one waits for the
# others. The innermost that is one names it.
_COLLECTIVES = frozenset(
    {
        "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
        "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend",
        "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send",
        "init_process_group", "new_group", "destroy_process_group", "wait_for_everyone",
    }
)  # fmt: skip
# A client of the hub sends and receives, too.
_DISTRIBUTED = re.compile(r"(?:^|/)(?:torch/distributed|deepspeed|accelerate)/")
_LIBRARY = re.compile(r"(?:^|/)(?:torch|deepspeed|accelerate|python3(?:\.\d+)?|lib/python[\d.]+)/")
_WORDS = 200


@dataclass(frozen=True, slots=True)
class Frame:
    function: str
    file: str
    line: str

    @property
    def collective(self) -> bool:
        return self.function in _COLLECTIVES and _DISTRIBUTED.search(self.file) is not None

    @property
    def place(self) -> str:
        return f"{self.function} ({self.file.rsplit('/', 1)[-1]}:{self.line})"


def where(dump: Sequence[str]) -> str:
    """E.g. "in barrier, called from save_model (trainer.py:3900)"; empty where no Python stack is there."""
    frames = _main_thread(dump)
    if not frames:
        return ""
    collective = next((at for at, frame in enumerate(frames) if frame.collective), None)
    begin = 0 if collective is None else collective + 1
    own = next((frame for frame in frames[begin:] if not _LIBRARY.search(frame.file)), None)
    if collective is None:
        said = f"in {frames[0].place}"
        if own is not None and own is not frames[0]:
            said += f", called from {own.place}"
        return said[:_WORDS]
    said = f"in {frames[collective].function}"
    return (f"{said}, called from {own.place}" if own is not None else said)[:_WORDS]


def waits(dump: Sequence[str]) -> bool:
    """Whether it waits in a collective for other ranks."""
    return any(frame.collective for frame in _main_thread(dump))


def _main_thread(dump: Sequence[str]) -> list[Frame]:
    threads: list[tuple[str, list[Frame]]] = []
    for line in dump:
        if line.startswith("Thread ") and (thread := _THREAD.match(line)):
            threads.append((thread["name"] or "", []))
        elif threads and (found := _FRAME.match(line)):
            threads[-1][1].append(Frame(found["function"], found["file"], found["line"] or "?"))
    main = [frames for name, frames in threads if name == "MainThread" and frames]
    named = main or [frames for _, frames in threads if frames]
    return named[0] if named else []
