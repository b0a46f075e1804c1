"""Files with inventories of Ansible, in INI or YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connmgr.ansible_inventory import ENCRYPTED, VAULT, Inventory, Unreadable, read_ini
from connmgr.cli.declarative.ansible_vault import VaultPasswords
from connmgr.cli.declarative.document import load
from connmgr.cli.exits import Failure


def read(path: Path, passwords: VaultPasswords | None = None) -> Inventory:
    """Return the inventory in the file ``path``; ``passwords`` open what ansible-vault has encrypted.

    :raises Failure: it is encrypted, or is not an inventory; the message names the place.
    """
    text = path.read_text("utf-8", "replace")
    if text.startswith(VAULT):
        opened = passwords.opened(text) if passwords else None
        if opened is None:
            why = "no given password opens it" if passwords else "give its password (--vault-password-file)"
            raise Failure(f"{path} is encrypted by ansible-vault: {why}.")
        text = opened
    inventory = Inventory()
    if path.suffix in (".yml", ".yaml", ".json") or text.lstrip().startswith("---"):
        _read_yaml(inventory, load(text, str(path), passwords), str(path))
        return inventory
    try:
        read_ini(inventory, text.splitlines(), str(path))
    except Unreadable as error:
        raise Failure(str(error)) from None
    return inventory


def _read_yaml(inventory: Inventory, content: Any, file: str) -> None:
    pending: list[tuple[str | None, Any, Any]]
    pending = [(None, name, body) for name, body in _mapping(content, file, "its groups").items()]
    seen: set[tuple[str | None, Any, int]] = set()
    while pending:
        parent, name, body = pending.pop(0)
        # A YAML alias may put one body in any number of places.
        if (parent, name, id(body)) in seen:
            continue
        seen.add((parent, name, id(body)))
        group = inventory.group(str(name))
        if parent is not None:
            inventory.group(parent).children[group.name] = None
        parts = _mapping(body, file, f"the group {name}")
        group.variables |= _mapping(parts.get("vars"), file, f"the variables of {name}")
        for pattern, variables in _mapping(parts.get("hosts"), file, f"the hosts of {name}").items():
            try:
                inventory.add(group.name, str(pattern), _mapping(variables, file, f"the variables of {pattern}"))
            except ValueError as error:
                raise Failure(f"{file}: {error}.") from None
        children = _mapping(parts.get("children"), file, f"the groups below {name}")
        pending += [(group.name, child, inner) for child, inner in children.items()]


def _mapping(value: Any, file: str, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or value is ENCRYPTED:
        raise Failure(f"{file}: {what} must be a mapping of names.")
    return value
