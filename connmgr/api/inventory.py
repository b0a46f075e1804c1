"""``/inventory``: connections that follow a list of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flask

from connmgr import errors
from connmgr.api.auth import Caller
from connmgr.api.body import describe
from connmgr.api.context import detail
from connmgr.api.endpoint import Group
from connmgr.api.multiplex import Entrance
from connmgr.api.services import services
from connmgr.contract.inventory import (
    InventoryAddRequest,
    InventoryChanges,
    InventoryInfo,
    InventoryNameRequest,
    InventoryQueryRequest,
    InventoryQueryResponse,
    InventoryRenewRequest,
    LeftOutHost,
)
from connmgr.contract.message import given_json, message_of
from connmgr.durations import boot_time
from connmgr.inventories.inventories import Changes, StoredInventory
from connmgr.plugin import ValidationError
from connmgr.registry import Registry
from connmgr.secrets.principals import Access

group = Group(
    "inventory",
    "Hosts that something else lists: Ansible and its plugins, a program, a file. The daemon makes connections of them "
    "and follows the list. Hosts that are no longer listed are marked by the label `vanished`, and never removed.",
)

_CHANGES = {
    "hosts": 42,
    "added": ["web7"],
    "changed": [],
    "vanished": ["web1"],
    "returned": [],
    "leftOut": [{"host": "win1", "reason": "ansible_connection=winrm has no counterpart."}],
}
RENEWING = (errors.InventoryFailed, errors.IntegrityError, errors.UnknownConnection, errors.Busy)


@group.endpoint(
    "/add",
    has_content=True,
    about=("name",),
    raises=[*RENEWING, errors.InventoryExists],
    waits=True,
    example={"name": "aws", "ansible": "/srv/aws_ec2.yml", "every": 900, "defaults": {"user": "admin"}},
    answer=_CHANGES,
)
def add(request: InventoryAddRequest) -> InventoryChanges:
    """Add an inventory, and renew it for the first time. Where that fails nothing is stored.

    Each host becomes an SSH connection with the labels `inventory` and `inventory-host`, and `group-NAME` for each of
    its groups. What the source says of a host wins at each renewal; fields and labels that it does not say are people's
    and stay. Passwords are not read. Only the owner may: a source is a program or a file of the daemon's machine.
    """
    category = [request.name] if request.category is None else request.category
    spec = {
        "ansible": request.ansible,
        "command": request.command,
        "file": request.file,
        "category": category,
        "every": request.every,
        "timeout": request.timeout,
        "defaults": {} if request.defaults is None else given_json(request.defaults),
    }
    inventories = services().inventories
    return _note_changes(inventories.add(request.name, spec, replaces=request.replace, dry_run=request.dry_run))


@group.endpoint(
    "/renew",
    about=("name",),
    raises=[*RENEWING, errors.UnknownInventory],
    waits=True,
    example={"name": "aws"},
    answer=_CHANGES,
)
def renew(request: InventoryRenewRequest) -> InventoryChanges:
    """Renew an inventory now. A source that fails, or lists no host at all, changes nothing."""
    return _note_changes(services().inventories.renew(request.name, dry_run=request.dry_run))


@group.endpoint(
    "/query",
    reads=True,
    audited=False,
    about=("name",),
    raises=[errors.UnknownInventory, errors.IntegrityError],
    example={},
    answer={
        "inventories": [
            {
                "name": "aws",
                "ansible": "/srv/aws_ec2.yml",
                "command": None,
                "file": None,
                "category": ["aws"],
                "every": 900,
                "timeout": 60,
                "defaults": {"user": "admin"},
                "daemon": "control1",
                "renewed": "2026-01-31T08:15:00.000000Z",
                "next": "2026-01-31T08:30:00.000000Z",
                "hosts": 42,
                "vanished": 1,
                "error": None,
            }
        ]
    },
)
def query(request: InventoryQueryRequest) -> InventoryQueryResponse:
    """List inventories: their sources, and how their last renewal went."""
    inventories = services().inventories
    named = inventories.all() if request.name is None else [inventories.get(request.name)]
    return InventoryQueryResponse(inventories=[_info(inventory) for inventory in named])


@group.endpoint(
    "/remove",
    about=("name",),
    raises=[errors.UnknownInventory, errors.IntegrityError],
    example={"name": "aws"},
)
def remove(request: InventoryNameRequest) -> None:
    """Remove an inventory. Its connections stay, with their labels, and follow no list any more."""
    services().inventories.remove(request.name)


def request_as(app: flask.Flask, name: str, path: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Make a request of the owner in the name of an inventory, and return its answer."""
    return Entrance(app).post(Caller(f"inventory {name}", Access(), boot_time(), is_inventory=True), path, members)


def fault_of(registry: Registry, data: Mapping[str, Any]) -> str | None:
    """Return why no connection can have ``data``; None if one can."""
    schema = registry.get(data["type"]).schema()
    try:
        registry.sources.loaded(schema, {name: value for name, value in data.items() if name != "type"})
    except ValidationError as error:
        messages: Any = error.messages
        return describe(messages)
    return None


def _note_changes(changes: Changes) -> InventoryChanges:
    """Return what a renewal has changed, and note the numbers for the audit log."""
    detail(**{name: len(getattr(changes, name)) for name in ("added", "changed", "vanished", "returned")})
    left_out = [LeftOutHost(host=host, reason=reason) for host, reason in changes.left_out]
    return message_of(InventoryChanges, changes, left_out=left_out)


def _info(inventory: StoredInventory) -> InventoryInfo:
    spec, counts = inventory.spec, inventory.document.counts
    return InventoryInfo(
        name=inventory.name,
        ansible=spec["ansible"],
        command=spec["command"],
        file=spec["file"],
        category=spec["category"],
        every=spec["every"],
        timeout=spec["timeout"],
        defaults=spec["defaults"],
        daemon=spec["daemon"],
        renewed=inventory.time("renewed"),
        next=inventory.next_at,
        hosts=int(counts.get("hosts") or 0),
        vanished=int(counts.get("vanished") or 0),
        error=None if counts.get("error") is None else str(counts["error"]),
    )
