"""Categories carry an authentication code; :mod:`connmgr.vault.upgrade` fills it in, for it takes the vault's key."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("category", sa.Column("mac", sa.LargeBinary, nullable=False, server_default=""))
