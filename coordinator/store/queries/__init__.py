"""What the service asks of its store, by subject. Functions of a connection, for `Store.write` and `Store.read`.

    from coordinator.store import queries
    job = await store.read(lambda c: queries.job(c, job_id))

Streams have a module of their own beside this package.
"""

from coordinator.store.queries.attempts import (
    attempt,
    attempts_of,
    insert_attempt,
    open_attempts,
    tasks_of,
    update_attempt,
    upsert_task,
)
from coordinator.store.queries.jobs import (
    bundle,
    insert_job,
    job,
    job_by_idempotency_key,
    job_counts,
    jobs_page,
    open_jobs,
    update_job,
)
from coordinator.store.queries.kept import (
    drop_events,
    drop_lists,
    drop_piece,
    give_back,
    mark_dropped,
    weights,
)
from coordinator.store.queries.lease import beat_lease, check_epoch, lease, release_lease, take_lease
from coordinator.store.queries.records import (
    artifact,
    artifacts_of,
    events_page,
    findings_after,
    findings_of,
    insert_event,
    insert_findings,
    insert_metrics,
    last_event_id,
    last_metric_id,
    logged_ids,
    metrics_after,
    metrics_by_id,
    newest_metrics,
    replace_artifacts,
)
from coordinator.store.queries.replicas import (
    replica,
    replicas,
    set_facts,
    set_last_ranks,
    upsert_replica,
)
from coordinator.store.queries.sessions import end_session, insert_session, session

__all__ = [
    "artifact",
    "artifacts_of",
    "attempt",
    "attempts_of",
    "beat_lease",
    "bundle",
    "check_epoch",
    "drop_events",
    "drop_lists",
    "drop_piece",
    "end_session",
    "events_page",
    "findings_after",
    "findings_of",
    "give_back",
    "insert_attempt",
    "insert_event",
    "insert_findings",
    "insert_job",
    "insert_metrics",
    "insert_session",
    "job",
    "job_by_idempotency_key",
    "job_counts",
    "jobs_page",
    "last_event_id",
    "last_metric_id",
    "lease",
    "logged_ids",
    "mark_dropped",
    "metrics_after",
    "metrics_by_id",
    "newest_metrics",
    "open_attempts",
    "open_jobs",
    "release_lease",
    "replace_artifacts",
    "replica",
    "replicas",
    "session",
    "set_facts",
    "set_last_ranks",
    "take_lease",
    "tasks_of",
    "update_attempt",
    "update_job",
    "upsert_replica",
    "upsert_task",
    "weights",
]
