"""Adds PostgreSQL's index for queries: all columns of a search in the order of its answer, for short paths."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

SHORT, LONG = sa.text("octet_length(path) <= 1000"), sa.text("octet_length(path) > 1000")


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    # In the order of code points, whatever the database's collation is.
    columns = [sa.text('path COLLATE "C"'), sa.text("id")]
    rest = ["depth", "type", "category"]
    op.create_index("ix_connection_query", "connection", columns, postgresql_include=rest, postgresql_where=SHORT)
    op.create_index("ix_connection_long", "connection", ["id"], postgresql_where=LONG)
