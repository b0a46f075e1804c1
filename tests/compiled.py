"""Statements of SQL compiled once for all vaults that a process opens, and before daemons are forked from it.

SQLAlchemy compiles for each engine anew, which takes a vault longer than most of the statements themselves.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

_COMPILED: LRUCache[Any, Any] = LRUCache(2000)


class _Alike:
    """A dialect that equals others of its class, so that what was compiled for one engine serves the next."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def engine_created(cls, engine: sa.Engine) -> None:
        engine.update_execution_options(compiled_cache=_COMPILED)


class Sqlite(_Alike, SQLiteDialect_pysqlite):
    """SQLite, for all engines of this process."""

    supports_statement_cache = True


class Postgresql(_Alike, PGDialect_psycopg):
    """PostgreSQL, for all engines of this process."""

    supports_statement_cache = True


registry.register("sqlite", __name__, Sqlite.__name__)
registry.register("postgresql.psycopg", __name__, Postgresql.__name__)
