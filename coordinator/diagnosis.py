"""Why the process of a rank failed: from its exit and the last words of its log → a finding with cause and traceback. Pure.

Called by `stages/first_failure.py`, which puts the ranks in order. A rank that only tells of another's death is an echo,
and one whose trouble may be the consequence of another's (a collective that was not joined, a peer that does not answer)
stands behind one that has a fault of its own, whoever was heard of first.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from coordinator.core.catalogue import finding
from coordinator.core.last_words import last_words
from coordinator.core.protocol import ErrorSeen, Finding, RunResult, Stage
from coordinator.core.trouble import ECHOES_OF_PEERS, KINDS, Kind, causality

_SHOWN_CHARACTERS = 240
_GIB = 1 << 30

# What agents find themselves, without a log: who is at fault.
_KIND_OF_CODE: dict[str, Kind] = {
    "RUN020": "network",
    "RUN022": "replica",
    "RUN024": "configuration",
    "RUN025": "resources",
    "RUN027": "replica",
    "RUN030": "network",
    "RUN039": "network",
    "SYS003": "replica",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a process failed.

    Attributes:
        kind: whose fault it is; decides whether another attempt may help.
        seen: the line that says so; None where none is known.
        echo: it only lost another rank.
        out_of_memory: the kernel killed it, because the container's memory did not suffice.
    """

    kind: Kind = "unknown"
    seen: ErrorSeen | None = None
    echo: bool = False
    out_of_memory: bool = False


def cause_of(result: RunResult) -> Cause:
    """From what the log's end says; from the exit alone where it says nothing."""
    errors = result.errors or last_words("\n".join(result.tail))
    if result.killed_by_kernel and _ended_by_kill(result, errors):
        return Cause("resources", out_of_memory=True)
    if not errors:
        return Cause("replica" if result.signal else "unknown")
    first = min(errors, key=lambda seen: causality(seen.name))  # the first written among equals
    lost_a_peer = any(seen.name in ECHOES_OF_PEERS for seen in errors)
    trouble = KINDS.get(first.name)
    kind: Kind = trouble.kind if trouble else "unknown"
    if first.name in ECHOES_OF_PEERS or (lost_a_peer and kind == "network"):
        return Cause(kind, first, echo=True)
    return Cause(kind, first)


def _ended_by_kill(result: RunResult, errors: Sequence[ErrorSeen]) -> bool:
    """Another process of the container may be the one that was killed: the end of this one has to look like it."""
    killed = result.signal == signal.SIGKILL or result.exit_code == 128 + signal.SIGKILL
    return killed or any(seen.name in ("killed", "worker-killed") for seen in errors)


def kind_of(found: Sequence[Finding]) -> Kind:
    """Whose fault findings of an agent speak of: the first error's."""
    for one in found:
        if one.severity == "error":
            return _KIND_OF_CODE.get(one.code, "unknown")
    return "unknown"


def explain(cause: Cause, result: RunResult, *, rank: int, name: str, replica: str, stage: Stage) -> Finding:
    """The finding about one rank: how it ended, why, the line and the traceback that say so, and the way out."""
    said = f"{stage.value} failed on rank {rank} ({name}) with {_how(result)}"
    evidence: dict[str, JsonValue] = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "tail": list(result.tail),
    }
    seen = cause.seen
    if cause.out_of_memory:
        limit = f" ({result.memory_limit_bytes / _GIB:.1f} GiB)" if result.memory_limit_bytes else ""
        said += f": the kernel killed it because the memory of the container{limit} was used up."
        evidence |= {
            "killed_by_kernel": result.killed_by_kernel,
            "memory_limit_bytes": result.memory_limit_bytes,
        }
        return finding("RUN041", said, stage=stage, replica=replica, evidence=evidence)
    if cause.echo:
        return finding(
            "RUN001", f"{said}: another rank went away.", stage=stage, replica=replica, evidence=evidence
        )
    trouble = KINDS.get(seen.name) if seen else None
    if seen is None or trouble is None or seen.name == "child-failed":
        return finding("RUN001", f"{said}.", stage=stage, replica=replica, evidence=evidence)
    evidence |= {"cause": seen.name, "line": seen.line, "traceback": list(seen.traceback)}
    line = seen.line[:_SHOWN_CHARACTERS] + ("…" if len(seen.line) > _SHOWN_CHARACTERS else "")
    why = f": {line}" if seen.name == "exception" else f". {trouble.cause[:-1]}: {line}"
    return finding(
        trouble.code, f"{said}{why}", hint=trouble.hint, stage=stage, replica=replica, evidence=evidence
    )


def _how(result: RunResult) -> str:
    if not result.signal:
        return f"exit code {result.exit_code}"
    try:
        return f"signal {result.signal} ({signal.Signals(result.signal).name})"
    except ValueError:
        return f"signal {result.signal}"
