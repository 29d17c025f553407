"""Watches the training of this replica while the coordinator is away, so that a hang leaves evidence and ends all the same.

What is seen is kept as streams (`evidence.…`, with the judgement in `evidence.judgement`) and mirrored when the coordinator
is back. `coordinator/core/solitude.py` decides. Called by the loop of `main.py` every two seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.convergence import Convergence
from coordinator.core.catalogue import finding
from coordinator.core.clock import instant, now_at
from coordinator.core.protocol import Finding, ProgressRecord, Stage, Telemetry
from coordinator.core.solitude import ALONE_S, Solitude
from coordinator.core.watchdog import Judgement

log = structlog.get_logger("agent")

# Enough of what was said before for a usual pace; records have a few hundred bytes.
_BEFORE_BYTES = 128 << 10


@dataclass(slots=True)
class Vigil:
    """What was seen since this replica has been alone; nothing while it is not."""

    convergence: Convergence
    replica_id: Callable[[], str]
    _seen: Solitude | None = None
    _attempt_id: str | None = None
    _offsets: dict[Path, int] = field(default_factory=dict)
    _gathered: bool = False

    def needed(self, alone_s: float) -> bool:
        """Whether a reading is wanted: nobody else watches, and something trains here."""
        wanted = alone_s >= ALONE_S and self.convergence.training is not None
        if not wanted or self._attempt_id != self.convergence.attempt_id:
            self._seen, self._gathered = None, False
            self._offsets.clear()
        self._attempt_id = self.convergence.attempt_id
        return wanted

    async def look(self, reading: Telemetry, alone_s: float, now_s: float) -> None:
        """Take in a reading and what the ranks have said, and do what follows from it."""
        training = self.convergence.training
        if training is None:
            return
        if self._seen is None:
            self._seen = Solitude(training.ranks, now_s - alone_s, now_s)
        self._seen = self._seen.told(self._said(training.streams), now_s)
        self._seen = self._seen.read(reading, now_s, gpus=training.on_gpus)
        decision, judgement = self._seen.decide(now_s), self._seen.judgement
        if decision == "watch" or judgement is None:
            return
        if not self._gathered:
            self._gathered = True
            log.warning("it hangs while the coordinator is away; gathering evidence", why=judgement.reason)
            _note(training.streams, judgement, alone_s)
            await self.convergence.gather_alone()
        if decision == "end":
            await self.convergence.give_up(self._found(judgement, alone_s))

    def _found(self, judgement: Judgement, alone_s: float) -> Finding:
        return finding(
            "RUN039",
            f"{judgement.reason.rstrip('.')}; the coordinator had been away for {alone_s:.0f} s, so the agent ended it here.",
            stage=Stage.TRAIN,
            replica=self.replica_id(),
            evidence={"alone_s": round(alone_s), "quiet_s": round(judgement.quiet_s)},
        )

    def _said(self, streams: Path) -> list[ProgressRecord]:
        """What the ranks have written since the last look."""
        found: list[ProgressRecord] = []
        for path in sorted(streams.glob("progress.*")):
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                offset = self._offsets.get(path, max(0, size - _BEFORE_BYTES))
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read(size - offset)
                whole = data[: data.rfind(b"\n") + 1]
                self._offsets[path] = offset + len(whole)
                for line in whole.splitlines():
                    with contextlib.suppress(ValueError):  # the first may be half a line
                        found.append(ProgressRecord.model_validate_json(line))
        return found


def _note(streams: Path, judgement: Judgement, alone_s: float) -> None:
    with contextlib.suppress(OSError), (streams / "evidence.judgement").open("a") as file:
        at = instant(now_at())
        file.write(f"{at:%Y-%m-%d %H:%M:%S} UTC, alone for {alone_s:.0f} s: {judgement.reason}\n")
