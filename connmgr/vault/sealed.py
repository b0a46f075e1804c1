"""Finds the connections whose secrets a principal can open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.secrets import envelope
from connmgr.secrets.principals import Principal
from connmgr.vault.tables import category, document
from connmgr.vault.tables import connection as table


def sealed_to(
    tx: sa.Connection, user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    """Return the ids of connections with secrets sealed to ``user``, and of those with one that no other can open.

    Passwords for sudo count as secrets of their connections.

    The former include a connection with a secret that was changed outside of connmgr, because its principals are
    unknown.
    """
    alive = {each.key_id for each in others.values()}
    affected, lost = [], []
    holding = sa.select(table.c.id, table.c.data).where(table.c.data.contains("encryptedToken")).order_by(table.c.id)
    # Passwords for sudo are documents of connections, or of categories for the connections in these.
    passwords = sa.select(document.c.key, document.c.body).where(document.c.kind == "sudo-password")
    for uuid, data in (*tx.execute(holding), *tx.execute(passwords.order_by(document.c.key))):
        try:
            held = [holders for holders in _holders(json.loads(data), sealing_key) if user.key_id in holders]
        except (IntegrityError, ValueError):
            affected.append(uuid)
            continue
        if held:
            affected.append(uuid)
        if any(alive.isdisjoint(holders) for holders in held):
            lost.append(uuid)
    return _connections(tx, affected), _connections(tx, lost)


def _connections(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return ``ids`` each once, with the connections in a category in its place."""
    found: dict[str, None] = {}
    for id in ids:
        within_it = tx.scalars(sa.select(table.c.id).where(table.c.category == id).order_by(table.c.id)).all()
        is_category = tx.scalar(sa.select(category.c.id).where(category.c.id == id)) is not None
        found.update(dict.fromkeys(within_it if is_category else [id]))
    return list(found)


def replaced(data: Any, replacement: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return ``data`` with ``replacement`` of each sealed secret in its place."""
    if isinstance(data, dict) and "encryptedToken" in data:
        return replacement(data)
    if isinstance(data, dict):
        return {name: replaced(each, replacement) for name, each in data.items()}
    return [replaced(each, replacement) for each in data] if isinstance(data, list) else data


def within(data: Any) -> Iterator[dict[str, Any]]:
    """Yield each sealed secret within the ``data`` of a connection of any type."""
    if isinstance(data, dict) and "encryptedToken" in data:
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from within(each)


def _holders(data: Any, sealing_key: bytes) -> Iterator[set[bytes]]:
    """Yield for each sealed secret within ``data`` the ids of the key pairs that open it."""
    for each in within(data):
        yield {key_id for key_id, _ in envelope.verify(each, sealing_key).recipients.values()}
