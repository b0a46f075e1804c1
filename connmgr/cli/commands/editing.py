"""``connmgr add``, ``edit``, ``mv`` and ``rm``: changes of stored connections."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import Failure
from connmgr.cli.options import require_once
from connmgr.cli.output import json_option, plural, print_json, print_table
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    all_option,
    check_name,
    choosing,
    confirm,
    consent,
    ensure_category,
    find_category,
    means_many,
    read_labels,
    require_some,
    select_connections,
    selecting,
)
from connmgr.client import Client, ClientError, Connection, ConnectionType
from connmgr.client.names import full_path
from connmgr.contract.message import time_to_json
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.cli.declarative.plan import Stored


from_option = click.option(
    "--from",
    "sources",
    metavar="FIELD SOURCE",
    nargs=2,
    multiple=True,
    help='Take a secret field from elsewhere at each login: --from password \'{"source": "pass", "entry": "web1"}\'.',
)


@click.command()
@click.argument("kind", metavar="TYPE", required=False)
@click.argument("name", required=False)
@click.argument("assignments", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@from_option
@click.option("--category", metavar="PATH", help="The category to put it in; created if missing.")
@click.option("--label", "labels", metavar="LABEL=VALUE", multiple=True, help="A label to give it; repeatable.")
@click.option("--validate", is_flag=True, help="Open it first, and add it only if that succeeds.")
@click.option("--schema", "show", is_flag=True, help="Show the fields of TYPE, or all types, and add nothing.")
@json_option
def add(
    kind: str | None,
    name: str | None,
    assignments: tuple[str, ...],
    secrets: tuple[str, ...],
    sources: tuple[tuple[str, str], ...],
    category: str | None,
    labels: tuple[str, ...],
    *,
    validate: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Store a connection and print its uuid. An equivalent one is not stored twice; the existing one's name is shown.

    Without --category it is put into the category of the connection that it is in, or else into `default`.

    Write a field within a field as identity.file=~/.ssh/id, a list item by item or as JSON, and a connection by its
    name. Secrets never stand on the command line: --secret password asks for it on the terminal. If standard input is
    not a terminal, the secrets are read from it, one per line.
    """
    client = connect()
    if show:
        _show_types(client, kind, as_json=as_json)
        return
    if kind is None or name is None:
        raise click.UsageError("TYPE and NAME are needed; `connmgr add --schema` lists the types.")
    check_name(name)
    require_once([*secrets, *(field for field, _ in sources)])
    definition = find_type(client, kind)
    data: dict[str, Any] = {"type": definition.name}
    assign_fields(client, definition, data, assignments, secrets)
    assign_sources(definition, data, sources)
    require_fields(definition, data)
    where = None if category is None else ensure_category(client, category)
    added, is_new = client.connection.ensure(
        name, data, validate=validate, category=where, labels=read_labels(labels) if labels else None
    )
    if is_new:
        _tell_unusual(client, name, added)
    else:
        _tell_equal(client, name, added)
    if as_json:
        print_json({"connection": added, "added": is_new})
    else:
        click.echo(added)


def _tell_equal(client: Client, name: str, existing: str) -> None:
    """Say that nothing was stored as ``name``, because the connection ``existing`` has the same data."""
    [connection] = client.connection.info([existing])
    stored = visible(full_path(connection))
    click.echo(f"{visible(name)} was not added: {stored} is stored with the same data.", err=True)
    if connection.name[-1] != name.lower():
        click.echo(f"To rename it: connmgr mv {shlex.quote(stored)} {shlex.quote(name)}", err=True)


def _tell_slash(name: str, stored: str) -> None:
    """Say as what a connection is ``stored`` if its ``name`` has a slash, which may have been meant for a category."""
    if "/" in name:
        click.echo(f"It is stored as {stored}, since / separates names.", err=True)


def _tell_unusual(client: Client, name: str, added: str) -> None:
    """Say that the connection ``added`` has another name than ``name``, or one that others have too."""
    [connection] = client.connection.info([added])
    stored = visible(full_path(connection))
    _tell_slash(name, stored)
    alike = [
        other
        for other in client.connection.names()
        if (other.category, other.name) == (connection.category, connection.name)
    ]
    if len(alike) > 1:
        click.echo(
            f"{stored} now is the name of {len(alike)} connections, and commands refuse it. To rename this one: "
            f"connmgr mv {added} NAME",
            err=True,
        )


def _show_types(client: Client, kind: str | None, *, as_json: bool) -> None:
    if kind is None:
        types = client.connection.types()
        if as_json:
            print_json({type_.name: type_.schema for type_ in types})
        else:
            print_table([(type_.name, type_.description) for type_ in types])
        return
    definition = find_type(client, kind)
    if as_json:
        print_json(definition.schema)
    else:
        print_table([("FIELD", "VALUE", "MEANING"), *_describe_fields(definition.schema)])


@click.command()
@click.argument("words", metavar="CONNECTION... [FIELD=VALUE]...", type=ConnectionName(), nargs=-1)
@click.option("--secret", "secrets", metavar="FIELD", multiple=True, help="Ask for a secret field, or read it.")
@from_option
@click.option("--unset", metavar="FIELD", multiple=True, help="Remove a field, so that it has its default.")
@click.option("--validate", is_flag=True, help="Open it with the changes first, and store them only if that succeeds.")
@all_option
@choosing
@consent
def edit(
    words: tuple[str, ...],
    secrets: tuple[str, ...],
    sources: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    choice: Choice,
    *,
    validate: bool,
    everywhere: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Change fields of a connection. The others stay.

    Write fields as for connmgr add. A shell on the connection is stopped.

    With --all each word before the first FIELD=VALUE is a CONNECTION or a GLOB, and the same fields of all that match
    change in one step; with --validate one connection after the other. It shows which, and asks first. Without a
    terminal to ask on, it needs --yes.
    """
    if not everywhere and choice.options:
        raise click.UsageError(f"Only with --all: {', '.join(choice.options)}.")
    # Without --all the first word is the connection, even if it has a = in its name.
    at = next((at for at, word in enumerate(words) if "=" in word and (everywhere or at)), len(words))
    names, assignments = (words[:at], words[at:]) if everywhere else (words[:1], words[1:])
    if everywhere:
        require_some(names, choice)
    elif not names:
        raise click.UsageError("Missing argument 'CONNECTION'.")
    if not (assignments or secrets or sources or unset):
        raise click.UsageError("Nothing to change: give FIELD=VALUE, --secret FIELD, --from or --unset FIELD.")
    assigned = dict.fromkeys(word.partition("=")[0] for word in assignments)
    require_once([*assigned, *secrets, *(field for field, _ in sources), *unset])
    client = connect()
    ids = (
        [name.id for name in select_connections(client, names, choice).names]
        if everywhere
        else [client.connection.find(names[0])]
    )
    if not ids:
        click.echo("No connection is chosen.", err=True)
        return
    # A secret is asked for once, however many connections get it.
    ask = functools.cache(ask_secrets)
    connections = client.connection.info(ids)
    data_of = functools.partial(
        _data, client, assignments=assignments, secrets=secrets, sources=sources, unset=unset, ask=ask
    )
    changed = [(connection, data_of(connection)) for connection in connections]
    what = [*(word.partition("=")[0] for word in assignments), *secrets, *(field for field, _ in sources), *unset]
    rows = [("change", full_path(connection), ", ".join(what)) for connection in connections]
    asks = everywhere and means_many(names, choice)
    question = f"Change {plural(len(rows), 'connection')}? Their shells are stopped."
    if not confirm(rows, question, yes=yes, dry_run=dry_run, asks=asks):
        return
    for left in reversed(range(ATTEMPTS)):
        try:
            _store(client, changed, validate=validate)
            break
        except ClientError as error:
            if error.code != "connection_changed" or not left:
                raise
        # Somebody else has changed one meanwhile: the fields of this command are put into what is there now.
        changed = [(connection, data_of(connection)) for connection in client.connection.info(ids)]


ATTEMPTS = 5
"""How often fields are put into connections that others change at the same time."""


def _store(client: Client, changed: Sequence[tuple[Connection, dict[str, Any]]], *, validate: bool) -> None:
    """Store the data of connections as they were read.

    :raises ClientError: with the code ``connection_changed`` if one was changed since.
    """
    # With --validate each is opened before it is stored, which a batch in one transaction cannot wait for.
    if len(changed) == 1 or validate:
        for read, data in changed:
            client.connection.update(read.id, data=data, validate=validate, last_modified=read.last_modified)
        return
    client.connection.apply(
        change=[
            {"connection": read.id, "data": data, "lastModified": time_to_json(read.last_modified)}
            for read, data in changed
        ]
    )


def _data(
    client: Client,
    stored: Connection,
    *,
    assignments: tuple[str, ...],
    secrets: tuple[str, ...],
    sources: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    ask: Any,
) -> dict[str, Any]:
    """Return the data of a connection with the changes."""
    kind = find_type(client, stored.type)
    data = {"type": stored.type, **stored.data}
    unset_fields(kind, data, unset)
    assign_fields(client, kind, data, assignments, secrets, ask)
    assign_sources(kind, data, sources)
    return data


_WORDS = {"true": True, "false": False, "yes": True, "no": False}


def find_type(client: Client, name: str) -> ConnectionType:
    """Return the connection type ``name``.

    :raises click.UsageError: no plugin offers it.
    """
    types = {type_.name.lower(): type_ for type_ in client.connection.types()}
    if name.lower() not in types:
        names = ", ".join(sorted(type_.name for type_ in types.values()))
        raise click.UsageError(f"No connection type is called {name!r}; there are {names}.")
    return types[name.lower()]


def assign_fields(
    client: Client,
    kind: ConnectionType,
    data: dict[str, Any],
    assignments: Sequence[str],
    secrets: tuple[str, ...],
    ask: Callable[[tuple[str, ...]], list[str]] | None = None,
) -> None:
    """Put ``assignments``, each ``field=value``, into ``data``, and ask for each of the ``secrets``.

    :raises click.UsageError: the type lacks a field, a field cannot have the value, or an assignment names a secret.
    """
    seen: set[str] = set()
    for assignment in assignments:
        field, sign, text = assignment.partition("=")
        if not sign:
            raise click.UsageError(f"{assignment!r} is not of the form field=value.")
        schema = _schema(kind, field)
        if _is_secret(schema):
            raise click.UsageError(
                f"{field} is a secret, and other users can see the arguments of a process: "
                f"give `--secret {field}` instead, and it is asked for or read from standard input."
            )
        value = _value(client, field, schema, text)
        if field in seen:
            if not isinstance(value, list):
                raise click.UsageError(f"{field} is given twice.")
            # A list item by item: sendEnv=LANG sendEnv=TZ.
            value = _inside(data, field)[field.rpartition(".")[2]] + value
        seen.add(field)
        _inside(data, field)[field.rpartition(".")[2]] = value
    for field in secrets:
        if not _is_secret(_schema(kind, field)):
            raise click.UsageError(f"{field} is not a secret: give {field}=value.")
    for field, value in zip(secrets, (ask or ask_secrets)(secrets), strict=True):
        _inside(data, field)[field.rpartition(".")[2]] = value


def assign_sources(kind: ConnectionType, data: dict[str, Any], sources: Sequence[tuple[str, str]]) -> None:
    """Put into ``data`` where secret fields come from, each as the JSON object of a source.

    :raises click.UsageError: a field is not a secret, or its text is not such an object.
    """
    for field, text in sources:
        if not _is_secret(_schema(kind, field)):
            raise click.UsageError(f"{field} is not a secret: give {field}=value.")
        try:
            source = json.loads(text)
        except ValueError:
            source = None
        if not isinstance(source, dict) or not isinstance(source.get("source"), str):
            raise click.UsageError(
                f"--from {field} is followed by a JSON object with the name of a source and what it needs: "
                """'{"source": "pass", "entry": "web1"}'."""
            )
        _inside(data, field)[field.rpartition(".")[2]] = {"from": source}


def require_fields(kind: ConnectionType, data: Mapping[str, Any]) -> None:
    """Raise UsageError if ``data`` lack a field that the type requires."""
    missing = [name for name in kind.schema.get("required", ()) if name not in data]
    if missing:
        examples = " ".join(f"{name}=…" for name in missing)
        raise click.UsageError(f"{kind.name} needs {examples}; `connmgr add --schema {kind.name}` shows its fields.")


def unset_fields(kind: ConnectionType, data: dict[str, Any], fields: Sequence[str]) -> None:
    """Remove ``fields`` from ``data``."""
    for field in fields:
        _schema(kind, field)
        _inside(data, field).pop(field.rpartition(".")[2], None)


def ask_secrets(secrets: tuple[str, ...]) -> list[str]:
    """Ask for secrets on the terminal; without one, a single secret is all of stdin, several are one line each."""
    if not secrets:
        return []
    if sys.stdin.isatty():
        return [click.prompt(name, hide_input=True, err=True) for name in secrets]
    text = sys.stdin.read()
    if len(secrets) == 1:
        return [text.removesuffix("\n")]
    lines = text.splitlines()
    if len(lines) != len(secrets):
        raise click.UsageError(
            f"Standard input has {len(lines)} lines for {len(secrets)} secrets: give one line for each."
        )
    return lines


def _describe_fields(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, kind of value and description of each field of a schema, fields within fields too."""
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            continue
        path = f"{prefix}{name}"
        if "properties" in field and not _is_secret(field):
            if "string" in _types(field):
                yield path, "string", field.get("description", "")
            yield from _describe_fields(field, f"{path}.")
            continue
        notes = [field.get("description", "")]
        if name in schema.get("required", ()):
            notes.append("Required.")
        if field.get("default") is not None:
            notes.append(f"[default: {json.dumps(field['default'])}]")
        yield path, _kind(field), " ".join(filter(None, notes))


def _kind(field: Mapping[str, Any]) -> str:
    if _is_secret(field):
        return "secret"
    if field.get("x-connmgr-reference"):
        return "connection"
    if "enum" in field:
        return "|".join(map(str, field["enum"]))
    return "/".join(kind for kind in _types(field) if kind != "null") or "any"


def _types(field: Mapping[str, Any]) -> list[str]:
    types = field.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _is_secret(field: Mapping[str, Any]) -> bool:
    return bool(field.get("x-connmgr-secret"))


def _schema(kind: ConnectionType, path: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = kind.schema
    for name in path.split("."):
        inner = schema.get("properties", {}).get(name)
        if inner is None or "const" in inner:
            fields = ", ".join(field for field, _, _ in _describe_fields(kind.schema))
            raise click.UsageError(f"{kind.name} has no field {path!r}; it has {fields}.")
        schema = inner
    return schema


def _inside(data: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.split(".")[:-1]:
        inner = data.get(name)
        if not isinstance(inner, dict):
            inner = data[name] = {}
        data = inner
    return data


def _value(client: Client, field: str, schema: Mapping[str, Any], text: str) -> Any:
    kinds = _types(schema)
    if schema.get("x-connmgr-reference"):
        return client.connection.find(text)
    if "boolean" in kinds and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "array" in kinds and not text.startswith("["):
        return [text]
    if "string" in kinds:
        return text
    try:
        value = json.loads(text)
        # Python reads NaN and infinity, which JSON does not have.
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise click.UsageError(f"{field}: {text!r} is not a value of the kind {_kind(schema)}.") from None
    return value


@click.command()
@click.argument("words", metavar="CONNECTION [NAME]", type=ConnectionName(), nargs=-1)
@click.option("--category", "target", metavar="PATH", help="The category to move it to, which exists.")
@all_option
@functools.partial(choosing, category="--from-category")
@consent
def mv(
    words: tuple[str, ...], target: str | None, choice: Choice, *, everywhere: bool, yes: bool, dry_run: bool
) -> None:
    """Rename a connection, or change its category. Its uuid stays.

    Connections in it that share its category move with it.

    With --all each word is a CONNECTION or a GLOB, and all that match move to --category in one step. It shows which,
    and asks first. Without a terminal to ask on, it needs --yes.
    """
    from connmgr.cli.declarative.plan import fold

    if not everywhere:
        if choice.options:
            raise click.UsageError(f"Only with --all: {', '.join(choice.options)}.")
        if not words or len(words) > 2:
            raise click.UsageError("Give CONNECTION and NAME; several connections move by --all --category PATH.")
    elif target is None:
        raise click.UsageError("With --all, --category says where to.")
    else:
        require_some(words, choice)
    name = words[1] if not everywhere and len(words) == 2 else None
    if name is not None:
        check_name(name)
    if name is None and target is None:
        raise click.UsageError("Nothing to change: give NAME, --category or both.")
    client = connect()
    where = None if target is None else find_category(client, target)
    if everywhere and where is not None:
        _move(client, words, choice, where, yes=yes, dry_run=dry_run)
        return
    id = client.connection.find(words[0])
    [connection] = client.connection.info([id])
    path = connection.category if where is None else client.category.info([where])[0].name[1:]
    moved = fold([*connection.name[:-1], name or connection.name[-1]])
    row = (full_path(connection), "/".join([*path, *moved]))
    _require_free_names([(connection.id, path, moved)], client)
    if confirm([row], "", yes=yes, dry_run=dry_run, asks=False):
        client.connection.update(id, name=name, category=where)
        if name is not None and not dry_run:
            _tell_slash(name, visible(row[1]))


def _require_free_names(moves: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]], client: Client) -> None:
    """Refuse if a connection would get the category and path of another, so that their name means neither.

    ``moves`` are the uuids of connections, with the category and the path that each would get.
    :raises Failure: one is taken, or two would be the same.
    """
    from connmgr.cli.declarative.plan import fold

    going = {id for id, *_ in moves}
    owners = {(name.category, name.name): name.id for name in client.connection.names() if name.id not in going}
    for id, category, path in moves:
        other = owners.setdefault((fold(category), path), id)
        if other != id:
            raise Failure(
                f"{visible('/'.join([*category, *path]))!r} is the name of another connection, {other}, and one name "
                "cannot mean both. Nothing was changed."
            )


def _move(client: Client, words: tuple[str, ...], choice: Choice, where: str, *, yes: bool, dry_run: bool) -> None:
    """Move all chosen connections to the category ``where`` in one step."""
    path = client.category.info([where])[0].name[1:]
    names = [name for name in select_connections(client, words, choice).names if name.category != path]
    if not names:
        click.echo(f"All chosen connections are in {'/'.join(path)} already.", err=True)
        return
    rows = [(full_path(name), "/".join([*path, *name.name])) for name in names]
    _require_free_names([(name.id, path, name.name) for name in names], client)
    question = f"Move {plural(len(rows), 'connection')}?"
    if confirm(rows, question, yes=yes, dry_run=dry_run, asks=means_many(words, choice)):
        client.connection.apply(change=[{"connection": name.id, "category": list(path)} for name in names])


@click.command()
@selecting
@consent
def rm(selectors: tuple[str, ...], choice: Choice, *, yes: bool, dry_run: bool) -> None:
    """Remove connections, and all that run over them. Their shells are stopped.

    It shows which, and asks first. Without a terminal to ask on, it needs --yes.
    """
    require_some(selectors, choice)
    client = connect()
    ids = [name.id for name in select_connections(client, selectors, choice).names]
    if not ids:
        click.echo("No connection is chosen.", err=True)
        return
    rows = [] if yes and not dry_run else _going(client, ids)
    if confirm(rows, f"Remove {plural(len(rows), 'connection')}?", yes=yes, dry_run=dry_run):
        client.connection.remove(ids)


def _going(client: Client, ids: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return a row for each of the connections ``ids``, and for each that runs over one of them."""
    from connmgr.cli.declarative.plan import Stored

    stored = Stored(client)
    over = {id: _over(stored, info) for id, info in stored.infos.items()}
    going = dict.fromkeys(ids, "")
    # It grows meanwhile, until nothing runs over what is in it.
    for below in iter(
        lambda: next(
            (candidate for candidate in over if candidate not in going and over[candidate] & going.keys()), ""
        ),
        "",
    ):
        [at, *_] = over[below] & going.keys()
        going[below] = f"runs over {_name(stored, at)}"
    return [("remove", _name(stored, id), why) for id, why in going.items()]


def _over(stored: Stored, info: dict[str, Any]) -> set[str]:
    """Return the ids of the connections that a connection refers to."""
    from connmgr.cli.declarative.plan import map_marked

    referred: set[str] = set()

    def note(_: str, value: Any) -> Any:
        referred.add(str(value.get("storeId") if isinstance(value, dict) else value).lower())
        return value

    map_marked(stored.schema(info["type"]), "x-connmgr-reference", info["rawData"], note)
    return referred


def _name(stored: Stored, id: str) -> str:
    info = stored.infos[id]
    return "/".join([*info["category"], *info["name"]])
