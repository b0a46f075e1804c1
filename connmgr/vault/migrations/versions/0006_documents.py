"""Adds the documents (tokens, approvals, saved commands), and to jobs the token that started each."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "document",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("mac", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_document"),
        sa.UniqueConstraint("kind", "key", name="uq_document_kind"),
    )
    op.add_column("job", sa.Column("token", sa.Text))
