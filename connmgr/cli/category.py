"""``connmgr category``: the tree that connections are sorted into."""

from __future__ import annotations

import click

from connmgr.cli.daemon import connect
from connmgr.cli.group import Group
from connmgr.cli.names import find_category
from connmgr.cli.output import ago, json_option, print_json, print_table
from connmgr.client import ROOT_CATEGORY, Category


@click.group(cls=Group)
def category() -> None:
    """Look after the categories of connections."""


@category.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@json_option
def ls(pattern: str, *, as_json: bool) -> None:
    """List categories."""
    client = connect()
    found = client.category.query(pattern)
    if as_json:
        print_json(client.post("/category/info", categories=found)["infos"])
        return
    rows = sorted((_path(one), ago(one.last_used)) for one in client.category.info(found))
    if rows:
        print_table(rows)


@category.command(name="add")
@click.argument("path")
@json_option
def add(path: str, *, as_json: bool) -> None:
    """Add a category and its missing parents, and print its uuid."""
    client = connect()
    id = ROOT_CATEGORY
    for name in filter(None, path.split("/")):
        id = client.category.add(name, id)
    if id == ROOT_CATEGORY:
        raise click.UsageError("A category has a name.")
    if as_json:
        print_json({"category": id})
    else:
        click.echo(id)


@category.command(name="rm")
@click.argument("path")
@click.option("--children", is_flag=True, help="Remove the categories below it too. Default: they move up.")
@click.option(
    "--contents", is_flag=True, help="Remove its connections too. Default: they move to the default category."
)
def rm(path: str, *, children: bool, contents: bool) -> None:
    """Remove a category. By default the categories and connections in it stay."""
    client = connect()
    client.category.remove([find_category(client, path)], children=children, contents=contents)


def _path(one: Category) -> str:
    return "/".join(one.name[1:]) or one.name[0]
