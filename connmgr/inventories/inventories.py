"""The inventories of a vault, each renewed by the daemon on whose machine its source is.

A renewal reads the source, compares it with the connections that have the inventory's labels, and makes one request to
``/connection/apply`` in its name, so that rights and the audit log are those of any request. What is not listed any
more is labelled, and never removed. One thread, ``inventories``, renews those that are due; it begins with the first
one that renews by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from connmgr.contract.inventory import GROUP, HOST, INVENTORY, VANISHED
from connmgr.contract.message import time_from_json, time_to_json
from connmgr.errors import Busy, ConnectionChanged, ConnmgrError, InventoryExists, InventoryFailed, UnknownInventory
from connmgr.inventories.sources import HostList, HostSource, listed
from connmgr.poller import Poller
from connmgr.vault import Connection, Vault
from connmgr.vault.connection_rows import without_nulls
from connmgr.vault.documents import Document, counted
from connmgr.vault.schema import canonical, now

logger = logging.getLogger("connmgr.inventories")

MAX_INVENTORIES = 100
MAX_CHANGES = 10_000
"""Most entries of one request; a larger renewal is several."""

LONGEST_SECONDS = 30.0
"""Longest sleep: a clock that is set meanwhile is noticed."""

MOST_TRIES = 5
"""How often changes are made anew for connections that somebody changes meanwhile."""

BUSY_SECONDS = 60.0
"""How long a renewal waits for another one."""

Request = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]
"""Makes a request in the name of an inventory, to a path, with these members, and returns its answer."""

Fault = Callable[[Mapping[str, Any]], str | None]
"""Returns why no connection can have these data; None if one can."""


@dataclass(frozen=True)
class Follower:
    """A stored connection that is to follow what an inventory says, and how: ``entry_for`` as the connection is then.

    ``entry_for`` returns the entry of ``/connection/apply``, or None if nothing is to be changed.
    """

    connection: Connection
    entry_for: Callable[[Connection], dict[str, Any] | None]


@dataclass
class Changes:
    """What a renewal changes: the names of hosts, and the members of the request that makes the changes."""

    hosts: int = 0
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    gone: int = 0
    """How many connections are of hosts that are not listed, also of those that vanished earlier."""

    add: list[dict[str, Any]] = field(default_factory=list)
    change: list[Follower] = field(default_factory=list)


@dataclass(frozen=True)
class StoredInventory:
    """An inventory as it was last read."""

    document: Document

    @property
    def name(self) -> str:
        return self.document.key

    @property
    def spec(self) -> Mapping[str, Any]:
        """Its members, as ``/inventory/add`` has them in JSON, and the ``daemon`` that renews it."""
        return self.document.body

    @property
    def source(self) -> HostSource:
        return HostSource(*(self.spec[name] for name in ("ansible", "command", "file")))

    def time(self, name: str) -> datetime | None:
        """Return when it was last ``renewed`` or ``tried``."""
        text = self.document.counts.get(name)
        return time_from_json(text) if isinstance(text, str) else None

    @property
    def next_at(self) -> datetime | None:
        """When it is renewed next; None if only on request."""
        every, tried = self.spec["every"], self.time("tried")
        if every is None:
            return None
        return self.document.created if tried is None else tried + timedelta(seconds=every)


class Inventories:
    """Inventories, and the thread that renews them. Safe to use from several threads; ``name`` is the daemon's."""

    def __init__(self, vault: Vault, name: str) -> None:
        self._vault, self.name = vault, name
        self.request: Request = _not_ready
        self.fault: Fault = lambda _: None
        self._renewing = threading.Lock()
        self._poller = Poller("inventories", self._look, LONGEST_SECONDS, logger)

    def begin(self) -> None:
        """Go on with the inventories of this daemon, as it starts."""
        if any(inventory.next_at is not None for inventory in self._own()):
            self._poller.poke()

    def close(self, timeout: float) -> None:
        """Renew nothing more."""
        self._poller.close(timeout)

    def all(self) -> list[StoredInventory]:
        """Return all inventories, by their names."""
        return sorted(map(StoredInventory, self._vault.inventories.all()), key=lambda inventory: inventory.name)

    def get(self, name: str) -> StoredInventory:
        """Return the inventory of this name, or raise :class:`UnknownInventory`."""
        document = self._vault.inventories.by_key(name)
        if document is None:
            raise UnknownInventory(name)
        return StoredInventory(document)

    def add(self, name: str, spec: Mapping[str, Any], *, replaces: bool, dry_run: bool) -> Changes:
        """Store an inventory and renew it for the first time.

        :raises InventoryExists: another one has its name.
        :raises InventoryFailed: its source cannot be read, or no connections can be made of it; nothing was stored.
        """
        new = StoredInventory(Document(key=name, body={**spec, "daemon": self.name}))
        stored = self._vault.inventories
        before = stored.by_key(name)
        if before is not None and not replaces:
            raise InventoryExists(f"name: An inventory is called {name!r} already; replace it, or take another name.")
        with self._alone():
            changes = self._plan(new)
            if dry_run:
                return changes
            if before is not None:
                stored.change(before.id, lambda document: replace(document, body=new.spec))
            elif not stored.add(new.document, most=MAX_INVENTORIES):
                raise InventoryExists(
                    f"name: Another request has just added the inventory {name!r}, or the last of {MAX_INVENTORIES}."
                )
            try:
                self._apply(new, changes)
            except BaseException:
                if before is None:
                    stored.remove([new.document.id])
                else:
                    stored.change(before.id, lambda document: replace(document, body=before.body))
                raise
            self._note(before or new.document, changes)
        self._poller.poke()
        return changes

    def renew(self, name: str, *, dry_run: bool = False) -> Changes:
        """Renew an inventory now.

        :raises InventoryFailed: its source cannot be read, or it is another daemon's; nothing was changed.
        """
        with self._alone():
            # Not before: it may have been replaced while the renewal before this one went on.
            inventory = self.get(name)
            if inventory.spec["daemon"] != self.name:
                raise InventoryFailed(
                    f"The source of {name} is on the machine of the daemon {inventory.spec['daemon']}, and this one is "
                    f"{self.name}: ask that daemon, or add the inventory here with replace."
                )
            try:
                changes = self._plan(inventory)
                if not dry_run:
                    self._apply(inventory, changes)
            except ConnmgrError as error:
                if not dry_run:
                    self._note(inventory.document, error)
                raise
            if not dry_run:
                self._note(inventory.document, changes)
        return changes

    def remove(self, name: str) -> None:
        """Remove an inventory; its connections stay as they are, with their labels."""
        self._vault.inventories.remove([self.get(name).document.id])

    def _own(self) -> list[StoredInventory]:
        return [inventory for inventory in self.all() if inventory.spec["daemon"] == self.name]

    def _alone(self) -> _Holding:
        return _Holding(self._renewing)

    def _plan(self, inventory: StoredInventory) -> Changes:
        listed_hosts = listed(inventory.source.read(inventory.spec["timeout"]))
        connections = self._vault.connections
        ids = connections.query(where=f"{INVENTORY}={inventory.name}")
        stored = [row for row in connections.each(ids).values() if isinstance(row, Connection)]
        return plan_changes(inventory.name, inventory.spec, self._without_faulty(listed_hosts), stored, now())

    def _without_faulty(self, hosts_read: HostList) -> HostList:
        """Return the hosts that can be connections; one that cannot must not keep the others from being renewed."""
        faults = [(host.name, self.fault(host.data)) for host in hosts_read.hosts]
        left_out = [(name, fault) for name, fault in faults if fault is not None]
        hosts = [host for host, (_, fault) in zip(hosts_read.hosts, faults, strict=True) if fault is None]
        return HostList(hosts, [*hosts_read.left_out, *left_out])

    def _apply(self, inventory: StoredInventory, changes: Changes) -> None:
        for at in range(0, max(len(changes.add), len(changes.change)), MAX_CHANGES):
            add, change = changes.add[at : at + MAX_CHANGES], changes.change[at : at + MAX_CHANGES]
            answer = self._request_changes(inventory.name, add, change)
            same = {
                added["connection"]: entry
                for added, entry in zip(answer["added"], add, strict=True)
                if not added["added"]
            }
            if same:
                self._adopt(inventory.name, same, changes)

    def _adopt(self, name: str, same: Mapping[str, Mapping[str, Any]], changes: Changes) -> None:
        """Label the connections that were there already with the data of new hosts, unless they follow another list."""
        for id, row in self._vault.connections.each(same).items():
            entry = same[id]
            host = entry["labels"][HOST]
            changes.added.remove(host)
            follows = row.labels.get(INVENTORY) if isinstance(row, Connection) else None
            if not isinstance(row, Connection) or follows is not None:
                changes.hosts -= 1
                changes.left_out.append((host, f"A connection of {follows or 'the vault'} has the same data."))
                continue
            self.request(name, "/connection/label", {"connections": [id], "labels": entry["labels"]})
            changes.changed.append(host)

    def _request_changes(
        self, name: str, add: Sequence[Mapping[str, Any]], change: Sequence[Follower]
    ) -> dict[str, Any]:
        """Make changes, or none of them; what people change of a connection meanwhile is read anew, and stays."""
        rows = {follower.connection.id: follower.connection for follower in change}
        tries = 1
        while True:
            entries = [follower.entry_for(rows[follower.connection.id]) for follower in change]
            members = {"add": add, "change": [entry for entry in entries if entry is not None]}
            try:
                return self._requested(name, members, add)
            except ConnectionChanged:
                tries += 1
                if tries > MOST_TRIES:
                    raise
                found = self._vault.connections.each(rows)
                rows |= {id: row for id, row in found.items() if isinstance(row, Connection)}

    def _requested(self, name: str, members: Mapping[str, Any], add: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        try:
            return self.request(name, "/connection/apply", members)
        except ConnmgrError as error:
            place = error.message.split(".")
            if place[0] == "add" and len(place) > 1 and place[1].isdecimal():
                host = add[int(place[1])]["name"]
                raise InventoryFailed(f"The host {host} cannot be a connection: {'.'.join(place[2:])}") from error
            raise

    def _note(self, document: Document, outcome: Changes | ConnmgrError) -> None:
        at = time_to_json(now())
        if isinstance(outcome, ConnmgrError):
            logger.warning("The inventory %s was not renewed: %s", document.key, outcome.message)
            facts: dict[str, Any] = {"tried": at, "error": outcome.message}
        else:
            facts = {"tried": at, "renewed": at, "error": None, "hosts": outcome.hosts, "vanished": outcome.gone}
        self._vault.inventories.change(document.id, lambda document: counted(document, **facts))

    def _look(self) -> float:
        """Renew what is due, and return the seconds until the next look."""
        for inventory in self._own():
            if inventory.next_at is not None and inventory.next_at <= now() and not self._poller.closing.is_set():
                try:
                    self.renew(inventory.name)
                except (UnknownInventory, Busy):
                    # Removed meanwhile, or renewed by a request: the next look finds out.
                    return 1.0
                except ConnmgrError:
                    # It was noted, and the next time is a whole interval away.
                    continue
        times = [inventory.next_at for inventory in self._own() if inventory.next_at is not None]
        if not times:
            return LONGEST_SECONDS
        return max(0.1, min((min(times) - now()).total_seconds(), LONGEST_SECONDS))


class _Holding:
    """Holds a lock that others may hold for a while."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise Busy("Another inventory is being renewed; try again later.")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def plan_changes(
    name: str, spec: Mapping[str, Any], said: HostList, stored: Sequence[Connection], at: datetime
) -> Changes:
    """Return what makes the ``stored`` connections of an inventory follow what its source ``said``.

    What the source says of a host wins. Fields and labels that it does not say are people's, and stay, and so do names
    and categories.
    """
    changes = Changes(left_out=list(said.left_out))
    by_host = {connection.labels.get(HOST, connection.name): connection for connection in stored}
    by_data: dict[str, str] = {}
    for host in said.hosts:
        data = _with_defaults(host.data, spec["defaults"])
        first = by_data.setdefault(canonical(data), host.name)
        if first != host.name:
            changes.left_out.append((host.name, f"It leads to the same place as {first}."))
            continue
        changes.hosts += 1
        labels = {INVENTORY: name, HOST: host.name, **host.labels}
        before = by_host.pop(host.name, None)
        if before is None:
            entry = {"name": host.name, "data": data, "labels": labels, "category": list(spec["category"])}
            changes.add.append(entry)
            changes.added.append(host.name)
            continue
        follower = Follower(before, partial(_followed, data, labels))
        if follower.entry_for(before) is not None:
            changes.change.append(follower)
            (changes.returned if VANISHED in before.labels else changes.changed).append(host.name)
    for host_name, gone in sorted(by_host.items()):
        changes.gone += 1
        if VANISHED not in gone.labels:
            since = at.replace(microsecond=0).isoformat().replace("+00:00", "Z")
            changes.change.append(Follower(gone, partial(_vanished, since)))
            changes.vanished.append(host_name)
    return changes


def _vanished(since: str, before: Connection) -> dict[str, Any]:
    """Return what marks a connection whose host is not listed any more."""
    labels = {**before.labels, VANISHED: since}
    return {"connection": before.id, "labels": labels, "lastModified": time_to_json(before.last_modified)}


def _followed(data: Mapping[str, Any], labels: Mapping[str, str], before: Connection) -> dict[str, Any] | None:
    """Return what gives a connection ``data`` and ``labels`` of its host; None if it has them, or follows no more."""
    if before.labels.get(INVENTORY) != labels[INVENTORY]:
        return None
    own_labels = {
        label: value
        for label, value in before.labels.items()
        if label not in (INVENTORY, HOST, VANISHED) and not label.startswith(GROUP)
    }
    entry: dict[str, Any] = {"connection": before.id, "lastModified": time_to_json(before.last_modified)}
    current = without_nulls(before.data)
    wanted = {**current, **{part: value for part, value in data.items() if part != "type"}}
    identity = current.get("identity")
    if identity and "file" not in identity:
        # Its key or certificate is in the vault, where no inventory puts one.
        wanted["identity"] = identity
    elif identity and "identity" in data:
        wanted["identity"] = {**identity, **data["identity"]}
    if wanted != current:
        entry["data"] = {"type": before.type, **wanted}
    if {**own_labels, **labels} != before.labels:
        entry["labels"] = {**own_labels, **labels}
    return entry if "data" in entry or "labels" in entry else None


def _with_defaults(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {part: defaults[part] for part in ("user", "port", "gateway") if defaults.get(part) is not None}
    if defaults.get("keyFile") is not None:
        given["identity"] = {"file": defaults["keyFile"]}
    return {**given, **data}


def _not_ready(_name: str, _path: str, _members: Mapping[str, Any]) -> dict[str, Any]:
    raise Busy("The daemon is not ready yet.")
