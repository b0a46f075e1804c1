"""Adds the authentication code of categories; :mod:`connmgr.vault.integrity`, which has the key, fills it in."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("category", sa.Column("mac", sa.LargeBinary, nullable=False, server_default=""))
