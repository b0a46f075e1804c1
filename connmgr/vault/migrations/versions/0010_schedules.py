"""Adds schedules, and to runs whether somebody was told of their end."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("run", sa.Column("told", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "schedule",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("due", sa.BigInteger),
        sa.Column("next_at", sa.BigInteger),
        sa.Column("waits", sa.Boolean, nullable=False),
        sa.Column("paused", sa.Text),
        sa.Column("last_run", sa.Text),
        sa.Column("last_error", sa.Text),
        sa.Column("skipped", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedule"),
        sa.UniqueConstraint("name", name="uq_schedule_name"),
    )
    op.create_index("ix_schedule_next_at", "schedule", ["next_at"])
