"""`rankcall explain`: the catalogue of codes, as text or JSON."""

from __future__ import annotations

import difflib

from coordinator.cli.console import write, write_json, write_table
from coordinator.cli.exits import Exit, Stop
from coordinator.core.catalogue import CODES
from coordinator.core.views import CodeView


def explain_one(code: str, *, json: bool) -> None:
    wanted = code.strip().upper()
    entry = CODES.get(wanted)
    if entry is None:
        near = difflib.get_close_matches(wanted, CODES, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "rankcall explain --all lists them."
        raise Stop(Exit.NOT_FOUND, f"There is no code {code}.", hint=hint)
    if json:
        write_json(CodeView.model_validate(entry))
        return
    write(f"{entry.code} ({entry.severity}): {entry.title}")
    for heading, text in (("What", entry.what), ("Why", entry.why), ("Do", entry.fix)):
        write(f"{heading}: {text}")
    for heading, lines in (("Not this", entry.bad), ("But this", entry.good)):
        if lines:
            write(f"{heading}:")
            for line in lines.splitlines():
                write(f"    {line}")


def explain_all(*, json: bool) -> None:
    entries = sorted(CODES.values(), key=lambda entry: entry.code)
    if json:
        write_json([CodeView.model_validate(entry) for entry in entries])
        return
    write_table(("CODE", "SEVERITY", "TITLE"), ((e.code, e.severity, e.title) for e in entries))
