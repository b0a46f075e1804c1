"""Finds the connections whose secrets a principal can open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.secrets import envelope
from connmgr.secrets.principals import Principal
from connmgr.vault.tables import connection as table
from connmgr.vault.tables import document


def sealed_to(
    tx: sa.Connection, user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    """Return the ids of connections with secrets sealed to ``user``; and of those whose secrets no other can open."""
    holding = sa.select(table.c.id, table.c.data).where(table.c.data.contains("encryptedToken")).order_by(table.c.id)
    return _held(tx.execute(holding), user, others, sealing_key)


def passwords_sealed_to(
    tx: sa.Connection, user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    """Like :func:`sealed_to` for the passwords for sudo; the ids are those of their connections and categories."""
    holding = sa.select(document.c.key, document.c.body).where(document.c.kind == "sudo-password")
    return _held(tx.execute(holding.order_by(document.c.key)), user, others, sealing_key)


def _held(
    holding: Iterable[Any], user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    alive = {each.key_id for each in others.values()}
    affected, lost = list[str](), list[str]()
    # The former include one with a secret that was changed outside of connmgr, whose principals are unknown.
    for uuid, data in holding:
        try:
            held = [holders for holders in _holders(json.loads(data), sealing_key) if user.key_id in holders]
        except (IntegrityError, ValueError):
            affected.append(uuid)
            continue
        if held:
            affected.append(uuid)
        if any(alive.isdisjoint(holders) for holders in held):
            lost.append(uuid)
    return affected, lost


def connections_in(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return ``ids`` each once, with the connections in a category in its place; that of an empty one stays."""
    found: dict[str, None] = {}
    for id in ids:
        within_it = tx.scalars(sa.select(table.c.id).where(table.c.category == id).order_by(table.c.id)).all()
        found.update(dict.fromkeys(within_it or [id]))
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
