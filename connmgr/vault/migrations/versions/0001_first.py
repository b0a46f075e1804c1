"""The first schema: categories, connections, principals."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )
    op.create_table(
        "principal",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        sa.Column("kdf_salt", sa.LargeBinary),
        sa.Column("kdf_opslimit", sa.BigInteger),
        sa.Column("kdf_memlimit", sa.BigInteger),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_principal"),
    )
    op.create_table(
        "category",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("segment", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("last_used", sa.BigInteger, nullable=False),
        sa.Column("last_modified", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_category"),
        sa.ForeignKeyConstraint(["parent"], ["category.id"], name="fk_category_parent"),
        sa.UniqueConstraint("parent", "segment", name="uq_category_parent"),
    )
    op.create_table(
        "connection",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("cache", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("last_used", sa.BigInteger, nullable=False),
        sa.Column("last_modified", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_connection"),
        sa.ForeignKeyConstraint(["parent"], ["connection.id"], name="fk_connection_parent"),
        sa.ForeignKeyConstraint(["category"], ["category.id"], name="fk_connection_category"),
    )
    for column in ("parent", "type", "category", "fingerprint"):
        op.create_index(f"ix_connection_{column}", "connection", [column])
    if op.get_bind().dialect.name == "sqlite":
        # Holds all columns of a query in the order of its answer, so a filter reads a fraction of the table. PostgreSQL
        # cannot index values as long as the path of a long chain.
        op.create_index("ix_connection_query", "connection", ["path", "id", "depth", "type", "category"])
        op.create_index("ix_connection_depth", "connection", ["depth"])
    op.create_table(
        "connection_reference",
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("source", "target", name="pk_connection_reference"),
        sa.ForeignKeyConstraint(["source"], ["connection.id"], name="fk_connection_reference_source"),
        sa.ForeignKeyConstraint(["target"], ["connection.id"], name="fk_connection_reference_target"),
    )
    op.create_index("ix_connection_reference_target", "connection_reference", ["target"])
