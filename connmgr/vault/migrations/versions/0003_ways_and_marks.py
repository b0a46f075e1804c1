"""Adds the digest of the connections below to each connection, and the marks of commits on PostgreSQL."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("connection", sa.Column("way", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "commit_mark",
        sa.Column("mark", sa.Text, nullable=False),
        sa.Column("made", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("mark", name="pk_commit_mark"),
    )
