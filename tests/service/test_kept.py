"""What the store keeps of ended jobs is bounded, says so, and gives its room back; a job that runs loses nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from serving import running
from sqlalchemy import Connection, text

from coordinator.attempt import AttemptState, Seat, StageRecord
from coordinator.broadcast import Broadcast
from coordinator.core.clock import now_at
from coordinator.core.protocol import Stage
from coordinator.retention import DAY_S, Drop, Keep
from coordinator.store import Store, queries, rows, streams
from coordinator.upkeep import Upkeep

MIB = 1 << 20


def put_job(store: Store, job_id: str, days_ago: float, *, state: str = "succeeded", mib: int = 2) -> None:
    """A job with an attempt, a log, figures, a file, an artifact and an event."""
    at = now_at() - days_ago * DAY_S
    attempt = AttemptState(
        id=f"{job_id}-1",
        job_id=job_id,
        number=1,
        created_at=at - 60,
        state="active" if state == "running" else "ended",
        seats=(Seat(replica_id="r-1", rank=0),),
        stages=(StageRecord(stage=Stage.TRAIN),),
    )

    def put(c: Connection) -> None:
        ended_at = None if state == "running" else at
        queries.insert_job(
            c,
            rows.Job(
                job_id, "a job", 1, at - 60, {"config": "a: 1\n", "nodes": 1}, state=state, attempts=1,
                bundle_sha256="0", ended_at=ended_at,
            ),
            {"data.json": b"x" * 1000},
        )  # fmt: skip
        record = attempt.model_dump(mode="json")
        queries.insert_attempt(
            c, rows.Attempt(attempt.id, job_id, 1, at - 60, state=attempt.state, record=record)
        )
        for number in range(mib):
            streams.append(c, attempt.id, "r-1", "train.log", number * MIB, os.urandom(MIB))
        new = [rows.NewMetric(job_id, attempt.id, 0, "log", step, {"step": step}) for step in range(5000)]
        queries.insert_metrics(c, new)
        queries.replace_artifacts(
            c, job_id, [rows.Artifact(f"a-{job_id}", job_id, attempt.id, "r-1", "m", "model", 1, "0")]
        )
        queries.insert_event(c, at=at, actor="admin", action="job.submitted", job_id=job_id)

    store.write_now(put)


def sweep(store: Store, keep: Keep) -> tuple[Drop, ...]:
    return asyncio.run(Upkeep(store, Broadcast(), keep).sweep(now_at()))


def left_of(store: Store, job_id: str) -> tuple[int, int, int, int]:
    """Bytes of its log, metrics, files, artifacts."""
    return store.read_now(
        lambda c: (
            streams.size(c, f"{job_id}-1", "r-1", "train.log"),
            len(queries.metrics_after(c, job_id, limit=9999)),
            len(queries.bundle(c, job_id)),
            len(queries.artifacts_of(c, job_id)),
        )
    )


WHOLE = (2 * MIB, 5000, 1, 1)


def test_the_oldest_lose_their_logs_and_say_so_and_one_that_runs_does_not(store: Store) -> None:
    for job_id, days in (("old", 100), ("large", 3), ("young", 1)):
        put_job(store, job_id, days)
    put_job(store, "runs", 200, state="running")
    assert sweep(store, Keep(90 * DAY_S, 9 * MIB)) == (Drop("old", "old"), Drop("large", "large"))
    assert [left_of(store, job_id) for job_id in ("old", "large", "young", "runs")] == [
        (0, 0, 0, 0), (0, 0, 0, 1), WHOLE, WHOLE,
    ]  # fmt: skip
    for job_id, why in (("old", "RANKCALL_KEEP_DAYS"), ("large", "RANKCALL_KEEP_GIB")):
        (found,) = store.read_now(lambda c, j=job_id: queries.findings_of(c, j))  # type: ignore[misc]
        assert found.finding.code == "SYS033" and why in found.finding.message
    assert store.read_now(lambda c: c.execute(text("SELECT COUNT(*) FROM chunk")).scalar_one()) == 64
    assert sweep(store, Keep(90 * DAY_S, 9 * MIB)) == ()


def test_a_replica_that_sends_a_dropped_log_once_more_finds_a_stream_that_begins_anew(store: Store) -> None:
    put_job(store, "old", 100)
    sweep(store, Keep(90 * DAY_S, 1 << 40))
    done = store.write_now(lambda c: streams.append(c, "old-1", "r-1", "train.log", 2 * MIB, b"tail"))
    assert done == (0, False)
    done = store.write_now(lambda c: streams.append(c, "old-1", "r-1", "train.log", 0, b"all of it"))
    assert done == (9, True)
    assert sweep(store, Keep(90 * DAY_S, 1 << 40)) == (Drop("old", "old"),)
    assert left_of(store, "old") == (0, 0, 0, 0)
    assert len(store.read_now(lambda c: queries.findings_of(c, "old"))) == 1


def test_old_events_go_and_young_ones_stay(store: Store) -> None:
    for days in (100, 1):
        at = now_at() - days * DAY_S
        store.write_now(lambda c, at=at: queries.insert_event(c, at=at, actor="admin", action="x"))  # type: ignore[misc]
    sweep(store, Keep(90 * DAY_S, MIB))
    assert [event.at > now_at() - 2 * DAY_S for event in store.read_now(queries.events_page)] == [True]


def test_an_sqlite_file_gives_its_room_back_and_reports_pass_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "rankcall.db"
    store = Store.open(f"sqlite:///{path}")
    for number in range(4):
        put_job(store, f"old-{number}", 100, mib=16)
    put_job(store, "young", 1)

    async def sweep_under_load() -> int:
        sweeping = asyncio.create_task(Upkeep(store, Broadcast(), Keep(90 * DAY_S, 1 << 40)).sweep(now_at()))
        written = 0
        while not sweeping.done():
            offset = written
            done = await store.write(lambda c, o=offset: streams.append(c, "x-1", "r-1", "s", o, b"x"))  # type: ignore[misc]
            assert done.accepted
            written += 1
        await sweeping
        return written

    assert asyncio.run(sweep_under_load()) > 20
    assert left_of(store, "young") == WHOLE
    assert store.read_now(lambda c: c.execute(text("PRAGMA freelist_count")).scalar_one()) < 1000
    assert store.read_now(lambda c: c.execute(text("PRAGMA integrity_check")).scalar_one()) == "ok"
    store.close()
    assert path.stat().st_size < 16 * MIB  # of more than 64 MiB


def test_a_log_that_was_dropped_is_said_and_a_job_without_its_files_is_not_tried_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as coordinator, coordinator.client() as client:
        store = coordinator.services.store
        put_job(store, "0badcafe", 100)
        assert client.get("/api/v1/jobs/0badcafe/logs").status_code == 200
        asyncio.run(Upkeep(store, Broadcast(), Keep(90 * DAY_S, MIB)).sweep(now_at()))
        gone = client.get("/api/v1/jobs/0badcafe/logs")
        assert gone.status_code == 410 and gone.json()["code"] == "SYS121"
        assert "was dropped on 2" in gone.json()["detail"]
        job = client.get("/api/v1/jobs/0badcafe").json()
        assert [found["code"] for found in job["findings"]] == ["SYS033"]
        refusal = client.post("/api/v1/jobs/0badcafe/retry")
        assert refusal.status_code == 409 and "submit it again" in refusal.json()["detail"]
