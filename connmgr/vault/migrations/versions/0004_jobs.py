"""Adds the jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("connection", sa.Text, nullable=False),
        sa.Column("session", sa.Text),
        sa.Column("name", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("stdin_open", sa.Boolean, nullable=False),
        sa.Column("keep", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.ForeignKeyConstraint(["connection"], ["connection.id"], name="fk_job_connection"),
        sa.UniqueConstraint("connection", "key", name="uq_job_connection"),
    )
    op.create_index("ix_job_state", "job", ["state"])
