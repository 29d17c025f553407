"""Jobs put into a coordinator's store as agents and controller would have left them, for tests of what reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from serving import Coordinator
from sqlalchemy import Connection

from coordinator.attempt import AttemptState, Seat, StageRecord
from coordinator.core.protocol import Finding, Stage
from coordinator.store import queries, rows, streams

REPLICA = "r-0000000000"


class Planted:
    """One job with one attempt on one replica. It has ended as a job, so the controller leaves it alone."""

    def __init__(self, coordinator: Coordinator, job_id: str = "aaaaaaaa", replica_id: str = REPLICA) -> None:
        self._coordinator = coordinator
        self._store = coordinator.services.store
        self.job_id, self.attempt_id, self.replica_id = job_id, f"{job_id}-1", replica_id
        self._written: dict[str, int] = {}
        self._state = AttemptState(
            id=self.attempt_id,
            job_id=job_id,
            number=1,
            created_at=1.0,
            seats=(Seat(replica_id=replica_id, rank=0, hostname="replica-0"),),
            stages=(StageRecord(stage=Stage.TRAIN, state="running"),),
        )

        def plant(c: Connection) -> None:
            job = rows.Job(
                id=job_id,
                name="planted",
                nodes=1,
                created_at=1.0,
                submission={},
                state="succeeded",
                stage="train",
            )
            queries.insert_job(c, job)
            attempt = rows.Attempt(
                id=self.attempt_id,
                job_id=job_id,
                number=1,
                created_at=1.0,
                record=self._state.model_dump(mode="json"),
            )
            queries.insert_attempt(c, attempt)

        self._store.write_now(plant)

    def metrics(self, steps: Iterable[int]) -> None:
        """Progress records arrive."""
        new = [
            rows.NewMetric(
                self.job_id,
                self.attempt_id,
                0,
                "log",
                step,
                {"type": "log", "rank": 0, "at": float(step), "loss": 1.0, "step": step},
            )
            for step in steps
        ]
        self._store.write_now(lambda c: queries.insert_metrics(c, new))
        self._publish(f"job:{self.job_id}")

    def finding(self, message: str) -> None:
        found = Finding(code="RUN001", severity="warning", message=message)
        self._store.write_now(
            lambda c: queries.insert_findings(c, self.job_id, self.attempt_id, 1.0, [found])
        )
        self._publish(f"job:{self.job_id}")

    def write(self, data: bytes, stream: str = "train.log") -> None:
        """Bytes of a stream arrive."""
        offset = self._written.get(stream, 0)
        appended = self._store.write_now(
            lambda c: streams.append(c, self.attempt_id, self.replica_id, stream, offset, data)
        )
        self._written[stream] = appended.size_bytes
        self._publish(f"logs:{self.attempt_id}:{self.replica_id}")

    def artifact(self, path: str, data: bytes, sha256: str) -> str:
        """A collected file; returns its id."""
        row = rows.Artifact(
            hashlib.sha256(path.encode()).hexdigest()[:16], self.job_id, self.attempt_id, self.replica_id, path, "model",
            len(data), sha256,
        )  # fmt: skip
        self._store.write_now(lambda c: queries.replace_artifacts(c, self.job_id, [row]))
        return row.id

    def end(self) -> None:
        """The attempt ends."""
        self._store.write_now(lambda c: queries.update_attempt(c, self.attempt_id, state="ended"))
        self._publish(f"job:{self.job_id}")

    def _publish(self, topic: str) -> None:
        self._coordinator.call(lambda: self._coordinator.services.broadcast.publish(topic))
