"""Which known kind of trouble a line of a training log is. Pure; the kinds are in `trouble_machine.py` and `trouble_stack.py`.

Called by `last_words.py` and `diagnosis.py`; findings quote it. A line that is only the echo of another
rank's death is marked as such, so that it is never taken for the cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coordinator.core.trouble_kind import Kind, Trouble
from coordinator.core.trouble_machine import MACHINE
from coordinator.core.trouble_stack import STACK

__all__ = ["KINDS", "TROUBLES", "Kind", "Trouble", "causality", "trouble_in", "without_bar"]

TROUBLES: Final[tuple[Trouble, ...]] = (*MACHINE, *STACK)
KINDS: Final[Mapping[str, Trouble]] = {trouble.name: trouble for trouble in TROUBLES}
# They tell of the death of another rank; the other echoes tell of a process of the same replica.
ECHOES_OF_PEERS: Final = frozenset({"peer-died", "store-gone"})


# What only warns or informs, and the source lines inside a traceback, tell of no failure.
_HARMLESS = re.compile(r"\[(?:DEBUG|INFO|WARNING)\]|^(?:\[rank\d+\]:)?\s{2,}|Warning: ")
# Indented all the same: what torchrun says in its summary of how a process ended.
_OUTCOME = re.compile(r"^\s+(?:exitcode  |traceback) : ")
# A progress bar ends no line: what is printed next stands right behind it.
_BAR = re.compile(r"^.*\d+/\d+ \[[^\]]*\]\s?(?=\S)")


def without_bar(line: str) -> str:
    """The line without the progress bar before it."""
    return _BAR.sub("", line)


def trouble_in(line: str) -> Trouble | None:
    """The first kind that this line is of; the special ones come before the general."""
    line = without_bar(line)
    if _HARMLESS.search(line) and not _OUTCOME.search(line):
        return None
    for trouble in TROUBLES:
        if trouble.pattern.search(line):
            return trouble
    return None


def causality(name: str) -> int:
    """How little a line of this kind says about the cause: 0 a known kind, 1 any exception, 2 another
    rank's death, 3 what many trainings survive, 4 a launcher's word on its child.
    """
    trouble = KINDS.get(name)
    if trouble is None or name == "exception":
        return 1
    if trouble.echo:
        return 2 if name in ECHOES_OF_PEERS else 4
    return 3 if trouble.mild else 0
