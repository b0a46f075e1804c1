"""``connmgr export`` and ``connmgr apply``: the vault as a YAML file, by names and without secrets."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from connmgr.ansible_inventory import ENCRYPTED
from connmgr.cli.connect import connect
from connmgr.cli.declarative.plan import (
    DIFFERENT,
    DONE,
    KEPT,
    LEFT_OUT,
    PRESENT,
    Entry,
    Stored,
    To,
    carry_out,
    fold,
    in_order,
    is_secret,
    judge,
    map_marked,
    map_values,
    show,
    without_nulls,
)
from connmgr.cli.exits import Failure
from connmgr.cli.output import json_option, plural, print_json
from connmgr.cli.progress import waiting
from connmgr.client import LOCAL_MACHINE, Client

if TYPE_CHECKING:
    from yaml import SafeLoader


DEFAULT = ("default",)


@click.command()
@json_option
def export(*, as_json: bool) -> None:
    """Print all connections as YAML.

    connmgr apply reads it. Categories are part of it. No secret is printed, encrypted or not: `{secret: kept}` stands
    in its place. Connections refer to each other by their paths. Fields with their default are left out. This is not
    a backup: jobs, users, host keys and facts are not part of it.
    """
    client = connect()
    document = document_of(Stored(client), categories(client))
    if as_json:
        print_json(document)
    else:
        click.echo(dump(document), nl=False)


def categories(client: Client) -> list[tuple[str, ...]]:
    """Return the paths of all categories except the root and the default one, in their order."""
    paths = [category.name[1:] for category in client.category.info(client.category.query())]
    return [path for path in paths if path and path != DEFAULT]


UNCHANGED = "unchanged"


@click.command()
@click.option(
    "-f", "--file", "file", metavar="FILE", type=click.File("rb"), required=True, help="The file; - is stdin."
)
@click.option("--prune", is_flag=True, help="Remove the connections that are not in the file, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def apply(file: Any, *, prune: bool, yes: bool, as_json: bool) -> None:
    """Change the vault to match a file.

    connmgr export writes such a file. What would be added, and what would change in which fields, is shown first, and
    asked about. Without a terminal it changes nothing unless --yes is given. All changes are stored in one step, or
    none. Connections that the file does not name stay, unless --prune is given. Categories are never removed.

    `{secret: kept}` in the file stands for a secret that stays as it is, and so does a secret that the file omits;
    null removes it. A secret in plain text is refused; `{from: {source: pass, entry: web1}}` says where one is. Labels
    that the file omits stay; `labels: {}` removes all.
    """
    client = connect()
    with waiting("reading and comparing"):
        stored = Stored(client)
        entries, paths = read(_content(file), stored)
        there = set(categories(client))
        new_categories = [path for path in paths if fold(path) not in {*there, ("default",)}]
        entries = in_order(entries)
        going = judge(entries, stored, prune=prune)
    every = [*entries, *going]
    has_changes = new_categories or any(entry.outcome in DONE for entry in every)
    if has_changes and not as_json:
        _show(every, new_categories)
    agreed = bool(has_changes) and (yes or _agrees(as_json=as_json))
    if agreed:
        carry_out(client, entries, removals=going, categories=new_categories)
    if as_json:
        show(every, as_json=True, advice="")
        return
    click.echo(_summary(every), err=not agreed and bool(has_changes))
    if has_changes and not agreed:
        click.echo("Nothing was changed; --yes applies it.", err=True)


def _content(file: Any) -> Any:
    text = file.read().decode("utf-8", "replace")
    if not text.lstrip().startswith("{"):
        return load(text, file.name)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(f"{file.name} is not valid JSON: {error}.") from None
    except RecursionError:
        raise Failure(f"{file.name} is nested too deeply.") from None


def _agrees(*, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    click.confirm("Apply this?", abort=True, err=True)
    return True


def _show(entries: Sequence[Entry], new_categories: Sequence[tuple[str, ...]]) -> None:
    additions = [Entry("/".join(path), note="a category") for path in new_categories]
    show([*additions, *(entry for entry in entries if entry.outcome != PRESENT)], as_json=False, advice="")


def _summary(entries: Sequence[Entry]) -> str:
    counts = Counter(UNCHANGED if entry.outcome == PRESENT else entry.outcome for entry in entries)
    order = [*DONE.values(), *DONE, UNCHANGED, DIFFERENT, LEFT_OUT]
    parts = [f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome]]
    return f"{plural(len(entries), 'connection')}: {', '.join(parts)}" if parts else "0 connections"


VERSION = 1

REFERENCE, SECRET = "x-connmgr-reference", "x-connmgr-secret"
"""The marks in a type's schema for references and secrets."""

_TOP = {"connmgr": int, "categories": list, "connections": list}
_MEMBERS = {"name": str, "category": str, "type": str, "uuid": str, "labels": dict, "data": dict}


def document_of(stored: Stored, categories: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Return the content of a vault, with :data:`KEPT` in place of its secrets."""
    wholes = {id: "/".join([*info["category"], *info["name"]]) for id, info in stored.infos.items()}
    shorts = {id: "/".join(info["name"]) for id, info in stored.infos.items()}
    counts = Counter([*wholes.values(), *shorts.values()])
    names = {id: next((name for name in (shorts[id], wholes[id]) if counts[name] == 1), id) for id in stored.infos}

    def entry(id: str) -> dict[str, Any]:
        info = stored.infos[id]
        defaults = stored.defaults(info["rawData"])
        data = {name: value for name, value in without_nulls(info["rawData"]).items() if value != defaults.get(name)}
        data = map_marked(stored.schema(info["type"]), REFERENCE, data, lambda _, value: names.get(value, value))
        data = map_values(data, lambda value: dict(KEPT) if is_secret(value) else value)
        head = {"name": shorts[id], "category": "/".join(info["category"]), "type": data.pop("type")}
        # The local machine has the same uuid in every vault. Other connections need theirs if they share a name, or
        # have a blank one, which older versions accepted.
        needs_id = id == LOCAL_MACHINE or counts[wholes[id]] > 1 or not info["name"][-1].strip()
        uuid = {"uuid": id} if needs_id else {}
        labels = {"labels": dict(info["labels"])} if info["labels"] else {}
        return {**head, **uuid, **labels, **({"data": data} if data else {})}

    return {
        "connmgr": VERSION,
        "categories": ["/".join(path) for path in categories],
        "connections": [entry(id) for id in sorted(stored.infos, key=lambda id: (wholes[id], id))],
    }


def read(content: Any, stored: Stored) -> tuple[list[Entry], list[tuple[str, ...]]]:
    """Return the connections and the categories that the ``content`` of a file names.

    In the data, a name of another connection is replaced by that entry of the file or that stored connection.
    :raises Failure: it is not such a file, or has a secret in plain text; the message names the place.
    """
    if not isinstance(content, dict) or content.get("connmgr") != VERSION:
        raise Failure(f"The file must have `connmgr: {VERSION}` at its beginning, as connmgr export writes it.")
    _check(content, _TOP, "The file")
    entries = [_entry(member, f"connections[{at}]") for at, member in enumerate(content.get("connections") or [])]
    # Others refer to an entry by its key, so that two with one key need uuids to be told apart.
    for name, count in Counter((entry.key, entry.id) for entry in entries).items():
        if count > 1:
            raise Failure(f"{name[0]} stands in the file more than once: give each its own `uuid`.")
    names = _Names(entries, stored)
    for entry in entries:
        names.settle(entry)
    return entries, [_category(path, "categories") for path in content.get("categories") or []]


class _Names:
    """The connections that a file may refer to by name: its own, or else stored ones."""

    def __init__(self, entries: Iterable[Entry], stored: Stored) -> None:
        self._stored = stored
        self._entries: dict[str, Entry] = {}
        self._own: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.key in self._entries:
                entry.key = f"{entry.key} ({entry.id})"
            self._entries[entry.key] = entry
            whole = "/".join(fold((*(entry.category or ()), *entry.path)))
            for name in {whole, "/".join(fold(entry.path)), *([entry.id] if entry.id else [])}:
                self._own.setdefault(name, []).append(entry)
        self._theirs: dict[str, list[str]] = {}
        for id, info in stored.infos.items():
            for name in {id, "/".join(info["name"]), "/".join([*info["category"], *info["name"]])}:
                self._theirs.setdefault(name, []).append(id)

    def settle(self, entry: Entry) -> None:
        """Replace the names of connections in the data of ``entry``.

        :raises Failure: a name matches none or several; or a secret is in plain text.
        """
        kind = entry.data["type"]
        if kind not in self._stored.types:
            raise Failure(f"{entry.key}: no type is called {kind!r}; `connmgr add --schema` lists the types.")
        schema = self._stored.schema(kind)
        map_marked(schema, SECRET, entry.data, lambda at, value: _check_secret(entry.key, at, value))
        paths: list[tuple[str, ...]] = []

        def refer(at: str, value: Any) -> To | str:
            target, path = self._resolve(f"{entry.key}: {at}", value)
            paths.append(path)
            return target

        entry.data = map_marked(schema, REFERENCE, entry.data, refer)
        above = fold(entry.path[:-1])
        if above and above not in paths:
            raise Failure(f"{entry.key}: its name says that it runs over {'/'.join(above)}, but its data does not.")

    def _resolve(self, where: str, value: Any) -> tuple[To | str, tuple[str, ...]]:
        """Return the connection that ``value`` names, and its path."""
        if not isinstance(value, str):
            raise Failure(f"{where} must be the name of a connection.")
        name = "/".join(fold(value.split("/")))
        own, theirs = self._own.get(name, []), self._theirs.get(name, [])
        if len(own) == 1:
            return To(own[0].key), fold(own[0].path)
        if not own and len(theirs) == 1:
            return theirs[0], tuple(self._stored.infos[theirs[0]]["name"])
        if own or theirs:
            raise Failure(f"{where}: several connections are called {value!r}; put the category before it.")
        raise Failure(f"{where}: no connection is called {value!r}, in the file or in the vault.")


def _entry(member: Any, where: str) -> Entry:
    is_named = isinstance(member, dict) and isinstance(member.get("name"), str)
    if not is_named or not (member["name"] or member.get("uuid")):
        raise Failure(f"{where} must be a mapping with a name.")
    where = f"{where} ({member['name']})"
    _check(member, _MEMBERS, where)
    if not member.get("type"):
        raise Failure(f"{where}: type is missing; `connmgr add --schema` lists the types.")
    path, category = tuple(member["name"].split("/")), _category(member.get("category") or "default", where)
    data = {"type": member["type"], **(member.get("data") or {})}
    key = "/".join(fold((*category, *path)))
    labels = _labels(member.get("labels"), where)
    entry = Entry(key, data, name=path[-1], path=path, category=category, id=member.get("uuid"), renames=True)
    entry.labels = labels
    return entry


def _labels(labels: Mapping[Any, Any] | None, where: str) -> dict[str, str] | None:
    """Return the labels of an entry; None if it leaves them as they are."""
    if labels is None:
        return None
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Failure(f"{where}: labels: {name}: a label and its value are texts; write {str(value)!r} in quotes.")
    return dict(labels)


def _check(content: Mapping[Any, Any], kinds: Mapping[str, type], where: str) -> None:
    for name, value in content.items():
        if name not in kinds:
            raise Failure(f"{where}: {name} is unknown; there are {', '.join(kinds)}.")
        if value is not None and not isinstance(value, kinds[name]):
            raise Failure(f"{where}: {name} is not of the kind that connmgr export writes.")


def _category(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, str) or not all(value.split("/")):
        raise Failure(f"{where}: a category is written as its path, such as customers/acme.")
    return tuple(value.split("/"))


def _check_secret(key: str, at: str, value: Any) -> None:
    # Where a secret comes from is not a secret.
    if value == KEPT or is_secret(value) or (isinstance(value, Mapping) and isinstance(value.get("from"), Mapping)):
        return
    name = at.rpartition(".")[2]
    raise Failure(
        f"{key}: the secret {at} must not stand in the file. Write `{name}: {{secret: kept}}` in its place, apply the "
        f"file, and give the secret by `connmgr edit {key} --secret {at}`."
    )


def load(text: str, file: str, decrypt: Callable[[str], str | None] = lambda _: None) -> Any:
    """Return the value of ``text``; ``!vault`` gives what ``decrypt`` returns, ``!unsafe`` the plain text.

    What it does not decrypt is :data:`ENCRYPTED`.
    :raises Failure: it is not YAML; the message names the line of ``file``, but none of its content.
    """
    import yaml

    # The loader in C, if compiled in, takes a fourth of the time.
    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(safe):  # type: ignore[misc]
        """A class of its own, because constructors are registered by class."""

    def decrypt_value(_: SafeLoader, node: Any) -> Any:
        plain = decrypt(str(node.value))
        return ENCRYPTED if plain is None else plain

    Loader.add_constructor("!vault", decrypt_value)
    Loader.add_constructor("!unsafe", lambda _, node: str(node.value))
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "characters that YAML does not allow"
        raise Failure(f"{file}{place} is not valid YAML: {problem}.") from None
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
        # What its constructors raise for values such as 2001-99-99 and !!int x, as PyYAML 6 does.
        raise Failure(f"{file} is not valid YAML: a date, a number or another value that its tag forbids.") from None
    except RecursionError:
        raise Failure(f"{file} is nested too deeply.") from None


def dump(value: Any) -> str:
    """Return ``value`` as YAML, with members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))
