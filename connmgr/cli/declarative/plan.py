"""The connections in the vault, for comparison with the content of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from connmgr.cli.exits import Failure
from connmgr.cli.output import plural, print_json, print_table
from connmgr.cli.progress import waiting
from connmgr.cli.selection import infos_of
from connmgr.client import LOCAL_MACHINE, Client, ClientError

KEPT = {"secret": "kept"}
"""Stands in a file for a secret that the vault keeps unchanged."""


@dataclass(frozen=True)
class To:
    """Stands in data for the connection of the entry ``key`` of the same file."""

    key: str


class Stored:
    """All connections of a vault, and its types; read once."""

    def __init__(self, client: Client) -> None:
        self.types = {type_.name: type_.schema for type_ in client.connection.types()}
        self.infos = {info["connection"]: info for info in infos_of(client, client.connection.query())}
        self._by_name: dict[tuple[str, ...], list[str]] = {}
        self._by_data: dict[str, str] = {}
        for id, info in self.infos.items():
            self._by_name.setdefault(tuple(info["name"]), []).append(id)
            # Of equal connections the first one listed counts.
            self._by_data.setdefault(self.whole(info["rawData"]), id)

    def schema(self, kind: str) -> dict[str, Any]:
        """Return the schema of a type; an empty one if no plugin offers the type."""
        return self.types.get(kind, {})

    def with_path(self, path: Iterable[str]) -> list[str]:
        """Return the ids of the connections with this path."""
        return self._by_name.get(fold(path), [])

    def equal(self, data: Mapping[str, Any]) -> str | None:
        """Return the id of a connection with this ``data``, which has no secrets."""
        return self._by_data.get(self.whole(data))

    def category(self, id: str) -> tuple[str, ...]:
        """Return the path of a connection's category."""
        return tuple(self.infos[id]["category"])

    def whole(self, data: Mapping[str, Any]) -> str:
        """Return ``data`` with defaults filled in, as text; equal data give equal text."""
        return json.dumps({**self.defaults(data), **without_nulls(data)}, sort_keys=True, default=repr)

    def defaults(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default values of this data's type."""
        properties = self.schema(data["type"]).get("properties", {})
        return {
            name: property_["default"] for name, property_ in properties.items() if property_.get("default") is not None
        }

    def differences(self, id: str, data: Mapping[str, Any]) -> list[str]:
        """Return the names of the fields in which a stored connection differs from ``data``."""
        defaults = self.defaults(data)
        ours, theirs = ({**defaults, **without_nulls(each)} for each in (data, self.infos[id]["rawData"]))
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``data`` without the fields that are null, which count as not given."""
    return {
        name: without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in data.items()
        if value is not None
    }


def is_secret(value: Any) -> bool:
    """Whether a value is a sealed secret, as the daemon shows it."""
    return isinstance(value, Mapping) and "encryptedToken" in value


def fold(path: Iterable[str]) -> tuple[str, ...]:
    """Return names in the form in which the vault compares paths."""
    return tuple("".join(map(str.lower, name)).replace("/", "_") for name in path)


def map_marked(
    schema: Mapping[str, Any], mark: str, value: Any, change: Callable[[str, Any], Any], at: str = ""
) -> Any:
    """Return a copy of ``value`` with ``change(place, part)`` in place of each part that the JSON ``schema`` marks."""
    if value is None:
        return None
    if schema.get(mark):
        return change(at, value)
    if isinstance(value, Mapping):
        parts = schema.get("properties", {})
        return {
            name: map_marked(parts.get(name, {}), mark, inner, change, f"{at}.{name}".lstrip("."))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [map_marked(schema.get("items", {}), mark, inner, change, at) for inner in value]
    return value


def map_values(data: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of ``data`` with ``change`` applied to every value that is neither a list nor a plain dict."""
    changed = change(data)
    if changed is not data:
        return changed
    if isinstance(data, Mapping):
        return {name: map_values(value, change) for name, value in data.items()}
    return [map_values(value, change) for value in data] if isinstance(data, list) else data


NEW, ADDED, CHANGES, CHANGED, PRESENT = "new", "added", "changes", "changed", "there already"
DIFFERENT, LEFT_OUT, GOES, REMOVED = "name taken", "left out", "goes", "removed"

DONE = {NEW: ADDED, CHANGES: CHANGED, GOES: REMOVED}
"""The outcome of a planned change, once it is made."""


@dataclass
class Entry:
    """A connection as a file describes it; ``data`` has a :class:`To` for each entry that it runs over.

    ``key`` identifies it among the entries. ``outcome`` is what happens to it, ``note`` where it leads or why it is
    left out. ``category`` None means the default one for a new connection, and no change for a stored one.
    """

    key: str
    data: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    category: tuple[str, ...] | None = None
    note: str = ""
    outcome: str = NEW
    id: str | None = None
    path: tuple[str, ...] = ()
    """Its path once it is stored: the names of the connections it runs in, then its own."""

    states: frozenset[str] = frozenset()
    """The fields that the source of an import can state, a field within a field as ``identity.file``; the others of a
    stored connection stay."""

    renames: bool = False
    """Whether a stored connection with equal data gets this entry's name."""

    labels: dict[str, str] | None = None
    """All of its labels; None: a stored connection keeps its own."""

    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Secrets for a connection that is added, by their places such as ``identity.passphrase``; a stored one keeps its
    own."""

    known: str | None = None
    """When the stored connection was last changed, as it was read."""

    changed: list[str] = field(default_factory=list)
    """What it changes in the stored connection: ``name``, ``category``, ``labels``, fields of the data."""

    def __post_init__(self) -> None:
        # A stored connection may have an empty name, and then a path all the same.
        if not self.path:
            self.name = self.name or self.key
            self.path = (self.name,)

    @property
    def over(self) -> list[str]:
        """The keys of the entries that it runs over."""
        keys: list[str] = []
        map_values(self.data, lambda value: keys.append(value.key) if isinstance(value, To) else value)
        return keys

    def leave_out(self, note: str) -> None:
        self.outcome, self.note = LEFT_OUT, note


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Return ``entries``, each behind the entries that it runs over; an entry that runs over itself is left out."""
    by_key = {entry.key: entry for entry in entries}
    result: dict[str, Entry] = {}
    for start in by_key.values():
        # Depth first with a stack of its own, because a file may have a chain that is longer than Python's recursion.
        pending = [(start, iter(start.over))]
        entered = {start.key}
        while pending:
            entry, over = pending[-1]
            key = next((key for key in over if key in by_key and key not in result), None)
            if key is None:
                result[entry.key] = entry
                pending.pop()
            elif key in entered:
                by_key[key].leave_out("goes through itself")
            else:
                entered.add(key)
                pending.append((by_key[key], iter(by_key[key].over)))
    return list(result.values())


def judge_import(entries: Sequence[Entry], stored: Stored, *, update: bool) -> None:
    """Decide what happens to each of ``entries``, which are in the order of :func:`in_order`.

    An entry with the data of a stored connection is there already. One with the name of exactly one connection of the
    same type changes the fields that its source states, if ``update``.
    """
    earlier: dict[str, Entry] = {}
    for entry in entries:
        earlier[entry.key] = entry
        if entry.outcome == LEFT_OUT or not _is_reached(entry, earlier):
            continue
        same = stored.equal(entry.data)
        alike = [id for id in stored.with_path(entry.path) if stored.infos[id]["type"] == entry.data["type"]]
        if same is not None:
            settle(entry, same, stored if update else None)
        elif len(alike) == 1:
            entry.data = update_data(without_nulls(stored.infos[alike[0]]["rawData"]), entry.data, entry.states)
            fields = stored.differences(alike[0], entry.data)
            if update or not fields:
                settle(entry, alike[0], stored if update else None)
            else:
                entry.outcome = DIFFERENT
                entry.note = f"stored with another {', '.join(fields)}; --update changes it"
        elif alike:
            entry.outcome, entry.note = DIFFERENT, "several connections have this name: change or remove them first"


def update_data(
    stored: Mapping[str, Any], data: Mapping[str, Any], states: frozenset[str], at: str = ""
) -> dict[str, Any]:
    """Return the stored data ``stored`` with the fields of ``data``, and without others that the source ``states``.

    A field may be stated only in part. It stays as it is where it was made otherwise, such as an ``identity`` whose key
    is in the vault, while the source names the file of a key or none.
    """
    result: dict[str, Any] = {}
    for name in dict.fromkeys([*data, *stored]):
        place, before, after = f"{at}{name}", stored.get(name), data.get(name)
        if isinstance(before, Mapping) and any(state.startswith(f"{place}.") for state in states):
            parts = after if isinstance(after, Mapping) else {}
            own = {part for part in before if f"{place}.{part}" not in states}
            result[name] = (
                before if own and parts.keys().isdisjoint(before) else update_data(before, parts, states, f"{place}.")
            )
        elif name in data:
            result[name] = after
        elif place not in states:
            result[name] = before
    return {name: value for name, value in result.items() if value != {}}


def settle(entry: Entry, id: str, stored: Stored | None) -> None:
    """Identify ``entry`` with the connection ``id``; if ``stored`` is given, note the differences."""
    entry.id, entry.outcome = id, PRESENT
    if stored is None:
        return
    entry.known = stored.infos[id]["lastModified"]
    entry.changed = stored.differences(id, entry.data)
    if entry.category is not None and fold(entry.category) != stored.category(id):
        entry.changed.insert(0, "category")
    if entry.renames and fold([entry.name])[0] != stored.infos[id]["name"][-1]:
        entry.changed.insert(0, "name")
    if entry.labels is not None and entry.labels != stored.infos[id]["labels"]:
        entry.changed.insert(0, "labels")
    if entry.changed:
        entry.outcome, entry.note = CHANGES, ", ".join(entry.changed)


def _is_reached(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    """Whether the entries that ``entry`` runs over will be stored; ids of stored ones are put into its data."""
    for key in entry.over:
        hop = entries.get(key)
        if hop is None or hop.outcome in (LEFT_OUT, DIFFERENT):
            entry.leave_out(f"goes through {key}, which is not added" if hop else "goes through itself")
            return False
    entry.data = resolve(entry.data, entries)
    return True


def resolve(data: dict[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return ``data`` with the ids of the entries that are already stored."""
    resolved: dict[str, Any] = map_values(
        data, lambda value: entries[value.key].id or value if isinstance(value, To) else value
    )
    return resolved


def carry_out(
    client: Client,
    entries: Sequence[Entry],
    *,
    removals: Sequence[Entry] = (),
    categories: Iterable[Sequence[str]] = (),
) -> None:
    """Make the planned changes in one step, and record this in the entries.

    :raises Failure: the daemon refuses an entry, which the message names; nothing was changed.
    """
    new, changes = ([entry for entry in entries if entry.outcome == outcome] for outcome in (NEW, CHANGES))
    paths = [list(path) for path in categories]
    if not (new or changes or removals or paths):
        return
    count = plural(len(new) + len(changes) + len(removals), "connection")
    # New connections have no uuid before they are stored, so that entries refer to each other by labels.
    labels = {entry.key: str(number) for number, entry in enumerate(new)}
    fields: dict[str, Any] = {
        "add": [_body(entry, labels) | {"label": labels[entry.key], "name": entry.name} for entry in new],
        "change": [_changes(change, labels) for change in changes],
        "remove": [removal.id for removal in removals],
    }
    with waiting(f"storing {count}"):
        try:
            applied = client.connection.apply(categories=paths, **fields)
        except ClientError as error:
            if error.code == "connection_changed":
                raise Failure(f"{error.message.partition(',')[0]}, while this command compared. {_STAYS}") from error
            raise Failure(_with_keys(error.message, {"add": new, "change": changes})) from error
    by_id = {id: entry.key for entry, (id, fresh) in zip(new, applied.added, strict=True) if fresh}
    for entry, (id, fresh) in zip(new, applied.added, strict=True):
        entry.id, entry.outcome = id, ADDED if fresh else PRESENT
        if not fresh:
            entry.note = f"the same as {by_id.get(id, id)}"
    for entry in (*changes, *removals):
        entry.outcome = DONE[entry.outcome]


_STAYS = "That change stays, and nothing was stored; the same command once more compares anew, and shows what is left."


def _body(entry: Entry, labels: Mapping[str, str]) -> dict[str, Any]:
    data = map_values(entry.data, lambda value: {"label": labels[value.key]} if isinstance(value, To) else value)
    more = {} if entry.labels is None else {"labels": entry.labels}
    return {"data": data, **more} | ({} if entry.category is None else {"category": list(entry.category)})


def _changes(entry: Entry, labels: Mapping[str, str]) -> dict[str, Any]:
    body = _body(entry, labels) | {"name": entry.name}
    changed = {name if name in ("name", "category", "labels") else "data" for name in entry.changed}
    # What somebody else has changed since it was read stays.
    known = {} if entry.known is None else {"lastModified": entry.known}
    return {"connection": entry.id, **known, **{name: value for name, value in body.items() if name in changed}}


def _with_keys(message: str, lists: Mapping[str, Sequence[Entry]]) -> str:
    """Return the daemon's message with the keys of entries instead of their numbers."""

    def name(place: re.Match[str]) -> str:
        return f"{lists[place[1]][int(place[2])].key}: {place[3]}"

    return re.sub(r"\b(add|change)\.(\d+)\.((?:data|name|category|labels)\S*)", name, message)


def show(entries: Sequence[Entry], *, as_json: bool, advice: str) -> None:
    """Show the plan or what was done; if there are changes left to make, ``advice`` says how."""
    if as_json:
        print_json([{"name": e.key, "outcome": e.outcome, "connection": e.id, "note": e.note} for e in entries])
        return
    if entries:
        print_table([(entry.outcome, entry.key, entry.note) for entry in entries])
    if advice and any(entry.outcome in DONE for entry in entries):
        click.echo(f"Nothing was changed; {advice}", err=True)


def judge(entries: Sequence[Entry], stored: Stored, *, prune: bool) -> list[Entry]:
    """Decide what happens to each of ``entries``, and return those that ``prune`` removes.

    An entry matches the stored connection with its uuid, or with its category and path, or else an unmatched one with
    equal data apart from secrets, which gets its name.
    :raises Failure: an entry runs over a connection that is to be removed.
    """
    by_key = {entry.key: entry for entry in entries}
    _match(entries, stored)
    for entry in entries:
        kind = None if entry.id is None else stored.infos[entry.id]["type"]
        lost = next((key for key in entry.over if by_key[key].outcome in (LEFT_OUT, DIFFERENT)), None)
        if entry.outcome == LEFT_OUT:
            continue
        if lost is not None:
            entry.leave_out(f"runs over {lost}, which is not applied")
        elif kind is not None and kind != entry.data["type"]:
            entry.outcome, entry.note = DIFFERENT, f"stored with the type {kind}: remove it first"
        else:
            _judge(entry, by_key, stored)
    return _superfluous(entries, stored) if prune else []


def _match(entries: Sequence[Entry], stored: Stored) -> None:
    """Find the stored connection of each entry; a uuid of another vault matches none."""
    places: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    alike: dict[str, list[str]] = {}
    for id, info in stored.infos.items():
        places.setdefault((tuple(info["category"]), tuple(info["name"])), []).append(id)
        alike.setdefault(_looks(stored, info["rawData"]), []).append(id)
    by_key = {entry.key: entry for entry in entries}
    matches: set[str] = set()
    for entry in entries:
        entry.id = entry.id if entry.id in stored.infos else None
        matches |= {entry.id} if entry.id else set()

    def here(entry: Entry) -> list[str]:
        return places.get((fold(entry.category or ()), fold(entry.path)), [])

    def same(entry: Entry) -> list[str]:
        return alike.get(_looks(stored, resolve(entry.data, by_key)), [])

    # Three rounds: data and place, place alone, data alone. First those with equal data in the same place: where two
    # connections have one name, an entry must not take the other's, which would then be changed for nothing.
    for match in (lambda entry: [id for id in here(entry) if id in same(entry)], here, same):
        for entry in entries:
            free = [] if entry.id else [id for id in match(entry) if id not in matches]
            if free:
                entry.id = free[0]
                matches.add(free[0])


def _looks(stored: Stored, data: Mapping[str, Any]) -> str:
    """Return ``data`` as text, without secrets."""
    blank = map_values(data, lambda value: KEPT if is_secret(value) else value)
    return stored.whole(_with_secrets(blank, None, [], ""))


def _judge(entry: Entry, by_key: Mapping[str, Entry], stored: Stored) -> None:
    entry.data = resolve(entry.data, by_key)
    stored_data = {} if entry.id is None else stored.infos[entry.id]["rawData"]
    missing: list[str] = []
    entry.data = _with_secrets(entry.data, stored_data, missing, "")
    advice = [f"without {at}: `connmgr edit {entry.key} --secret {at}` gives it" for at in missing]
    if entry.id is None:
        entry.outcome, entry.note = NEW, "; ".join(advice)
    else:
        settle(entry, entry.id, stored)
        entry.note = "; ".join(filter(None, [entry.note, *advice]))


def _with_secrets(data: Mapping[str, Any], stored: Any, missing: list[str], at: str) -> dict[str, Any]:
    """Return ``data`` with the stored secrets that are kept; add the names of missing ones to ``missing``.

    A secret stays if ``data`` says so or does not mention it: only a null removes one. Nothing stays within a field
    that ``data`` replaces by another, such as the file of a key by the key itself.
    """
    result: dict[str, Any] = {}
    # A field that is replaced by one of another kind, such as a key's file by the key itself, keeps no secret of the
    # old one.
    before = stored if isinstance(stored, Mapping) and not (at and data.keys().isdisjoint(stored)) else {}
    for name in dict.fromkeys([*data, *before]):
        value, there, place = data.get(name), before.get(name), f"{at}{name}"
        if name not in data:
            if is_secret(there) or (isinstance(there, Mapping) and any(map(is_secret, there.values()))):
                result[name] = there
        elif value is None:
            continue
        elif value == KEPT:
            if there is None:
                missing.append(place)
            else:
                result[name] = there
        elif isinstance(value, Mapping) and "encryptedToken" not in value:
            inner = _with_secrets(value, there, missing, f"{place}.")
            if inner or not value:
                result[name] = inner
        else:
            result[name] = value
    return result


def _superfluous(entries: Sequence[Entry], stored: Stored) -> list[Entry]:
    ids = {LOCAL_MACHINE, *(entry.id for entry in entries if entry.id)}
    going = {id: "/".join([*info["category"], *info["name"]]) for id, info in stored.infos.items() if id not in ids}
    for entry in entries:

        def refuse(value: Any, entry: Entry = entry) -> Any:
            if isinstance(value, str) and value in going:
                raise Failure(f"{entry.key} runs over {going[value]}, which is not in the file: --prune removes that.")
            return value

        map_values(entry.data, refuse)
    superfluous = [Entry(key, id=id, outcome=GOES) for id, key in going.items()]
    return sorted(superfluous, key=lambda entry: entry.key)
