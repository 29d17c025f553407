"""What the work of an attempt needs of its agent, and what becomes of a task. Used by `tasks.py` and `run_task.py`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from agent.client import Coordinator
from agent.probes.warm import WarmProbe
from coordinator.core.catalogue import finding
from coordinator.core.paths import Layout
from coordinator.core.protocol import Finding, Stage, Task, TaskResult
from coordinator.core.redact import Redactor


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool
    result: TaskResult | None = None
    findings: tuple[Finding, ...] = ()


class TaskFailed(Exception):
    """The task has failed for a reason that is known."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.message)
        self.finding = found


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an attempt needs of its agent.

    Attributes:
        news: to be called when a report has changed; True when a gate waits for it.
        redactor: masks what goes into reports.
    """

    layout: Layout
    python: str
    replica_id: Callable[[], str]
    coordinator: Coordinator
    warm: WarmProbe
    redactor: Callable[[], Redactor]
    news: Callable[[bool], None]

    def found(
        self, code: str, message: str, task: Task, evidence: dict[str, JsonValue] | None = None
    ) -> Finding:
        """A finding about a task here, with what is secret in its message masked."""
        return finding(
            code,
            self.redactor().mask_text(message),
            stage=task.stage,
            replica=self.replica_id(),
            evidence=evidence,
        )

    def shut_down(self, stage: Stage, rank: int | None) -> Finding:
        """`rank`: of this replica, where a plan has said it."""
        name = socket.gethostname() or self.replica_id()
        who = name if rank is None else f"rank {rank} ({name})"
        text = f"{who} was shut down during {stage.value}."
        return finding("RUN027", text, stage=stage, replica=self.replica_id())
