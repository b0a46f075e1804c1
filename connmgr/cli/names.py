"""The names by which people refer to connections and categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.near import did_you_mean
from connmgr.client import ROOT_CATEGORY, Client, ClientError, Connection, Name
from connmgr.client.names import UUID, escape, is_text, meant, named
from connmgr.printable import visible

MAX_CANDIDATES = 20
"""Candidates listed for an ambiguous name."""

MAX_COMPLETIONS = 500
COMPLETION_SECONDS = 1.0


class ConnectionName(click.types.StringParamType):
    """The name of a connection, completed by the daemon's; without a daemon there are no completions, and no error."""

    name = "connection"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offered(ctx, lambda client: _completions(client, incomplete))]


def find(client: Client, name: str) -> str:
    """Return the uuid of the connection that ``name`` means.

    ``name`` is a uuid, or else what :func:`connmgr.client.names.meant` finds.
    :raises Failure: none matches, or several do, which are listed.
    """
    if UUID.fullmatch(name):
        return name.lower()
    found = meant(client, name)
    if not found:
        hint = suggested(client, name)
        raise Failure(f"No connection is called {name!r}.{hint} `connmgr ls` lists them.", NOT_FOUND)
    return _only(client, name, found)


def find_exactly(client: Client, name: str) -> str | None:
    """Like :func:`find`, but for whole names only; return None if no connection is meant."""
    found = named(client, name)
    return _only(client, name, found) if found else None


def _only(client: Client, name: str, found: list[str]) -> str:
    if len(found) > 1:
        raise Failure(_ambiguous(name, client.connection.info(found[:MAX_CANDIDATES]), len(found)), NOT_FOUND)
    return found[0]


def suggested(client: Client, word: str) -> str:
    """Return a sentence, after a blank, with the connections whose names are most like ``word``; ``""`` if none is."""
    if not is_text(word):
        return ""
    names = client.connection.names()
    told = telling(names)
    meant = {shown: shown for shown in told.values()}
    if "/" in word:
        meant = {qualified(one): qualified(one) for one in names}
        meant |= {f"{'/'.join(one.category)}/": f"{'/'.join(one.category)}/*" for one in names}
    else:
        # A person who types one segment may have left out those before it.
        meant |= {one.name[-1]: told[one.id] for one in names}
    return did_you_mean(word, meant)


def telling(names: Sequence[Name]) -> dict[str, str]:
    """Return for each uuid of ``names`` the shortest unique text: its path, with the category if others share it."""
    times = Counter(one.name for one in names)
    return {one.id: one.path if times[one.name] == 1 else qualified(one) for one in names}


def _ambiguous(name: str, candidates: Iterable[Connection], count: int) -> str:
    lines = sorted(f"  {one.id}  {visible(qualified(one))}" for one in candidates)
    if count > len(lines):
        lines.append(f"  and {count - len(lines)} more")
    return "\n".join([f"{name!r} may be any of {count} connections:", *lines])


def find_category(client: Client, name: str) -> str:
    """Return the uuid of the category with the path ``name``, with or without the root.

    :raises Failure: there is none.
    """
    if UUID.fullmatch(name):
        return name.lower()
    if name in ("", "/"):
        return ROOT_CATEGORY
    found = client.category.query(escape(name.strip("/"))) if is_text(name) else []
    if not found:
        raise Failure(
            f"No category is called {name!r}.{suggested_category(client, name)} `connmgr category ls` lists them.",
            NOT_FOUND,
        )
    if len(found) > 1:
        # Names are queried with and without the root; the full path wins.
        wanted = name.strip("/").lower().split("/")
        found = [one.id for one in client.category.info(found) if list(one.name) == wanted] or found
    return found[0]


def ensure_category(client: Client, path: str) -> str:
    """Return the uuid of the category ``path``, which is created where it is missing, and then named on stderr."""
    names = [name for name in path.split("/") if name]
    if UUID.fullmatch(path) or not names or (is_text(path) and client.category.query(escape("/".join(names)))):
        return find_category(client, path)
    id = ROOT_CATEGORY
    for name in names:
        id = client.category.add(name, id)
    click.echo(f"Created the category {visible('/'.join(names))}.", err=True)
    return id


def suggested_category(client: Client, word: str) -> str:
    """Like :func:`suggested`, for categories."""
    paths = ["/".join(one.name[1:]) for one in client.category.info(client.category.query())]
    return did_you_mean(word, dict(zip(paths, paths, strict=True))) if is_text(word) else ""


def qualified(connection: Connection | Name) -> str:
    """Return a connection's category and path as one text."""
    return "/".join([*connection.category, *connection.name])


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
    """Return the names that begin with ``incomplete``: paths where these are unique, else with the category."""
    begun = incomplete.lower()
    names = client.connection.names(f"{escape(incomplete)}**")[:MAX_COMPLETIONS]
    told = telling(names)
    return sorted(told[one.id] if told[one.id].startswith(begun) else qualified(one) for one in names)
