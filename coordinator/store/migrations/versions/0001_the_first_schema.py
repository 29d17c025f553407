"""The first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "artifact",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("replica_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact")),
    )
    op.create_index(op.f("ix_artifact_job_id"), "artifact", ["job_id"])

    op.create_table(
        "attempt",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
    )
    op.create_index(op.f("ix_attempt_job_id"), "attempt", ["job_id"])
    op.create_index(op.f("ix_attempt_state"), "attempt", ["state"])

    op.create_table(
        "chunk",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("stream_id", "offset", name=op.f("pk_chunk")),
    )
    op.create_table(
        "event",
        sa.Column("id", COUNTED, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("replica_id", sa.String(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_job_id"), "event", ["job_id"])

    op.create_table(
        "finding",
        sa.Column("id", COUNTED, nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("finding", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_finding")),
    )
    op.create_index(op.f("ix_finding_job_id"), "finding", ["job_id"])

    op.create_table(
        "job",
        sa.Column("seq", COUNTED, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("gpus_per_node", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_allowed", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("retry_requested", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("idempotency_sha256", sa.String(), nullable=True),
        sa.Column("bundle_sha256", sa.String(), nullable=True),
        sa.Column("submission", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_job")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_job_idempotency_key")),
    )
    op.create_index(op.f("ix_job_id"), "job", ["id"], unique=True)
    op.create_index(op.f("ix_job_state"), "job", ["state"])

    op.create_table(
        "job_file",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f("pk_job_file")),
    )
    op.create_table(
        "metric",
        sa.Column("id", COUNTED, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric")),
    )
    op.create_index("ix_metric_attempt_id_rank_type_id", "metric", ["attempt_id", "rank", "type", "id"])
    op.create_index("ix_metric_job_id_id", "metric", ["job_id", "id"])

    op.create_table(
        "replica",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("hostname", sa.String(), nullable=False),
        sa.Column("registered_at", sa.Float(), nullable=False),
        sa.Column("last_seen_at", sa.Float(), nullable=False),
        sa.Column("last_rank", sa.Integer(), nullable=True),
        sa.Column("registration", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replica")),
    )
    op.create_index(op.f("ix_replica_token_hash"), "replica", ["token_hash"])

    op.create_table(
        "session",
        sa.Column("id_sha256", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("proof", sa.String(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("until_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id_sha256", name=op.f("pk_session")),
    )

    op.create_table(
        "stream",
        sa.Column("id", COUNTED, nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("replica_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stream")),
        sa.UniqueConstraint("attempt_id", "replica_id", "name", name=op.f("uq_stream_attempt_id")),
    )
    op.create_index(op.f("ix_stream_attempt_id"), "stream", ["attempt_id"])

    op.create_table(
        "task",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("replica_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "replica_id", "task_id", name=op.f("pk_task")),
    )


def downgrade() -> None:
    for table in (
        "task",
        "stream",
        "session",
        "replica",
        "metric",
        "job_file",
        "job",
        "finding",
        "event",
        "chunk",
        "attempt",
        "artifact",
    ):
        op.drop_table(table)
