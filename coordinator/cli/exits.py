"""The exit codes of the command line, and the one exception that ends a verb with one.

`main` in `__init__.py` catches `Stop`, says its words on stderr and exits; nobody else calls `sys.exit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from coordinator.core.protocol import Finding, Stage
from coordinator.core.views import JobView


class Exit(IntEnum):
    """The most specific one wins."""

    GOOD = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    PREFLIGHT = 4
    RUNNING = 101
    NOT_FOUND = 102
    CANCELLED = 103
    DEADLINE = 124
    INTERRUPTED = 130


class Stop(Exception):
    """Ends the command with a code; the message is one sentence, the hint what to do about it."""

    def __init__(
        self, code: Exit, message: str = "", *, hint: str = "", findings: Iterable[Finding] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.findings = tuple(findings)


PREFLIGHT_STAGES = frozenset({Stage.MATCH, Stage.TCP, Stage.COLLECTIVE})
# Not enough replicas in time; a stage not finished in time (`core/catalogue/sys.py`).
DEADLINE_CODES = frozenset({"SYS001", "SYS004"})
# A replica that went away during the handshake says nothing about the links: the job failed, not its preflight.
GONE_CODE = "SYS003"


def of_job(job: JobView) -> Exit:
    """What a job's state is as an exit code."""
    if job.state == "succeeded":
        return Exit.GOOD
    if job.state == "cancelled":
        return Exit.CANCELLED
    if job.state != "failed":
        return Exit.RUNNING
    gone = any(finding.code == GONE_CODE and finding.stage == job.stage for finding in job.findings)
    if job.stage in PREFLIGHT_STAGES and not (gone and job.kind == "train"):
        return Exit.PREFLIGHT
    late = {finding.stage for finding in job.findings if finding.code in DEADLINE_CODES}
    return Exit.DEADLINE if job.stage in late else Exit.FAILED
