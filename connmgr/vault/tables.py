"""The vault's tables, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def now() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(timezone.utc)


class Timestamp(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime, stored as whole microseconds since 1970.

    SQLite has no type for times, and text would sort and round differently.
    """

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:
        try:
            return None if value is None else _EPOCH + value * _MICROSECOND
        except (TypeError, OverflowError):
            # SQLite keeps values of any type in any column.
            raise IntegrityError("A time in the vault was changed outside of connmgr.") from None


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

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
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("last_used", Timestamp, nullable=False),
    sa.Column("last_modified", Timestamp, nullable=False),
)

# A commit leaves its mark on the server for a while; a client that lost the answer to the commit looks for it.
commit_mark = sa.Table(
    "commit_mark",
    metadata,
    sa.Column("mark", sa.Text, primary_key=True),
    sa.Column("made", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

# Jobs; their output is on the far side. The states are those of connmgr.jobs.state; the last four are final.
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

# The connections that a connection runs over, its parent among them.
connection_reference = sa.Table(
    "connection_reference",
    metadata,
    sa.Column("source", sa.Text, sa.ForeignKey("connection.id"), primary_key=True),
    sa.Column("target", sa.Text, sa.ForeignKey("connection.id"), primary_key=True, index=True),
)
