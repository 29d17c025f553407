"""What is put into the store comes back as it went in, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from coordinator.core.protocol import Finding, Stage
from coordinator.store import Store, StoreConflict, queries, rows, tables


def job(id: str = "0badcafe", **changes: Any) -> rows.Job:
    return replace(
        rows.Job(id=id, name="a run", nodes=2, created_at=100.25, submission={"config": "x: 1"}), **changes
    )


def adding(id: str, **changes: Any) -> Callable[[Connection], int]:
    return lambda c: queries.insert_job(c, job(id, **changes))


PAIRS = [
    (tables.Replica, rows.Replica),
    (tables.Job, rows.Job),
    (tables.Attempt, rows.Attempt),
    (tables.TaskRow, rows.Task),
    (tables.Stream, rows.Stream),
    (tables.Metric, rows.Metric),
    (tables.FindingRow, rows.Finding),
    (tables.Artifact, rows.Artifact),
    (tables.Event, rows.Event),
    (tables.Session, rows.Session),
]


@pytest.mark.parametrize(("table", "row"), PAIRS, ids=lambda value: value.__name__)
def test_a_record_has_exactly_its_tables_columns(table: type[tables.Table], row: Any) -> None:
    assert {field.name for field in fields(row)} == set(tables.table(table).c.keys())


def test_a_job_comes_back_as_it_went_in_and_pages_run_newest_first(store: Store) -> None:
    files = {"data/train.jsonl": b"\x00\xff" * 1000, "zero2.json": b"{}", "empty": b""}
    new = job(
        name="naïve · ×", kind="preflight", state="running", stage="tcp", verdict="so far so good", gpus_per_node=0,
        started_at=101.5, attempts=1, attempts_allowed=3, retry_requested=True, actor="admin",
        idempotency_key="key", idempotency_sha256="00", bundle_sha256="11",
        submission={"config": "a: [1]\n", "nested": {"x": [None, True, 1.5, "é"]}},
    )  # fmt: skip
    seq = store.write_now(lambda c: queries.insert_job(c, new, files))
    assert store.read_now(lambda c: queries.job(c, new.id)) == replace(new, seq=seq)
    assert store.read_now(lambda c: queries.job_by_idempotency_key(c, "key")) == replace(new, seq=seq)
    assert store.read_now(lambda c: queries.bundle(c, new.id)) == files
    assert store.read_now(lambda c: queries.job(c, "nobody")) is None
    assert store.read_now(lambda c: queries.job_by_idempotency_key(c, "other")) is None

    for i in range(5):
        state = "failed" if i % 2 else "queued"
        store.write_now(adding(f"{i:08x}", state=state))
    page = store.read_now(lambda c: queries.jobs_page(c, limit=4))
    assert [row.seq for row in page] == [6, 5, 4, 3]
    assert [row.seq for row in store.read_now(lambda c: queries.jobs_page(c, page[-1].seq))] == [2, 1]
    assert [row.seq for row in store.read_now(lambda c: queries.jobs_page(c, state="failed"))] == [5, 3]
    assert [row.seq for row in store.read_now(lambda c: queries.jobs_page(c, kind="preflight"))] == [1]
    assert [row.seq for row in store.read_now(queries.open_jobs)] == [1, 2, 4, 6]
    assert store.read_now(queries.job_counts) == {"running": 1, "queued": 3, "failed": 2}

    assert store.write_now(lambda c: queries.update_job(c, new.id, state="succeeded", ended_at=200.0))
    assert not store.write_now(lambda c: queries.update_job(c, "nobody", state="failed"))
    done = replace(new, seq=seq, state="succeeded", ended_at=200.0)
    assert store.read_now(lambda c: queries.job(c, new.id)) == done


def test_one_idempotency_key_makes_one_job(store: Store) -> None:
    store.write_now(lambda c: queries.insert_job(c, job("00000001", idempotency_key="k")))
    with pytest.raises(StoreConflict):
        store.write_now(lambda c: queries.insert_job(c, job("00000002", idempotency_key="k")))
    # Without a key there is nothing to collide.
    store.write_now(lambda c: queries.insert_job(c, job("00000003")))
    store.write_now(lambda c: queries.insert_job(c, job("00000004")))


def register(c: Connection, id: str, at: float, incarnation: int = 1, **more: Any) -> None:
    values = {
        "fingerprint": "f",
        "token_hash": f"t{incarnation}",
        "hostname": "h",
        "registration": {"a": 1},
    } | more
    queries.upsert_replica(c, id=id, incarnation=incarnation, at=at, **values)


def test_a_replica_that_registers_again_keeps_its_rank_its_facts_and_its_first_instant(store: Store) -> None:
    store.write_now(lambda c: register(c, "r-2", 10.0))
    store.write_now(lambda c: register(c, "r-1", 11.0))
    store.write_now(lambda c: queries.set_last_ranks(c, [("r-2", 1), ("r-9", 0)]))
    assert store.write_now(lambda c: queries.set_facts(c, "r-2", {"python": "3.11"}))
    assert not store.write_now(lambda c: queries.set_facts(c, "r-9", {}))
    store.write_now(lambda c: register(c, "r-2", 12.0, 2, hostname="new", registration='{"b":2}'))
    second, first = store.read_now(queries.replicas)
    assert second == rows.Replica(
        id="r-2", fingerprint="f", incarnation=2, token_hash="t2", registered_at=10.0, last_seen_at=12.0,
        hostname="new", last_rank=1, registration={"b": 2}, facts={"python": "3.11"},
    )  # fmt: skip
    assert first.last_seen_at == 11.0
    assert store.read_now(lambda c: queries.replica(c, "r-1")) == first
    assert store.read_now(lambda c: queries.replica(c, "r-9")) is None
    store.write_now(lambda c: queries.set_last_ranks(c, [("r-1", 0), ("r-2", 4)]))
    assert [r.last_rank for r in store.read_now(queries.replicas)] == [4, 0]


def test_attempts_and_the_tasks_in_them(store: Store) -> None:
    one = rows.Attempt(
        id="j-1", job_id="j", number=1, created_at=1.0, state="ended", outcome="lost", ended_at=2.0
    )
    two = rows.Attempt(id="j-2", job_id="j", number=2, created_at=3.0, record={"seats": [{"rank": 0}]})
    for attempt in (two, one):
        store.write_now(partial(queries.insert_attempt, new=attempt))
    assert store.read_now(lambda c: queries.attempts_of(c, "j")) == [one, two]
    assert store.read_now(queries.open_attempts) == [two]
    assert store.write_now(lambda c: queries.update_attempt(c, "j-2", state="ending", record={"seats": []}))
    assert not store.write_now(lambda c: queries.update_attempt(c, "j-9", state="ending"))
    assert store.read_now(lambda c: queries.attempt(c, "j-2")) == replace(
        two, state="ending", record={"seats": []}
    )
    assert store.read_now(lambda c: queries.attempt(c, "j-9")) is None

    def report(c: Connection, replica: str, state: str, at: float, body: Any) -> None:
        queries.upsert_task(
            c,
            attempt_id="j-2",
            replica_id=replica,
            task_id="train",
            state=state,
            incarnation=1,
            at=at,
            report=body,
        )

    store.write_now(lambda c: report(c, "r-2", "running", 5.0, {"n": 1}))
    store.write_now(lambda c: report(c, "r-1", "running", 5.0, '{"n":2}'))
    store.write_now(lambda c: report(c, "r-2", "failed", 6.0, {"exit": float("inf")}))
    assert store.read_now(lambda c: queries.tasks_of(c, "j-2")) == [
        rows.Task("j-2", "r-1", "train", "running", 1, 5.0, {"n": 2}),
        rows.Task("j-2", "r-2", "train", "failed", 1, 6.0, {"exit": "Infinity"}),
    ]


def test_metrics_are_read_by_cursor_and_the_newest_of_each_kind_by_rank(store: Store) -> None:
    def write(c: Connection) -> None:
        for attempt in ("j-1", "j-2"):
            queries.insert_metrics(
                c,
                [
                    rows.NewMetric("j", attempt, rank, type, step, {"at": step, "loss": float("nan")})
                    for step in range(40)
                    for rank in range(3)
                    for type in (
                        ("start", "log") if step == 0 else ("log",) if step % 10 else ("log", "eval")
                    )
                ],
            )
        queries.insert_metrics(c, [rows.NewMetric("other", "other-1", 0, "log", None, '{"loss":2}')])
        # An operation sees what it has just added.
        assert len(queries.metrics_after(c, "j", 0, 10_000)) == 2 * 3 * 44

    store.write_now(write)
    seen: list[rows.Metric] = []
    last = 0
    while page := store.read_now(partial(queries.metrics_after, job_id="j", after_id=last, limit=50)):
        seen += page
        last = page[-1].id
    assert len(seen) == 2 * 3 * 44
    assert [m.id for m in seen] == sorted(m.id for m in seen)
    assert seen[0].record == {"at": 0, "loss": "NaN"}

    newest = store.read_now(lambda c: queries.newest_metrics(c, "j-2"))
    assert [(m.rank, m.type, m.step) for m in newest] == [
        (rank, type, step) for rank in range(3) for type, step in (("start", 0), ("eval", 30), ("log", 39))
    ]
    assert {m.attempt_id for m in newest} == {"j-2"}
    assert store.read_now(lambda c: queries.newest_metrics(c, "j-9")) == []
    only = store.read_now(lambda c: queries.metrics_after(c, "j", 0, 1000, rank=2, attempt_id="j-1"))
    assert {(m.rank, m.attempt_id) for m in only} == {(2, "j-1")}
    assert store.read_now(queries.last_metric_id) == 2 * 3 * 44 + 1


@pytest.mark.parametrize("count", [1, 3, 31, 129, 507])
def test_records_of_one_group_are_kept_in_their_order_however_many_there_are(
    store: Store, count: int
) -> None:
    new = [rows.NewMetric("j", "j-1", 0, "log", step, {"step": step}) for step in range(count)]
    store.write_now(lambda c: queries.insert_metrics(c, new))
    kept = store.read_now(lambda c: queries.metrics_after(c, "j", 0, 1000))
    assert [(metric.step, metric.record) for metric in kept] == [(n, {"step": n}) for n in range(count)]


def test_a_number_that_fits_no_column_costs_the_number_and_nothing_else(store: Store) -> None:
    new = [
        rows.NewMetric("j", "j-1", 0, "log", 1 << 70, {"step": 1 << 70}),
        rows.NewMetric("j", "j-1", 1 << 70, "log", 1, {}),
    ]
    store.write_now(lambda c: queries.insert_metrics(c, new))
    (kept,) = store.read_now(lambda c: queries.metrics_after(c, "j"))
    assert (kept.rank, kept.step, kept.record) == (0, None, {"step": 1 << 70})


def test_findings_artifacts_and_events(store: Store) -> None:
    found = Finding(
        code="NET001", severity="error", message="no echo from “r-2”", hint="look", stage=Stage.TCP, replica="r-2",
        evidence={"rtt_s": 0.5, "lines": ["a\x00b", "\ud800"]},
    )  # fmt: skip
    note = Finding(code="SYS001", severity="note", message="m")
    store.write_now(lambda c: queries.insert_findings(c, "j", "j-1", 5.0, [found, note]))
    store.write_now(lambda c: queries.insert_findings(c, None, None, 6.0, iter([note])))
    store.write_now(lambda c: queries.insert_findings(c, "j", None, 6.0, []))
    kept = store.read_now(lambda c: queries.findings_of(c, "j"))
    assert [(row.attempt_id, row.at, row.finding) for row in kept] == [
        ("j-1", 5.0, found),
        ("j-1", 5.0, note),
    ]
    assert store.read_now(lambda c: queries.findings_after(c, "j", kept[0].id)) == kept[1:]

    old = rows.Artifact("x", "j", "j-1", "r-1", "outputs/old", "other", 1, "00")
    new = [
        rows.Artifact("b", "j", "j-2", "r-1", "outputs/model.safetensors", "model", 5 << 40, "ab"),
        rows.Artifact("a", "j", "j-2", "r-1", "outputs/config.json", "config", 20, "cd"),
    ]
    store.write_now(lambda c: queries.replace_artifacts(c, "j", [old]))
    store.write_now(lambda c: queries.replace_artifacts(c, "j", new))
    assert store.read_now(lambda c: queries.artifacts_of(c, "j")) == new[::-1]
    assert store.read_now(lambda c: queries.artifact(c, "b")) == new[0]
    assert store.read_now(lambda c: queries.artifact(c, "x")) is None

    ids = [
        store.write_now(
            partial(
                queries.insert_event,
                at=float(i),
                actor="admin",
                action="cancel",
                job_id="j" if i % 2 else None,
                detail={"i": i},
            )
        )
        for i in range(6)
    ]
    assert [e.id for e in store.read_now(lambda c: queries.events_page(c, limit=2))] == [ids[5], ids[4]]
    assert [e.id for e in store.read_now(lambda c: queries.events_page(c, ids[1]))] == [ids[0]]
    assert store.read_now(queries.last_event_id) == ids[5]


def test_text_that_a_database_cannot_hold_is_kept_readable(store: Store) -> None:
    """Host names, file names and messages come from elsewhere, and may hold NUL or half a surrogate pair."""
    store.write_now(lambda c: register(c, "r-1", 1.0, hostname="a\x00b", registration={"hostname": "a\x00b"}))
    store.write_now(lambda c: queries.insert_job(c, job(name="x\ud800y", verdict="\x00")))
    store.write_now(lambda c: queries.update_job(c, "0badcafe", verdict="said \udcff"))
    store.write_now(
        lambda c: queries.replace_artifacts(
            c, "j", [rows.Artifact("x", "j", "j-1", "r-1", "\udcff", "other", 1, "00")]
        )
    )
    (replica,) = store.read_now(queries.replicas)
    assert replica.hostname == "a\ufffdb"
    assert replica.registration == {"hostname": "a\x00b"}
    kept = store.read_now(lambda c: queries.job(c, "0badcafe"))
    assert kept is not None
    assert (kept.name, kept.verdict) == ("x?y", "said ?")


def test_the_store_is_named_without_its_password(database_url: str) -> None:
    store = Store.open(database_url.replace("postgres@", "postgres:secret@"))
    assert "secret" not in store.name
    assert store.read_now(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
    store.close()
