"""``connmgr mv``: give a connection another name or category."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click

from connmgr.cli.daemon import connect
from connmgr.cli.exits import Failure
from connmgr.cli.names import ConnectionName, check_name, find_category
from connmgr.cli.output import counted
from connmgr.cli.selection import Choice, agreed, all_option, choosing, chosen, consent, means_many, require_some
from connmgr.cli.stored import folded
from connmgr.client import Client
from connmgr.client.names import qualified
from connmgr.printable import visible


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
    if not everywhere:
        if choice.given:
            raise click.UsageError(f"{', '.join(choice.given)} goes with --all.")
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
    [one] = client.connection.info([id])
    path = one.category if where is None else client.category.info([where])[0].name[1:]
    moved = folded([*one.name[:-1], name or one.name[-1]])
    row = (qualified(one), "/".join([*path, *moved]))
    _refuse_taken([(one.id, path, moved)], client)
    if agreed([row], "", yes=yes, dry_run=dry_run, asks=False):
        client.connection.update(id, name=name, category=where)


def _refuse_taken(moves: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]], client: Client) -> None:
    """Refuse if a connection would get the category and path of another, so that their name means neither.

    ``moves`` are the uuids of connections, with the category and the path that each would get.
    :raises Failure: one is taken, or two would be the same.
    """
    going = {id for id, *_ in moves}
    taken = {(one.category, one.name): one.id for one in client.connection.names() if one.id not in going}
    for id, category, path in moves:
        other = taken.setdefault((folded(category), path), id)
        if other != id:
            raise Failure(
                f"{visible('/'.join([*category, *path]))!r} is the name of another connection, {other}, and one name "
                "cannot mean both. Nothing was changed."
            )


def _move(client: Client, words: tuple[str, ...], choice: Choice, where: str, *, yes: bool, dry_run: bool) -> None:
    """Move all chosen connections to the category ``where`` in one step."""
    path = client.category.info([where])[0].name[1:]
    names = [one for one in chosen(client, words, choice).names if one.category != path]
    if not names:
        click.echo(f"All chosen connections are in {'/'.join(path)} already.", err=True)
        return
    rows = [(qualified(one), "/".join([*path, *one.name])) for one in names]
    _refuse_taken([(one.id, path, one.name) for one in names], client)
    question = f"Move {counted(len(rows), 'connection')}?"
    if agreed(rows, question, yes=yes, dry_run=dry_run, asks=means_many(words, choice)):
        client.connection.apply(change=[{"connection": one.id, "category": list(path)} for one in names])
