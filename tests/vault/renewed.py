"""A database of PostgreSQL that holds a new vault again and again: a database of its own takes each test far longer."""

from __future__ import annotations

import psycopg

from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import Vault, open_database
from tests.conftest import VAULT_KEY
from tests.vault.postgres import Postgres

KEY = VaultKey(VAULT_KEY)

_LOOP = """
DO $$ DECLARE t name; BEGIN
  FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = '{}' LOOP {} END LOOP;
END $$
"""
_KEEP = "CREATE SCHEMA kept;" + _LOOP.format("public", "EXECUTE format('CREATE TABLE kept.%1$I AS TABLE %1$I', t);")
_RENEW = (
    # Without a look at foreign keys, so that the tables may come in any order.
    "SET session_replication_role = replica;"
    + _LOOP.format("kept", "EXECUTE format('DELETE FROM %1$I; INSERT INTO %1$I TABLE kept.%1$I', t);")
)
_TABLES = """
SELECT array_agg((attrelid, attnum, attisdropped)::text ORDER BY attrelid, attnum)
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
"""


class Renewed:
    """Gives a database that has a new vault under :data:`KEY`, and nothing of the test before."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._template = server.create()
        Vault(open_database(server.dsn(self._template)), KEY).close()
        with psycopg.connect(server.dsn(self._template)) as connection:
            connection.execute(_KEEP)
            self._tables = connection.execute(_TABLES).fetchone()
        self._name = server.create(self._template)

    def database(self) -> str:
        """Return the database's name; the one that was given before is no longer used."""
        with psycopg.connect(self._server.dsn(self._name)) as connection:
            if connection.execute(_TABLES).fetchone() == self._tables:
                connection.execute(_RENEW)
                return self._name
        self._name = self._server.create(self._template)
        return self._name
