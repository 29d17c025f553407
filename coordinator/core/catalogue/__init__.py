"""The one catalogue of finding codes: what each means, why it matters, what to do.

`rankcall explain CODE`, `GET /codes` and the docs are made from it, and `finding()` is the one way to
make a finding, so that none carries a code nobody can look up. One file per family beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from coordinator.core.catalogue import cfg, col, env, net, refusals, run, sys
from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Finding, Severity, Stage

__all__ = ["CODES", "Entry", "finding"]

CODES: Mapping[str, Entry] = {
    entry.code: entry
    for family in (
        cfg.ENTRIES,
        env.ENTRIES,
        net.ENTRIES,
        col.ENTRIES,
        run.ENTRIES,
        sys.ENTRIES,
        refusals.ENTRIES,
    )
    for entry in family
}


def finding(
    code: str,
    message: str,
    *,
    hint: str | None = None,
    severity: Severity | None = None,
    stage: Stage | None = None,
    replica: str | None = None,
    file: str | None = None,
    key: str | None = None,
    line: int | None = None,
    evidence: Mapping[str, JsonValue] | None = None,
) -> Finding:
    """A finding of a catalogued code; severity, stage and hint default to the catalogue's.

    Raises:
        KeyError: for a code that is not in the catalogue.
    """
    entry = CODES[code]
    return Finding(
        code=code,
        severity=severity or entry.severity,
        message=message,
        hint=entry.fix if hint is None else hint,
        stage=stage or entry.stage,
        replica=replica,
        file=file,
        key=key,
        line=line,
        evidence=dict(evidence or {}),
    )
