"""Which connections a command is about: by name, address, GLOB, category, type, or the result of an earlier run."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.options import require_once
from connmgr.cli.output import plural, print_table
from connmgr.client import ROOT_CATEGORY, Client, ClientError, Name
from connmgr.client.names import (
    did_you_mean,
    escape,
    full_path,
    is_pattern,
    is_text,
    is_uuid,
    require_unique,
    resolve_name,
    split_elevation,
    telling,
)
from connmgr.printable import visible

MAX_COMPLETIONS = 500
COMPLETION_SECONDS = 1.0


class ConnectionName(click.types.StringParamType):
    """The name of a connection. The shell completes it from the daemon's list; without a daemon it offers nothing."""

    name = "connection"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offers(ctx, lambda client: _completions(client, incomplete))]


def find_exactly(client: Client, name: str) -> str | None:
    """Return the uuid of the connection that ``name`` means, None if no connection has that name.

    :raises ClientError: several connections have it.
    """
    ids = (
        [name.lower()]
        if is_uuid(name)
        else [candidate.id for candidate in require_unique(resolve_name(client.connection, name), name)]
    )
    return ids[0] if ids else None


def on_matching(client: Client, pattern: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ``items`` on connections that ``pattern`` means, with or without sudo."""
    if pattern == "*":
        # It means also those to addresses, which no list of connections has.
        return items
    ids = {connection.id for connection in client.connection.choose(pattern)}
    return [item for item in items if split_elevation(item["connection"])[0] in ids]


def find_category(client: Client, name: str) -> str:
    """Return the uuid of the category with the path ``name``, with or without the root.

    :raises Failure: there is none.
    """
    if is_uuid(name):
        return name.lower()
    if name == "/":
        return ROOT_CATEGORY
    ids = client.category.query(escape(name.strip("/"))) if is_text(name) and name.strip() else []
    if not ids:
        raise Failure(
            f"No category is called {name!r}.{suggested_category(client, name)} `connmgr category ls` lists them.",
            NOT_FOUND,
        )
    if len(ids) > 1:
        # The path was sought with and without the root. Both exist if a category in the root is called like the root.
        size = len(name.strip("/").split("/"))
        ids = [category.id for category in client.category.info(ids) if len(category.name) == size]
    return ids[0]


def check_name(name: str) -> None:
    """Raise UsageError if ``name`` is blank: no command could name such a connection."""
    if not name.strip():
        raise click.UsageError("The name of a connection cannot be blank.")


def category_path(client: Client, category: str) -> tuple[str, ...]:
    """Return the path of a category that is given by its uuid, or by its path, which need not exist yet."""
    if is_uuid(category):
        return client.category.info([category.lower()])[0].name[1:]
    return tuple(name for name in category.split("/") if name)


def ensure_category(client: Client, path: str) -> str:
    """Return the uuid of the category ``path``, which is created where it is missing, and then named on stderr."""
    names = [name for name in path.split("/") if name] if path.strip() else []
    if is_uuid(path) or not names or (is_text(path) and client.category.query(escape("/".join(names)))):
        return find_category(client, path)
    id = ROOT_CATEGORY
    for name in names:
        id = client.category.add(name, id)
    click.echo(f"Created the category {visible('/'.join(names))}.", err=True)
    return id


def suggested_category(client: Client, word: str) -> str:
    """Return a sentence, after a blank, with the categories whose paths are most like ``word``."""
    paths = ["/".join(category.name[1:]) for category in client.category.info(client.category.query())]
    return did_you_mean(word, dict(zip(paths, paths, strict=True))) if is_text(word) else ""


def offers(context: click.Context, names: Callable[[Client], list[str]]) -> list[str]:
    """Return what ``names`` finds for a completion, nothing if the daemon does not answer at once."""
    from connmgr.cli.connect import connect

    try:
        # connect() reads the options of the current context, and a completion has none. The context stays open for the
        # shell's completion, which goes on with it.
        with context.scope(cleanup=False):
            client = connect(COMPLETION_SECONDS, offers_start=False)
        matching = names(client)
        client.close()
    except (ClientError, click.ClickException, OSError):
        return []
    # A line feed would begin another offer, and the shell shows the others as they are.
    return [name for name in matching if name.isprintable()]


def _completions(client: Client, incomplete: str) -> list[str]:
    """Return for each connection with a name that begins with ``incomplete`` the shortest that means it alone."""
    beginning = incomplete.lower()
    names = client.connection.names()
    labels = telling(names)
    times = Counter(text for name in names for text in _texts(name))
    offers: list[str] = []
    for name in names:
        if texts := [text for text in _texts(name) if text.startswith(beginning)]:
            # The shell replaces the word even by a name that begins in another way.
            offers.append(next((text for text in texts if times[text] == 1), labels[name.id]))
    return sorted(offers)[:MAX_COMPLETIONS]


def _texts(connection: Name) -> dict[str, None]:
    """Return the names of a connection, the shortest first."""
    return dict.fromkeys((connection.name[-1], connection.path, full_path(connection)))


SCHEME = "ssh://"
_USER_AND_HOST = re.compile(r"(?P<user>[^@/:\s]+)@(?P<host>[^@/:\s]+)")


def read_labels(words: Iterable[str]) -> dict[str, str]:
    """Return the labels that words such as ``env=prod`` give.

    :raises click.UsageError: one has no ``=``, or a label has two values.
    """
    labels = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"{word!r} is not of the form LABEL=VALUE.")
        labels.append((name, value))
    require_once(name for name, _ in labels)
    return dict(labels)


class Address(NamedTuple):
    """``user@host`` or ``ssh://user@host:port``; ~/.ssh/config decides about parts that are None."""

    host: str
    user: str | None
    port: int | None

    @property
    def data(self) -> dict[str, Any]:
        """The data of a connection to it."""
        parts = {"user": self.user, "port": self.port}
        return {"type": "ssh", "host": self.host, **{name: value for name, value in parts.items() if value is not None}}

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def reach(client: Client, name: str, *, store: bool = False) -> str:
    """Return the uuid of the connection that ``name`` means, or of one to the address ``name``, added if need be.

    The daemon keeps an added connection in memory until some time after its shell has ended, unless ``store``.
    :raises Failure: as :func:`connmgr.cli.selection.find`.
    :raises click.UsageError: ``name`` is a malformed ``ssh://`` address; or with ``store``, no address.
    """
    address = read_address(name)
    if address is None:
        if store:
            raise click.UsageError(f"--store is for USER@HOST and {SCHEME}[USER@]HOST[:PORT], and {name!r} is neither.")
        return client.connection.find(name)
    return find_exactly(client, name) or client.connection.add(str(address), address.data, temporary=not store)


def read_address(name: str) -> Address | None:
    """Return the address that ``name`` is, or None if it does not have the form of an address.

    :raises click.UsageError: it begins with ``ssh://`` and is not an address.
    """
    if not name.startswith(SCHEME):
        match = _USER_AND_HOST.fullmatch(name)
        return Address(match["host"], match["user"], None) if match else None
    try:
        parts = urlsplit(name)
        # Reading the port checks it, and raises for ssh://host:70000.
        port = parts.port
    except ValueError as error:
        raise click.UsageError(f"{name!r} is not of the form {SCHEME}[USER@]HOST[:PORT]: {error}.") from None
    if parts.password is not None:
        raise click.UsageError(
            "A password in an address is seen by all users of this machine: `connmgr add ssh NAME host=… "
            "--secret password` asks for it."
        )
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise click.UsageError(f"{name!r} is not of the form {SCHEME}[USER@]HOST[:PORT].")
    return Address(parts.hostname, parts.username, port)


Command = TypeVar("Command", bound=Callable[..., Any])
EVERYTHING = "*"


class Choice(NamedTuple):
    """The values of the options of :func:`choosing`; ``limit`` and ``failed`` are None if not given."""

    category: str
    kind: str
    failed: IO[str] | None
    limit: int | None
    where: str | None = None

    @property
    def reads_stdin(self) -> bool:
        """Whether ``failed`` is standard input."""
        return self.failed is not None and self.failed.fileno() == 0

    @property
    def options(self) -> list[str]:
        """The names of the options that are given."""
        others = {"--failed": self.failed, "--limit": self.limit}
        return [*self.filters, *(name for name, value in others.items() if value is not None)]

    @property
    def filters(self) -> dict[str, str]:
        """The filters by their options, without those that match everything."""
        filters = {"--category": self.category, "--type": self.kind}
        result = {name: value for name, value in filters.items() if value != EVERYTHING}
        return result if self.where is None else {**result, "--where": self.where}


def choosing(command: Command, category: str = "--category") -> Command:
    """Give a command the options that choose connections, as its argument ``choice``, a :class:`Choice`.

    ``category`` is the option for categories of a command whose ``--category`` is another.
    """
    options = [
        click.option(
            category, "category", metavar="GLOB", default=EVERYTHING, help="Only connections in a matching category."
        ),
        click.option("--type", "kind", metavar="GLOB", default=EVERYTHING, help="Only connections of a matching type."),
        click.option(
            "--where",
            metavar="CONDITION",
            help="Only connections with such labels and facts, as in 'env=prod and os.id=debian and os.version>=12'.",
        ),
        click.option(
            "--failed",
            "--retry-failed",
            "failed",
            metavar="FILE",
            type=click.File(encoding="utf-8"),
            help="Only connections that failed in an earlier run, whose --json output is in FILE; - is standard input.",
        ),
        click.option(
            "--limit",
            metavar="N",
            type=click.IntRange(1),
            help="Only the first N connections, in the order of `connmgr ls`.",
        ),
    ]

    @functools.wraps(command)
    def choose(
        *arguments: Any,
        category: str,
        kind: str,
        failed: IO[str] | None,
        limit: int | None,
        where: str | None,
        **more: Any,
    ) -> Any:
        return command(*arguments, choice=Choice(category, kind, failed, limit, where), **more)

    for option in reversed(options):
        choose = option(choose)
    return choose  # type: ignore[return-value] # it takes other keywords than ``command``


def selecting(command: Command) -> Command:
    """Give a command its CONNECTION arguments, as ``selectors``, and the options of :func:`choosing`."""
    arguments = click.argument("selectors", metavar="CONNECTION|GLOB...", type=ConnectionName(), nargs=-1)
    everywhere = click.option(
        "--all",
        is_flag=True,
        expose_value=False,
        help="Has no effect here: a GLOB is accepted without it, unlike by `connmgr exec`.",
    )
    return arguments(everywhere(choosing(command)))


all_option = click.option(
    "--all",
    "everywhere",
    is_flag=True,
    help="Work on all matching connections; each CONNECTION is then a name or a GLOB.",
)
"""For commands that otherwise take one connection."""


def consent(command: Command) -> Command:
    """Give a command that changes many connections ``--yes`` and ``--dry-run``."""
    command = click.option("--dry-run", is_flag=True, help="Change nothing; show what would be done.")(command)
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def confirm(rows: Sequence[Sequence[str]], question: str, *, yes: bool, dry_run: bool, asks: bool = True) -> bool:
    """Return whether to do what ``rows`` show. With ``asks`` it takes ``--yes``, or a yes on the terminal.

    :raises click.UsageError: standard input is not a terminal.
    """
    if dry_run:
        print_table(rows)
        click.echo("Nothing was changed: --dry-run.", err=True)
        return False
    if yes or not asks:
        return True
    require_terminal("Give --yes, or --dry-run to see what would be done.")
    print_table(rows, err=True)
    click.confirm(question, abort=True, err=True)
    return True


def require_terminal(advice: str) -> None:
    """Raise UsageError with ``advice`` if nobody can be asked, since standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"Cannot ask for confirmation: standard input is not a terminal. {advice}")


def means_many(patterns: Sequence[str], choice: Choice) -> bool:
    """Whether more is given than one name, so that a person should see the connections before they are changed."""
    return len(patterns) != 1 or is_pattern(patterns[0]) or bool(choice.options)


def require_some(patterns: Sequence[str], choice: Choice) -> None:
    """Raise UsageError if nothing is chosen: no names, and no filters that could stand alone."""
    if not patterns and choice.options in ([], ["--limit"]):
        raise click.UsageError("Say on which connections: give names or GLOBs, or '*' for all.")


def jobs_option(default: int = 16, most: int = 128) -> Callable[[Command], Command]:
    """Give a command the option ``--jobs``, the number of connections worked on at once, as its argument ``jobs``."""
    return click.option(
        "-j",
        "--jobs",
        "--parallel",
        "jobs",
        metavar="N",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help="How many connections at once.",
    )


brief_option = click.option(
    "--brief", is_flag=True, help="With --all: one line for each connection, as soon as it is done."
)


def check_for_all(*, brief: bool, everywhere: bool, as_json: bool) -> None:
    """Raise UsageError if ``--brief`` or ``--jobs`` stands without ``--all``, or ``--brief`` beside ``--json``."""
    if not everywhere and click.get_current_context().get_parameter_source("jobs") == ParameterSource.COMMANDLINE:
        raise click.UsageError("--jobs needs --all.")
    if brief and not everywhere:
        raise click.UsageError("--brief needs --all.")
    if brief and as_json:
        raise click.UsageError("Give --brief or --json.")


class Selection(NamedTuple):
    """The chosen connections, in the order of `connmgr ls`; ``of`` also counts those beyond the limit."""

    names: list[Name]
    of: int


def select_connections(
    client: Client,
    patterns: Sequence[str],
    choice: Choice,
    *,
    usage: str | None = None,
    may_be_none: bool = False,
    addresses: bool = False,
) -> Selection:
    """Return what names and patterns mean, narrowed by ``choice``; without ``patterns``, all that ``choice`` matches.

    ``usage`` excludes connections of other usages. With ``may_be_none`` filters alone may match nothing.
    With ``addresses`` one of ``patterns`` may be that of a machine without a stored connection.
    :raises Failure: the filters match nothing, or ``failed`` is not the output of an earlier run.
    :raises ClientError: as :meth:`connmgr.client.connections.Connections.choose`.
    """
    # Connections to addresses are in no list, so that they are reached by themselves. A uuid may be that of such a
    # connection; with filters it is looked up in the list, too, because only there filters are applied.
    direct = [
        pattern
        for pattern in patterns
        if addresses and not is_pattern(pattern) and (is_uuid(pattern) or read_address(pattern))
    ]
    rest = [pattern for pattern in patterns if pattern not in direct or (is_uuid(pattern) and choice.filters)]
    selected = [_at(client, address) for address in direct if address not in rest]
    if rest or not patterns:
        selected += client.connection.choose(
            *rest, category=choice.category, type=choice.kind, usage=usage, where=choice.where
        )
    if not (selected or patterns or may_be_none):
        raise Failure(_no_match(client, choice, usage), NOT_FOUND)
    connections = {connection.id: connection for connection in selected}
    if choice.failed is not None:
        failed = set(_failed(choice.failed))
        if not patterns and (missing := failed - connections.keys()):
            click.echo(f"connmgr: {plural(len(missing), 'connection')} of the earlier run no longer match", err=True)
        connections = {id: connection for id, connection in connections.items() if id in failed}
    # The limit comes last: with --failed it counts the connections that failed.
    names = list(connections.values())
    return Selection(names[: choice.limit], len(names))


def _at(client: Client, address: str) -> Name:
    [connection] = client.connection.info([reach(client, address)])
    return Name(connection.id, connection.category, connection.name, connection.type, connection.usage)


def _no_match(client: Client, choice: Choice, usage: str | None) -> str:
    """Return the message about filters that match nothing."""
    runs = " that runs commands" if usage == "shell" else ""
    problem = f"No connection{runs} matches {' and '.join(map(' '.join, choice.filters.items())) or repr('*')}."
    if "--category" in choice.filters and is_text(choice.category) and not client.category.query(choice.category):
        return problem + suggested_category(client, choice.category)
    return f"{problem} `connmgr ls` lists them."


def _failed(lines: Iterable[str]) -> Iterator[str]:
    """Yield the connections on which an earlier run failed: with an error, or with another exit code than 0."""
    for number, line in enumerate(lines, 1):
        try:
            outcome = json.loads(line)
            if "error" in outcome or outcome["exitCode"]:
                yield outcome["connection"]
        except (ValueError, TypeError, KeyError):
            raise Failure(f"--failed: line {number} is not one that `connmgr exec --all --json` prints.") from None


INFOS_PER_REQUEST = 2000


def infos_of(client: Client, ids: list[str], **more: bool) -> list[dict[str, Any]]:
    """Return the daemon's descriptions of connections; ``more`` are options of `/connection/info`."""
    parts = [ids[start : start + INFOS_PER_REQUEST] for start in range(0, len(ids), INFOS_PER_REQUEST)]
    answers = (client.post("/connection/info", connections=part, created=True, **more) for part in parts)
    return [info for answer in answers for info in answer["infos"]]
