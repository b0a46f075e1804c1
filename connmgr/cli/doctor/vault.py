"""Whether the vault can be opened with its key, and every record is authentic."""

from __future__ import annotations

from collections.abc import Iterator

from connmgr.cli.doctor.finding import OK, PROBLEM, Examined, Finding
from connmgr.errors import ConnmgrError


def vault(examined: Examined) -> Iterator[Finding]:
    """Examine key and records, also while a daemon runs."""
    from connmgr.daemon.storage import database_url, key_store
    from connmgr.vault import integrity, open_database

    settings = examined.settings
    try:
        database = open_database(database_url(settings))
    except ConnmgrError as error:
        advice = "" if settings.database_url else "`connmgr vault restore` brings a backup back."
        yield Finding("vault", PROBLEM, error.message, advice)
        return
    try:
        store = key_store(settings)
        if database.empty:
            yield Finding("vault", OK, "is made at the first start")
            return
        keys = [key for key in (store.read(), store.read_next()) if key and key.matches(database.key_verifier or b"")]
        if not keys:
            yield Finding("key", PROBLEM, "the vault's key is missing or another vault's", "Put back the right key.")
            return
        yield Finding("key", OK, "is the vault's")
        found = integrity.faults(database, keys[0])
        advice = "It was changed outside of connmgr, or the disk is bad: restore a backup, or remove what is damaged."
        yield from (Finding("vault", PROBLEM, message, advice) for message in found)
        if not found:
            yield Finding("vault", OK, "every record is authentic")
    except ConnmgrError as error:
        yield Finding("vault", PROBLEM, error.message)
    finally:
        database.close()
