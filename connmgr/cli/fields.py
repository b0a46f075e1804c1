"""Fields of a connection on the command line: ``host=web.example``, ``identity.file=~/.ssh/id``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from connmgr.client import Client, ConnectionType

_WORDS = {"true": True, "false": False, "yes": True, "no": False}


def type_named(client: Client, name: str) -> ConnectionType:
    """Return the connection type ``name``.

    :raises click.UsageError: no plugin offers it.
    """
    types = {one.name.lower(): one for one in client.connection.types()}
    if name.lower() not in types:
        known = ", ".join(sorted(one.name for one in types.values()))
        raise click.UsageError(f"No connection type is called {name!r}; there are {known}.")
    return types[name.lower()]


def apply(
    client: Client,
    kind: ConnectionType,
    data: dict[str, Any],
    assignments: Sequence[str],
    secrets: tuple[str, ...],
    asked: Callable[[tuple[str, ...]], list[str]] | None = None,
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
        if isinstance(value, list) and field in seen:
            value = _inside(data, field)[field.rpartition(".")[2]] + value
        seen.add(field)
        _inside(data, field)[field.rpartition(".")[2]] = value
    for field in secrets:
        if not _is_secret(_schema(kind, field)):
            raise click.UsageError(f"{field} is not a secret: give {field}=value.")
    for field, value in zip(secrets, (asked or ask)(secrets), strict=True):
        _inside(data, field)[field.rpartition(".")[2]] = value


def require(kind: ConnectionType, data: Mapping[str, Any]) -> None:
    """Raise UsageError if ``data`` lack a field that the type requires."""
    missing = [name for name in kind.schema.get("required", ()) if name not in data]
    if missing:
        given = " ".join(f"{name}=…" for name in missing)
        raise click.UsageError(f"{kind.name} needs {given}; `connmgr add --schema {kind.name}` shows its fields.")


def unset(kind: ConnectionType, data: dict[str, Any], fields: Sequence[str]) -> None:
    """Remove ``fields`` from ``data``."""
    for field in fields:
        _schema(kind, field)
        _inside(data, field).pop(field.rpartition(".")[2], None)


def ask(secrets: tuple[str, ...]) -> list[str]:
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
        raise click.UsageError(f"Standard input has {len(lines)} lines; one a secret is wanted, for {len(secrets)}.")
    return lines


def described(kind: ConnectionType) -> Iterator[tuple[str, str, str]]:
    """Yield name, kind of value and description of each field of a type; nested fields by their path."""
    yield from _described(kind.schema, "")


def _described(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            continue
        path = f"{prefix}{name}"
        if "properties" in field and not _is_secret(field):
            yield from _described(field, f"{path}.")
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
    named = field.get("type", [])
    return [named] if isinstance(named, str) else list(named)


def _is_secret(field: Mapping[str, Any]) -> bool:
    return bool(field.get("x-connmgr-secret"))


def _schema(kind: ConnectionType, path: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = kind.schema
    for name in path.split("."):
        inner = schema.get("properties", {}).get(name)
        if inner is None or "const" in inner:
            known = ", ".join(one for one, _, _ in described(kind))
            raise click.UsageError(f"{kind.name} has no field {path!r}; it has {known}.")
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
