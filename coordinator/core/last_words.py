"""What the end of a failed process's log says went wrong: known lines, each with the traceback that it ends. Pure.

Called by the agent when a process has failed (`agent/run_task.py`), since the cause often stands well before the last lines:
torchrun alone adds forty of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from coordinator.core.protocol import ErrorSeen
from coordinator.core.trouble import causality, trouble_in, without_bar

# Enough for a cause, its chain and the echoes; a loop that prints an error a million times must not fill a report.
MOST_ERRORS = 12
MOST_OF_A_KIND = 3
TRACEBACK_LINES = 30
LINE_CHARACTERS = 400

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = "Traceback (most recent call last):"


def last_words(text: str) -> tuple[ErrorSeen, ...]:
    """Lines that tell of a failure in the order they were written, the most telling kept where there are too many."""
    found: list[ErrorSeen] = []
    of_a_kind: dict[str, int] = {}
    for line, traceback in _with_tracebacks(_lines(text)):
        trouble = trouble_in(line)
        if trouble is None or of_a_kind.get(trouble.name, 0) >= MOST_OF_A_KIND:
            continue
        if any(seen.name == trouble.name and seen.line == _cut(line) for seen in found):
            continue  # torch prints an exception twice: as the process's own and as the rank's
        of_a_kind[trouble.name] = of_a_kind.get(trouble.name, 0) + 1
        found.append(ErrorSeen(name=trouble.name, line=_cut(line), traceback=traceback))
    telling = sorted(range(len(found)), key=lambda number: (causality(found[number].name), number))
    return tuple(found[number] for number in sorted(telling[:MOST_ERRORS]))


def _lines(text: str) -> Iterable[str]:
    for line in re.split(r"\r\n|\n|\r", text):
        plain = without_bar(_ANSI.sub("", line)).rstrip()
        if plain:
            yield plain


def _with_tracebacks(lines: Iterable[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Every line outside of a traceback, with the one it ends. Ranks that print at once are told apart by their prefix."""
    open_: dict[str, list[str]] = {}
    for line in lines:
        match = _PREFIX.match(line)
        prefix = match[0] if match else ""
        said = line[len(prefix) :]
        if said.startswith(_TRACEBACK):
            open_[prefix] = [_TRACEBACK]
        elif prefix in open_ and said.startswith(" "):
            if said.strip(" ^~"):
                open_[prefix].append(_cut(said))
        else:
            traceback = open_.pop(prefix, [])
            shown = [*traceback[:1], *traceback[1:][-TRACEBACK_LINES:], _cut(said)] if traceback else []
            yield said, tuple(shown)


def _cut(line: str) -> str:
    return line.strip("\n")[:LINE_CHARACTERS]
