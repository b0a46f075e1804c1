"""Adds runs: their batches, targets and outputs, and the daemons that take part in them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("token", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("selection", sa.LargeBinary, nullable=False),
        sa.Column("parallel", sa.Integer, nullable=False),
        sa.Column("stop_after", sa.Integer),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("ends", sa.Text),
        sa.Column("kills", sa.Boolean, nullable=False),
        sa.Column("wave", sa.Integer, nullable=False),
        sa.Column("resumes", sa.BigInteger),
        sa.Column("deadline", sa.BigInteger),
        sa.Column("submitted", sa.BigInteger, nullable=False),
        sa.Column("began", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("expires", sa.BigInteger),
    )
    op.create_index("ix_run_state", "run", ["state"])
    op.create_index("ix_run_key", "run", ["key"])
    op.create_table(
        "run_batch",
        sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE", name="fk_run_batch_run")),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("wave", sa.Integer, nullable=False),
        sa.Column("home", sa.Text, nullable=False),
        sa.Column("bound", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run", "batch", name="pk_run_batch"),
    )
    op.create_index("ix_run_batch_state", "run_batch", ["state", "run", "batch"])
    op.create_table(
        "run_target",
        sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE", name="fk_run_target_run")),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("connection", sa.Text, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("again", sa.BigInteger),
        sa.Column("exit_code", sa.Integer),
        sa.Column("seconds", sa.Float),
        sa.Column("output", sa.LargeBinary),
        sa.Column("error", sa.Text),
        sa.Column("job", sa.Text),
        sa.PrimaryKeyConstraint("run", "n", name="pk_run_target"),
    )
    op.create_index("ix_run_target_state", "run_target", ["run", "state", "batch"])
    op.create_table(
        "run_output",
        sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE", name="fk_run_output_run")),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run", "digest", name="pk_run_output"),
    )
    op.create_table(
        "daemon",
        sa.Column("boot", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("boot", name="pk_daemon"),
    )
