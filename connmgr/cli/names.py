"""The names by which people refer to connections and categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.client import ROOT_CATEGORY, Client, ClientError, Name
from connmgr.client.names import UUID, alone, did_you_mean, escape, is_text, named, qualified, split_elevation, telling
from connmgr.printable import visible

MAX_COMPLETIONS = 500
COMPLETION_SECONDS = 1.0


class ConnectionName(click.types.StringParamType):
    """The name of a connection, completed by the daemon's; without a daemon there are no completions, and no error."""

    name = "connection"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offered(ctx, lambda client: _completions(client, incomplete))]


def find_exactly(client: Client, name: str) -> str | None:
    """Return the uuid of the connection that ``name`` means, None if none is called so.

    :raises ClientError: several are.
    """
    found = [name.lower()] if UUID.fullmatch(name) else [one.id for one in alone(named(client.connection, name), name)]
    return found[0] if found else None


def on_matching(client: Client, pattern: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of ``found`` whose ``connection`` is one that ``pattern`` means, or runs by sudo over one."""
    if pattern == "*":
        # It means also those to addresses, which no list of connections has.
        return found
    ids = {one.id for one in client.connection.choose(pattern)}
    return [one for one in found if split_elevation(one["connection"])[0] in ids]


def find_category(client: Client, name: str) -> str:
    """Return the uuid of the category with the path ``name``, with or without the root.

    :raises Failure: there is none.
    """
    if UUID.fullmatch(name):
        return name.lower()
    if name == "/":
        return ROOT_CATEGORY
    found = client.category.query(escape(name.strip("/"))) if is_text(name) and name.strip() else []
    if not found:
        raise Failure(
            f"No category is called {name!r}.{suggested_category(client, name)} `connmgr category ls` lists them.",
            NOT_FOUND,
        )
    if len(found) > 1:
        # The path was sought with and without the root. Both exist if a category in the root is called like the root.
        size = len(name.strip("/").split("/"))
        found = [one.id for one in client.category.info(found) if len(one.name) == size]
    return found[0]


def check_name(name: str) -> None:
    """Raise UsageError if ``name`` is blank: no command could name such a connection."""
    if not name.strip():
        raise click.UsageError("The name of a connection cannot be blank.")


def category_path(client: Client, category: str) -> tuple[str, ...]:
    """Return the path of a category that is given by its uuid, or by its path, which need not exist yet."""
    if UUID.fullmatch(category):
        return client.category.info([category.lower()])[0].name[1:]
    return tuple(name for name in category.split("/") if name)


def ensure_category(client: Client, path: str) -> str:
    """Return the uuid of the category ``path``, which is created where it is missing, and then named on stderr."""
    names = [name for name in path.split("/") if name] if path.strip() else []
    if UUID.fullmatch(path) or not names or (is_text(path) and client.category.query(escape("/".join(names)))):
        return find_category(client, path)
    id = ROOT_CATEGORY
    for name in names:
        id = client.category.add(name, id)
    click.echo(f"Created the category {visible('/'.join(names))}.", err=True)
    return id


def suggested_category(client: Client, word: str) -> str:
    """Return a sentence, after a blank, with the categories whose paths are most like ``word``."""
    paths = ["/".join(one.name[1:]) for one in client.category.info(client.category.query())]
    return did_you_mean(word, dict(zip(paths, paths, strict=True))) if is_text(word) else ""


def offered(context: click.Context, names: Callable[[Client], list[str]]) -> list[str]:
    """Return the names that ``names`` finds for a completion; none if the daemon does not answer at once."""
    from connmgr.cli.daemon import connect

    try:
        with context.scope(cleanup=False):
            client = connect(COMPLETION_SECONDS, offers_start=False)
        found = names(client)
        client.close()
    except (ClientError, click.ClickException, OSError):
        return []
    return found


def _completions(client: Client, incomplete: str) -> list[str]:
    """Return for each connection with a name that begins with ``incomplete`` the shortest that means it alone."""
    begun = incomplete.lower()
    names = client.connection.names()
    told = telling(names)
    times = Counter(text for one in names for text in _texts(one))
    offers: list[str] = []
    for one in names:
        if texts := [text for text in _texts(one) if text.startswith(begun)]:
            # The shell replaces the word even by a name that begins in another way.
            offers.append(next((text for text in texts if times[text] == 1), told[one.id]))
    return sorted(offers)[:MAX_COMPLETIONS]


def _texts(one: Name) -> dict[str, None]:
    """Return the names of a connection, the shortest first."""
    return dict.fromkeys((one.name[-1], one.path, qualified(one)))
