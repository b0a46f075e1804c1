"""The vault's schema: its tables, the same on SQLite and PostgreSQL, and its version, upgraded at the start.

The statements and values that all tables share are here too: times, canonical JSON, statements in chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from connmgr.errors import IntegrityError, StartupError

Value = TypeVar("Value")

Row = Mapping[Any, Any]
"""A row by column names; SQLAlchemy also accepts columns."""

VERSION_TABLE = "connmgr_version"
"""Marks a database as a vault and holds the revision of its schema."""

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")
"""Revisions under ``migrations/versions``, oldest first; a start without migration does not import Alembic."""

KEY_VERIFIER = "key_verifier"
"""The row of ``meta`` by which a vault recognises its key."""

_CHUNK_VALUES = 500
"""Values in one ``IN``, far below the limit of either database."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def now() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(timezone.utc)


def to_time(microseconds: int | None) -> datetime | None:
    """Return a time as :class:`Timestamp` stores it; raise IntegrityError if it is none."""
    try:
        return None if microseconds is None else _EPOCH + microseconds * _MICROSECOND
    except (TypeError, OverflowError):
        # SQLite keeps values of any type in any column.
        raise IntegrityError("A time in the vault was changed outside of connmgr.") from None


class Timestamp(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime, stored as whole microseconds since 1970.

    SQLite has no type for times, and text would sort and round differently.
    """

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:
        return to_time(value)


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

RESTORED = "restored"
"""The row of ``meta`` with the time at which the vault was restored from a backup, in ISO 8601."""

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

# The vault's key wraps the private key of the row named "vault", a passphrase each of the others.
principal = sa.Table(
    "principal",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("public_key", sa.LargeBinary, nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("kdf_salt", sa.LargeBinary),
    sa.Column("kdf_opslimit", sa.BigInteger),
    sa.Column("kdf_memlimit", sa.BigInteger),
    sa.Column("mac", sa.LargeBinary, nullable=False),
)

category = sa.Table(
    "category",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("parent", sa.Text, sa.ForeignKey("category.id")),
    sa.Column("name", sa.Text, nullable=False),
    # The name's form in a path, unique among the children of a parent.
    sa.Column("segment", sa.Text, nullable=False),
    # The segments from the root, joined with "/", and their number.
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("last_used", Timestamp, nullable=False),
    sa.Column("last_modified", Timestamp, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=False, server_default=""),
    sa.UniqueConstraint("parent", "segment"),
)

connection = sa.Table(
    "connection",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    # The path of a wrapper begins with its parent's.
    sa.Column("parent", sa.Text, sa.ForeignKey("connection.id"), index=True),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("depth", sa.Integer, nullable=False),
    sa.Column("type", sa.Text, nullable=False, index=True),
    sa.Column("category", sa.Text, sa.ForeignKey("category.id"), nullable=False, index=True),
    # JSON; secrets only in sealed form.
    sa.Column("data", sa.Text, nullable=False),
    # Of the data without its secrets, to find equivalent connections.
    sa.Column("fingerprint", sa.LargeBinary, nullable=False, index=True),
    # The digest of all connections that it runs over.
    sa.Column("way", sa.Text, nullable=False, server_default=""),
    sa.Column("mac", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("cache", sa.Text, nullable=False),
    # JSON; see connmgr.vault.where for how it is searched.
    sa.Column("labels", sa.Text, nullable=False, server_default="{}"),
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("last_used", Timestamp, nullable=False),
    sa.Column("last_modified", Timestamp, nullable=False),
)

# Facts about the machines of connections, a row for what is gathered together: the system, its packages, what one
# plugin tells. The body is JSON, by the whole names of the facts.
fact = sa.Table(
    "fact",
    metadata,
    sa.Column("connection", sa.Text, sa.ForeignKey("connection.id"), primary_key=True),
    sa.Column("part", sa.Text, primary_key=True),
    sa.Column("gathered", Timestamp, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=False),
)

# A commit leaves its mark on the server for a while; a client that lost the answer to the commit looks for it.
commit_mark = sa.Table(
    "commit_mark",
    metadata,
    sa.Column("mark", sa.Text, primary_key=True),
    sa.Column("made", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

# Jobs; their output is on the remote host. The states are those of connmgr.jobs.state; the last four are final.
job = sa.Table(
    "job",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("connection", sa.Text, sa.ForeignKey("connection.id"), nullable=False),
    # What its connection adds to that one if it is elevated: the holder and the user.
    sa.Column("elevation", sa.Text, nullable=False, server_default=""),
    sa.Column("session", sa.Text),
    sa.Column("name", sa.Text),
    # A start with the same key finds this job.
    sa.Column("key", sa.Text),
    # Stands for what that start asked for, under a key of its own.
    sa.Column("asked", sa.LargeBinary),
    # The command's text, or its words as JSON.
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("stdin_open", sa.Boolean, nullable=False),
    # Seconds for which it is kept after its end.
    sa.Column("keep", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("exit_code", sa.Integer),
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("ended", Timestamp),
    # The id of the token with which it was started; null for the owner's.
    sa.Column("token", sa.Text),
    sa.UniqueConstraint("connection", "elevation", "key"),
)

# Records without a table of their own: tokens, approvals, saved commands, passwords for sudo.
document = sa.Table(
    "document",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # A second key besides its id, such as the digest of a token, or a name.
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("expires", Timestamp),
    # JSON. The authentication code leaves it out.
    sa.Column("counts", sa.Text, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("kind", "key"),
)

# Runs: one command on many connections. Whatever decides what runs where is in `sealed` and `selection`, under a key
# that authenticates them; the other columns are the run's progress. The states are those of connmgr.contract.run.
run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    # The id of the token with which it was started; null for the owner's.
    sa.Column("token", sa.Text),
    # A start with the same key, by the same token, finds this run.
    sa.Column("key", sa.Text, index=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    # The connections of its targets, sealed: the plain ones of run_target are only looked at.
    sa.Column("selection", sa.LargeBinary, nullable=False),
    sa.Column("parallel", sa.Integer, nullable=False),
    sa.Column("stop_after", sa.Integer),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("reason", sa.Text),
    # While it is stopping: the state that follows, and whether the commands that run are to be killed.
    sa.Column("ends", sa.Text),
    sa.Column("kills", sa.Boolean, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    # When it goes on by itself, while it waits between two waves; and when it is stopped in any case.
    sa.Column("resumes", Timestamp),
    sa.Column("deadline", Timestamp),
    sa.Column("submitted", Timestamp, nullable=False),
    sa.Column("began", Timestamp),
    sa.Column("ended", Timestamp),
    sa.Column("expires", Timestamp),
    # Whether plugins and others were told of its end.
    sa.Column("told", sa.Boolean, nullable=False, server_default=sa.false()),
)

# What begins runs by itself. Who added it, what runs and when is in `sealed`, under a key that authenticates it.
schedule = sa.Table(
    "schedule",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    # Unique among those that one sees: the names of hidden ones must not be found out by trying.
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    # Its next time, and the same with jitter; null once it has ended.
    sa.Column("due", Timestamp),
    sa.Column("next_at", Timestamp, index=True),
    # Whether its time waits for the end of the last run.
    sa.Column("waits", sa.Boolean, nullable=False),
    # Why it is paused.
    sa.Column("paused", sa.Text),
    sa.Column("last_run", sa.Text),
    sa.Column("last_error", sa.Text),
    sa.Column("skipped", sa.BigInteger, nullable=False),
)

# Targets that one daemon claims together.
run_batch = sa.Table(
    "run_batch",
    metadata,
    sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("batch", sa.Integer, primary_key=True),
    sa.Column("wave", sa.Integer, nullable=False),
    # The daemon that has the links, by the boot; or with `bound` the only ones that may claim it, by the name.
    sa.Column("home", sa.Text, nullable=False),
    sa.Column("bound", sa.Boolean, nullable=False),
    # held, until its wave begins; waiting, claimed, done.
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Index("ix_run_batch_state", "state", "run", "batch"),
)

run_target = sa.Table(
    "run_target",
    metadata,
    sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    # Without a reference: the history keeps the targets that were removed since.
    sa.Column("connection", sa.Text, nullable=False),
    sa.Column("batch", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    # When it may begin again, after a failure.
    sa.Column("again", Timestamp),
    sa.Column("exit_code", sa.Integer),
    sa.Column("seconds", sa.Float),
    sa.Column("output", sa.LargeBinary),
    # JSON: the code and the message of an error.
    sa.Column("error", sa.Text),
    sa.Column("job", sa.Text),
    sa.Index("ix_run_target_state", "run", "state", "batch"),
)

# Equal outputs of a run are stored once, by a keyed digest.
run_output = sa.Table(
    "run_output",
    metadata,
    sa.Column("run", sa.Text, sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)

# The daemons that take part in runs, each start of one by an id of its own.
daemon = sa.Table(
    "daemon",
    metadata,
    sa.Column("boot", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("seen", Timestamp, nullable=False),
)

# The connections that a connection runs over, its parent among them.
connection_reference = sa.Table(
    "connection_reference",
    metadata,
    sa.Column("source", sa.Text, sa.ForeignKey("connection.id"), primary_key=True),
    sa.Column("target", sa.Text, sa.ForeignKey("connection.id"), primary_key=True, index=True),
)

VERIFIER = sa.select(meta.c.value).where(meta.c.name == KEY_VERIFIER)
"""Reads what tells whether a key is the vault's."""


@dataclass(frozen=True)
class StoredSchema:
    """The content of a database: the schema's revision and the key's verifier, both None if it is empty."""

    revision: str | None = None
    verifier: bytes | None = None


def look(connection: sa.Connection) -> StoredSchema:
    """Return the content of the database, without writing.

    :raises StartupError: it has tables of another program, or is the vault of a newer connmgr.
    """
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise StartupError("The database is not a connmgr vault: give connmgr a database of its own.")
        return StoredSchema()
    revision = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 - a constant
    if revision not in REVISIONS:
        versions = f"schema {revision}, this one knows {REVISIONS[-1]}"
        raise StartupError(f"The vault was made by a newer connmgr ({versions}): update connmgr.")
    return StoredSchema(revision, connection.scalar(VERIFIER))


def upgrade(connection: sa.Connection, to: str = REVISIONS[-1]) -> str | None:
    """Upgrade the schema to the revision ``to`` within the connection's transaction; return the earlier revision.

    It is None for an empty database. The caller excludes other writers.
    :raises StartupError: as :func:`look`.
    """
    content = look(connection)
    if content.revision == to:
        # The usual start. Two daemons that start at once on PostgreSQL come here one after the other, by the lock of
        # every writing transaction: the second finds the first one's upgrade complete, for it was one transaction.
        return to
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    # Without alembic's command line and its env.py, which would open a connection of its own: the upgrade must be in
    # the caller's transaction.
    scripts = ScriptDirectory(str(Path(__file__).with_name("migrations")))
    steps = scripts._upgrade_revs
    environment = EnvironmentContext(Config(), scripts, fn=lambda revision, _: steps(to, revision))
    environment.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True)
    environment.run_migrations()
    return content.revision


def canonical(value: Any) -> str:
    """Return the only JSON text of ``value``: members sorted, ASCII, no blanks, ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def chunks(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Yield ``values`` in lists that fit into one statement."""
    rest = iter(values)
    while some := list(islice(rest, _CHUNK_VALUES)):
        yield some


def closure(tx: sa.Connection, ids: Iterable[str], edges: sa.Table, source: str, target: str) -> list[str]:
    """Return ``ids`` and, at any depth, every ``source`` in ``edges`` whose ``target`` is among them, each once."""
    members: dict[str, None] = dict.fromkeys(ids)
    edge: Sequence[str] = list(members)
    statement = _one_step(edges, source, target)
    while edge:
        reached = [id for some in chunks(edge) for id in tx.scalars(statement, {"some": some})]
        edge = [id for id in dict.fromkeys(reached) if id not in members]
        members.update(dict.fromkeys(edge))
    return list(members)


@cache
def _one_step(edges: sa.Table, source: str, target: str) -> sa.Select[Any]:
    # Cached, because building a statement costs more than running it.
    return sa.select(edges.c[source]).where(edges.c[target].in_(sa.bindparam("some", expanding=True)))
