"""Adds the labels of connections, which SQLite's index for queries then has too, and the facts about their machines."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("connection", sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
    if op.get_bind().dialect.name == "sqlite":
        op.drop_index("ix_connection_query", "connection")
        columns = ["path", "id", "depth", "type", "category", "labels"]
        op.create_index("ix_connection_query", "connection", columns)
    op.create_table(
        "fact",
        sa.Column("connection", sa.Text, nullable=False),
        sa.Column("part", sa.Text, nullable=False),
        sa.Column("gathered", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("connection", "part", name="pk_fact"),
        sa.ForeignKeyConstraint(["connection"], ["connection.id"], name="fk_fact_connection"),
    )
