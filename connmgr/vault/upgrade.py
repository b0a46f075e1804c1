"""Brings a vault up to date: its schema, and the authentication codes that an older program did not write."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.secrets.keyfile import VaultKey
from connmgr.vault import category_rows, principal_rows, schema, way


def upgrade(tx: sa.Connection, key: VaultKey) -> bool:
    """Bring the vault of ``key`` up to date, in a transaction that is alone in writing; return whether it was empty.

    :raises StartupError: it is not a vault, or a newer one.
    :raises IntegrityError: the principals were changed outside of connmgr.
    :raises VaultUnavailable: the vault is one of another key.
    """
    before = schema.upgrade(tx)
    if before not in (None, schema.REVISIONS[-1]):
        # Only in a vault that never had these codes, which the code of its principals tells: whoever can write to the
        # database can take the codes away, and would have what they wrote authenticated.
        principals = principal_rows.load(tx, key, principal_rows.FORMATS[before])
        if before == schema.REVISIONS[0]:
            category_rows.authenticate(tx, key)
        way.bind_all(tx, key)
        principal_rows.replace(tx, key, principals)
    return before is None
