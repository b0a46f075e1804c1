"""The changes that make a vault match a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.cli.exits import Failure
from connmgr.cli.plan import DIFFERENT, GOES, LEFT_OUT, NEW, Entry, resolve, settle
from connmgr.cli.stored import KEPT, Stored, folded, is_secret, mapped
from connmgr.client import LOCAL_MACHINE


def judge(entries: Sequence[Entry], stored: Stored, *, prune: bool) -> list[Entry]:
    """Decide what happens to each of ``entries``, and return those that ``prune`` removes.

    An entry matches the stored connection with its uuid, or with its category and path, or else an unmatched one with
    equal data apart from secrets, which gets its name.
    :raises Failure: an entry runs over a connection that is to be removed.
    """
    known = {entry.key: entry for entry in entries}
    _match(entries, stored)
    for entry in entries:
        kind = None if entry.id is None else stored.infos[entry.id]["type"]
        lost = next((key for key in entry.over if known[key].outcome in (LEFT_OUT, DIFFERENT)), None)
        if entry.outcome == LEFT_OUT:
            continue
        if lost is not None:
            entry.leave_out(f"runs over {lost}, which is not applied")
        elif kind is not None and kind != entry.data["type"]:
            entry.outcome, entry.note = DIFFERENT, f"stored with the type {kind}: remove it first"
        else:
            _judge(entry, known, stored)
    return _superfluous(entries, stored) if prune else []


def _match(entries: Sequence[Entry], stored: Stored) -> None:
    """Find the stored connection of each entry; a uuid of another vault matches none."""
    places: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    alike: dict[str, list[str]] = {}
    for id, info in stored.infos.items():
        places.setdefault((tuple(info["category"]), tuple(info["name"])), []).append(id)
        alike.setdefault(_looks(stored, info["rawData"]), []).append(id)
    known = {entry.key: entry for entry in entries}
    taken: set[str] = set()
    for entry in entries:
        entry.id = entry.id if entry.id in stored.infos else None
        taken |= {entry.id} if entry.id else set()

    def here(entry: Entry) -> list[str]:
        return places.get((folded(entry.category or ()), folded(entry.path)), [])

    def same(entry: Entry) -> list[str]:
        return alike.get(_looks(stored, resolve(entry.data, known)), [])

    # First those with equal data in the same place: another connection of that name and place must not take it.
    for found in (lambda one: [id for id in here(one) if id in same(one)], here, same):
        for entry in entries:
            free = [] if entry.id else [id for id in found(entry) if id not in taken]
            if free:
                entry.id = free[0]
                taken.add(free[0])


def _looks(stored: Stored, data: Mapping[str, Any]) -> str:
    """Return ``data`` as text, without secrets."""
    blank = mapped(data, lambda value: KEPT if is_secret(value) else value)
    return stored.whole(_with_secrets(blank, None, [], ""))


def _judge(entry: Entry, known: Mapping[str, Entry], stored: Stored) -> None:
    entry.data = resolve(entry.data, known)
    held = {} if entry.id is None else stored.infos[entry.id]["rawData"]
    missing: list[str] = []
    entry.data = _with_secrets(entry.data, held, missing, "")
    advice = [f"without {at}: `connmgr edit {entry.key} --secret {at}` gives it" for at in missing]
    if entry.id is None:
        entry.outcome, entry.note = NEW, "; ".join(advice)
    else:
        settle(entry, entry.id, stored)
        entry.note = "; ".join(filter(None, [entry.note, *advice]))


def _with_secrets(data: Mapping[str, Any], held: Any, missing: list[str], at: str) -> dict[str, Any]:
    """Return ``data`` with the stored secrets that are kept; add the names of missing ones to ``missing``.

    Kept are those that ``data`` says are, and those of which it says nothing: only a null removes a secret. Within a
    field that ``data`` replaces by another, such as the file of a key by the key itself, nothing is kept.
    """
    found: dict[str, Any] = {}
    before = held if isinstance(held, Mapping) and not (at and data.keys().isdisjoint(held)) else {}
    for name in dict.fromkeys([*data, *before]):
        value, there, place = data.get(name), before.get(name), f"{at}{name}"
        if name not in data:
            if is_secret(there) or (isinstance(there, Mapping) and any(map(is_secret, there.values()))):
                found[name] = there
        elif value is None:
            continue
        elif value == KEPT:
            if there is None:
                missing.append(place)
            else:
                found[name] = there
        elif isinstance(value, Mapping) and "encryptedToken" not in value:
            inner = _with_secrets(value, there, missing, f"{place}.")
            if inner or not value:
                found[name] = inner
        else:
            found[name] = value
    return found


def _superfluous(entries: Sequence[Entry], stored: Stored) -> list[Entry]:
    kept = {LOCAL_MACHINE, *(entry.id for entry in entries if entry.id)}
    going = {id: "/".join([*info["category"], *info["name"]]) for id, info in stored.infos.items() if id not in kept}
    for entry in entries:

        def refuse(value: Any, entry: Entry = entry) -> Any:
            if isinstance(value, str) and value in going:
                raise Failure(f"{entry.key} runs over {going[value]}, which is not in the file: --prune removes that.")
            return value

        mapped(entry.data, refuse)
    found = [Entry(key, id=id, outcome=GOES) for id, key in going.items()]
    return sorted(found, key=lambda entry: entry.key)
