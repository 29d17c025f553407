"""The lease of the active coordinator process; since when a job's logs are kept no more"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    with op.batch_alter_table("job") as job:
        job.add_column(sa.Column("dropped_at", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job") as job:
        job.drop_column("dropped_at")
    op.drop_table("lease")
