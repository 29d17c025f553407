"""The end of a log as a person sees it. Called by `run_task.py` for the reports of processes that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_TAIL_BYTES = 16 << 10
_TAIL_LINES = 40


def last_lines(path: Path) -> tuple[str, ...]:
    """The last lines of a log as a person sees them: of a progress bar only its last state."""
    return tuple(_shown(end_of(path, _TAIL_BYTES).split("\n")))[-_TAIL_LINES:]


def end_of(path: Path, limit_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - limit_bytes))
            return file.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _shown(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        last = line.rstrip("\r").rsplit("\r", 1)[-1].rstrip()
        if last:
            yield last
