"""Adds to jobs what their connection adds, if it is elevated, to the one that it is derived from."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # SQLite cannot drop a constraint of a table (https://sqlite.org/lang_altertable.html): alembic copies the table.
    with op.batch_alter_table("job") as job:
        job.add_column(sa.Column("elevation", sa.Text, nullable=False, server_default=""))
        job.drop_constraint("uq_job_connection", type_="unique")
        job.create_unique_constraint("uq_job_connection", ["connection", "elevation", "key"])
