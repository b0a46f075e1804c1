"""``connmgr undo``: shows what a token has changed in files, and puts it back."""

from __future__ import annotations

import difflib
import io
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from connmgr.cli.commands.audit import Moment
from connmgr.cli.connect import connect
from connmgr.cli.exits import FAILED, NOT_FOUND, Failure
from connmgr.cli.output import ago, counted, json_option, print_json, print_table
from connmgr.cli.selection import consent
from connmgr.client import Client, ClientError
from connmgr.client.names import with_beginning
from connmgr.contract.message import time_from_json
from connmgr.contract.undo import MAX_UNDONE, RESTORABLE, RESTORED, UNCHANGED
from connmgr.printable import visible

DIFF_LINES = 200
"""Most lines of the difference of one file that are shown."""

MAX_DIFF_BYTES = 1 << 20

Change = dict[str, Any]


@click.command()
@click.argument("changes", metavar="[CHANGE]...", nargs=-1)
@click.option("--token", metavar="TOKEN", help="All that this token has changed, by its uuid or its name.")
@click.option("--since", metavar="TIME", type=Moment(), help="Only what was changed since: 30m, 2h, 2026-01-31T08:15.")
@click.option("--connection", metavar="GLOB", help="Only on connections that GLOB matches.")
@click.option("--force", is_flag=True, help="Also overwrite what somebody else has changed since.")
@consent
@json_option
def undo(
    changes: tuple[str, ...],
    token: str | None,
    since: str | None,
    connection: str | None,
    *,
    force: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put back what a token has changed in files.

    It shows each change with the difference that its undo makes, asks, and then undoes them, the newest first. A file
    that is no longer as the token left it is left alone, and the command exits with 1. CHANGE is the uuid of a change,
    or its beginning; an undo is a change, too, so that it can be undone. Kept is what requests for files change (`cp`,
    agents' edits), and what commands and jobs change where rules over paths let the token write.
    """
    if not changes and token is None:
        raise click.UsageError("Name a --token or the CHANGEs to undo.")
    client = connect()
    at = None if since is None else datetime.fromisoformat(since)
    found = client.undo.query(token=token, since=at, connection=connection)
    chosen = _named(found, changes) if changes else [one for one in found if not one["undoes"] and not one["undoneBy"]]
    if len(chosen) > MAX_UNDONE:
        raise Failure(f"These are {len(chosen)} changes, and one command undoes {MAX_UNDONE}: narrow them by --since.")
    planned = _restored(client, chosen, dry_run=True, force=force)
    if not as_json:
        _show(client, planned)
    wanted = [one for one in planned if one["state"] == RESTORABLE]
    results = planned
    if wanted and not dry_run and _agreed(len(wanted), yes=yes):
        # Those that cannot be undone are told, too, as they are now.
        results = _restored(client, chosen, dry_run=False, force=force)
    if as_json:
        print_json([{name: value for name, value in result.items() if name != "of"} for result in results])
    elif results is not planned:
        _tell(results)
    elif dry_run and wanted:
        click.echo("Nothing was changed: --dry-run.", err=True)
    if any(result["state"] not in (RESTORED, RESTORABLE, UNCHANGED) for result in results):
        raise click.exceptions.Exit(FAILED)


def _named(found: list[Change], names: Iterable[str]) -> list[Change]:
    by_id = {one["change"]: one for one in found}
    chosen: dict[str, Change] = {}
    for name in names:
        matching = with_beginning(set(by_id), name)
        if len(matching) != 1:
            raise Failure(f"{counted(len(matching), 'change')} of the id {visible(name)}.", NOT_FOUND)
        id = matching.pop()
        chosen[id] = by_id[id]
    return list(chosen.values())


def _restored(client: Client, chosen: Iterable[Change], *, dry_run: bool, force: bool) -> list[dict[str, Any]]:
    """Undo ``chosen``, or tell what would become of each; a connection that fails does not stop the others."""
    by_connection: dict[str, dict[str, Change]] = defaultdict(dict)
    for one in chosen:
        by_connection[one["connection"]][one["change"]] = one
    results: list[dict[str, Any]] = []
    for connection, changes in by_connection.items():
        try:
            answers = client.undo.restore(connection, list(changes), dry_run=dry_run, force=force)
        except ClientError as error:
            answers = [
                {"change": id, "path": one["path"], "state": "failed", "message": error.message, "restoredAs": None}
                for id, one in changes.items()
            ]
        results += [{**answer, "of": changes[answer["change"]]} for answer in answers]
    return results


def _agreed(number: int, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: give --yes; --dry-run shows what would be done.")
    return click.confirm(f"Undo {counted(number, 'change')}?", err=True)


def _show(client: Client, planned: list[dict[str, Any]]) -> None:
    if not planned:
        click.echo("Nothing to undo.")
        return
    names = {one.id: one.path for one in client.connection.choose("*")}
    rows = []
    for one in planned:
        change = one["of"]
        when = ago(time_from_json(change["at"]))
        where = names.get(change["connection"], change["connection"])
        outcome = _what(change) if one["state"] == RESTORABLE else f"{one['state']}: {one['message']}"
        rows.append((change["change"][:8], when, change["by"], where, _path(change), outcome))
    print_table(rows)
    # The oldest change of a file has what it will be.
    wanted = [one["of"] for one in planned if one["state"] == RESTORABLE]
    for change in {(one["connection"], str(one["path"])): one for one in wanted}.values():
        for line in _difference(client, change):
            click.echo(visible(line))


def _what(change: Change) -> str:
    before = change["before"]
    if before["kind"] == "absent":
        return "remove it"
    same = change["after"] is not None and change["after"]["sha256"] == before["sha256"]
    if before["kind"] == "file" and not same:
        return f"put back {before['size']} bytes"
    return f"put back {before['kind']}, mode {before['mode']}"


def _difference(client: Client, change: Change) -> Iterator[str]:
    """Yield the lines that an undo changes in a text; none for anything else."""
    before, path = change["before"], change["path"]
    if before["kind"] != "file" or not isinstance(path, str) or before["size"] > MAX_DIFF_BYTES:
        return
    try:
        with client.fs.open(change["connection"], path) as content:
            if (content.size or 0) > MAX_DIFF_BYTES:
                return
            now = b"".join(content)
        old = client.undo.read(change["change"])
        there, then = (list(io.StringIO(each.decode(), newline="\n")) for each in (now, old))
    except UnicodeDecodeError:
        return
    except ClientError as error:
        yield f"({path}: the difference cannot be shown: {error.message})"
        return
    lines = list(difflib.unified_diff(there, then, fromfile=f"{path} now", tofile=f"{path} after the undo"))
    yield from (line.rstrip("\n") for line in lines[:DIFF_LINES])
    if len(lines) > DIFF_LINES:
        yield f"… and {len(lines) - DIFF_LINES} more lines"


def _tell(results: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        undone = (
            f"undo this by: connmgr undo {result['restoredAs'][:8]}"
            if result["restoredAs"]
            else result["message"] or ""
        )
        rows.append((result["change"][:8], _path(result["of"]), result["state"], undone))
    print_table(rows)


def _path(change: Mapping[str, Any]) -> str:
    path = change["path"]
    return path if isinstance(path, str) else f"base64:{path['base64']}"
