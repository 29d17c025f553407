"""What a user sees: data on stdout, talk on stderr, colours only for a terminal that wants them (NO_COLOR).

Everything that came from outside (names, logs, findings, answers of a model) goes through `plain`, so
that it can neither colour nor move the cursor of the terminal.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from coordinator.core.words import plain

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

    from coordinator.core.protocol import Finding

_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}
# Where nobody looks at a terminal, a table is as wide as its content.
_PIPE_WIDTH = 10_000
# Of a wrapped line, and the width below which a terminal wraps by itself.
_HANGING = 2
_NARROWEST = 40
# Of a traceback: the raising frame, its callers, and the exception.
_EVIDENCE_LINES = 12


@cache
def talk() -> Console:
    """Progress, findings and errors."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else _PIPE_WIDTH
    return Console(stderr=True, highlight=False, emoji=False, markup=False, width=width)


@cache
def paper() -> Console:
    """Data."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, emoji=False, markup=False, width=width)


def say(text: str, style: str = "") -> None:
    """One line of talk, exactly as it is written."""
    talk().print(plain(text), style=style or None, markup=False, soft_wrap=True)


def write(text: str, style: str = "") -> None:
    """A line of data."""
    paper().print(plain(text), style=style or None, markup=False, soft_wrap=True)


def write_json(value: BaseModel | Sequence[BaseModel] | object) -> None:
    """One JSON document on stdout."""
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        text = value.model_dump_json(indent=2)
    elif isinstance(value, list | tuple) and all(isinstance(item, BaseModel) for item in value):
        text = json.dumps([item.model_dump(mode="json") for item in value], indent=2, ensure_ascii=False)
    else:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table of data: a heading and a row per line, columns two blanks apart."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    paper().print(table)


def finding_lines(finding: Finding) -> Iterable[tuple[str, str]]:
    """(text, style) lines of one finding: where, what, and what to do."""
    where = ":".join(
        str(part) for part in (finding.file, finding.line, finding.key) if part is not None and part != ""
    )
    who = f" replica {finding.replica}" if finding.replica else ""
    place = f" {where}" if where else ""
    yield (
        f"{finding.severity} {finding.code}{who}{place}: {finding.message}",
        _SEVERITY_STYLE.get(finding.severity, ""),
    )
    if finding.severity == "error":
        for line in _last_words(finding):
            yield f"  | {line}", "dim"
    if finding.hint:
        yield f"  → {finding.hint}", "dim"


def _last_words(finding: Finding) -> Iterable[str]:
    """The end of the traceback, or of the log, that the finding has as evidence."""
    for name in ("traceback", "tail"):
        lines = finding.evidence.get(name)
        if isinstance(lines, list) and lines:
            return [str(line) for line in lines[-_EVIDENCE_LINES:]]
    return ()


def shortened(text: str, most: int = 100) -> str:
    """For where the whole of it stands beside: a cell of a table, a stage's line above its finding."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def say_finding(finding: Finding) -> None:
    """Wrapped between words where a terminal shows it; a pipe gets each line whole."""
    width = talk().width if sys.stderr.isatty() else None
    for text, style in finding_lines(finding):
        for line in wrapped(text, width):
            say(line, style)


def wrapped(text: str, width: int | None) -> list[str]:
    """Lines of at most `width` (None: any), what follows the first one indented; a quoted line, and a word that is
    longer, stay whole, so that they can be copied."""
    if width is None or text.startswith("  | "):
        return [text]
    indent = len(text) - len(text.lstrip()) + _HANGING
    lines = textwrap.wrap(
        text,
        max(width, _NARROWEST),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [text]


def clock(at: datetime | None) -> str:
    """An instant in the reader's own time zone, to the second."""
    return "–" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
