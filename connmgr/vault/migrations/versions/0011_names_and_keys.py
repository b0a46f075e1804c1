"""Lets schedules that nobody sees together have one name, and jobs tell what a start with their key asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("job", sa.Column("asked", sa.LargeBinary))
    # SQLite cannot drop a constraint of a table (https://sqlite.org/lang_altertable.html): alembic copies the table.
    with op.batch_alter_table("schedule") as schedule:
        schedule.drop_constraint("uq_schedule_name", type_="unique")
