"""The vault of a daemon: categories, connections, principals and more, on one database and under one key."""

from __future__ import annotations

import sqlalchemy as sa

from connmgr.errors import IntegrityError, StartupError, VaultUnavailable
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import principal_rows, schema
from connmgr.vault.backends import VaultLock, open_database
from connmgr.vault.batch import Batches
from connmgr.vault.categories import Categories
from connmgr.vault.category_rows import Category
from connmgr.vault.connection_rows import Connection
from connmgr.vault.connections import Connections
from connmgr.vault.database import Announcements, Database
from connmgr.vault.documents import Documents
from connmgr.vault.facts import StoredFacts
from connmgr.vault.integrity import upgrade
from connmgr.vault.jobs import StoredJobs
from connmgr.vault.principals import SIGNER, Principals
from connmgr.vault.recoveries import Recoveries
from connmgr.vault.runs import StoredRuns
from connmgr.vault.schedules import StoredSchedules
from connmgr.vault.schema import meta

__all__ = ["Categories", "Category", "Connection", "Connections", "Database", "Vault", "VaultLock", "open_database"]

_WRONG_KEY = "The vault key does not belong to this vault: put back the key that it was made with."


class Vault:
    """Categories, connections, jobs, runs, documents and principals; its creator closes it and its database.

    One transaction migrates the database and adds a new vault's entries: if the process is killed, the old or the new
    state remains.
    :raises StartupError: the key is not this vault's (nothing was changed), or the database cannot be written. The
        database is then closed.
    """

    def __init__(self, database: Database, key: VaultKey) -> None:
        self.database = database
        self.audit_mac = key.audit_mac
        """Returns a code in place of a text that may contain secrets; equal texts have equal codes."""
        self.announcements = Announcements(database)
        self.connections = Connections(database, key)
        self.facts = StoredFacts(database, key)
        self.jobs = StoredJobs(database, lambda: self.principals.lasting_key(b"connmgr.job"))
        self.runs = StoredRuns(database, lambda: self.principals.lasting_key(b"connmgr.runs"))
        self.schedules = StoredSchedules(database, lambda: self.principals.lasting_key(b"connmgr.schedule"), self.runs)
        self.tokens = Documents(database, key, "token")
        self.approvals = Documents(database, key, "approval")
        self.commands = Documents(database, key, "command")
        self.inventories = Documents(database, key, "inventory")
        self.signers = Documents(database, key, SIGNER)
        self.categories = Categories(database, key, self.connections)
        self.batches = Batches(database, key, self.categories, self.connections)
        try:
            self._open(key)
            self.principals = Principals(database, key)
            self.recoveries = Recoveries(database, key, self.principals)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close the database; calling it again does nothing."""
        self.database.close()

    def _open(self, key: VaultKey) -> None:
        database = self.database
        if database.key_verifier is not None:
            _check(database.key_verifier, key)
        database.prepare()
        try:
            database.write(lambda tx: self._migrate(tx, key))
        except (IntegrityError, VaultUnavailable) as error:
            raise StartupError(error.message) from error
        database.check = lambda tx: principal_rows.check_key(tx, key)

    def _migrate(self, tx: sa.Connection, key: VaultKey) -> None:
        if upgrade(tx, key):
            tx.execute(meta.insert().values(name=schema.KEY_VERIFIER, value=key.verifier()))
            self.categories.seed(tx)
            self.connections.seed(tx)
            principal_rows.seed(tx, key)
            return
        # Checked again, because another daemon may have created the vault since this one opened the database.
        _check(schema.look(tx).verifier, key)


def _check(verifier: bytes | None, key: VaultKey) -> None:
    if verifier is None or not key.matches(verifier):
        raise StartupError(_WRONG_KEY)
