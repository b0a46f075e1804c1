"""Upgrades a vault: its schema, and the authentication codes that older programs did not write."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows, principal_rows, schema, way


def upgrade(tx: sa.Connection, key: VaultKey) -> bool:
    """Upgrade the vault of ``key`` in a transaction that excludes other writers; return whether it was empty.

    :raises StartupError: it is no vault, or a newer one.
    :raises IntegrityError: the principals were changed outside of connmgr.
    :raises VaultUnavailable: the vault has another key.
    """
    before = schema.upgrade(tx)
    if before is not None and principal_rows.FORMATS[before] != principal_rows.FORMAT:
        # Only if the vault never had these codes, which the code of its principals proves. Otherwise an attacker with
        # access to the database could remove the codes and have forged rows authenticated.
        principals = principal_rows.load(tx, key, principal_rows.FORMATS[before])
        if before == schema.REVISIONS[0]:
            category_rows.authenticate(tx, key)
        way.tie_all(tx, key)
        principal_rows.replace(tx, key, principals)
    return before is None
