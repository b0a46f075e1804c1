"""``connmgr cp``: copy files and directories to and from connections."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from connmgr.cli.connect import connect, raise_error_of_front
from connmgr.cli.copy.engine import Copy, locating
from connmgr.cli.copy.plan import (
    STREAM,
    CopyOperand,
    CopyOptions,
    CopyReport,
    RemotePath,
    has_wildcards,
    is_local,
    is_remote,
    leads_out,
)
from connmgr.cli.exits import FAILED, NOT_FOUND, Failure
from connmgr.cli.output import json_option, print_json
from connmgr.cli.plain import ensure_shell
from connmgr.cli.plain import umask as own_umask
from connmgr.cli.progress import transferring
from connmgr.cli.selection import (
    SCHEME,
    Choice,
    ConnectionName,
    Selection,
    brief_option,
    check_for_all,
    choosing,
    jobs_option,
    reach,
    read_address,
    select_connections,
)
from connmgr.cli.sessions import OK, SUDO, WithSudo, fresh_option, own_session, session_of, session_option, sudo_option
from connmgr.client import Client, ClientError
from connmgr.client.names import telling
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.cli.fan_out import Gathered


class CopyPath(ConnectionName):
    """A local path, ``CONNECTION:path``, or ``-``."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        files = [CompletionItem(incomplete, type="file")]
        if is_local(incomplete):
            return files
        return [CompletionItem(f"{item.value}:") for item in super().shell_complete(ctx, param, incomplete)] or files


DEFAULT_JOBS, MAX_JOBS = 8, 64


def _globs(_context: click.Context, _option: click.Parameter, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an option in place of a GLOB, which `--all` alone would take for one, unlike that of `connmgr exec`."""
    for pattern in patterns:
        if pattern.startswith("-"):
            option = SUDO if pattern.startswith(SUDO) else pattern
            raise click.UsageError(f"--all needs a GLOB, and {option} follows it: write `--all GLOB {option}`.")
    return patterns


@click.command(cls=WithSudo)
@click.argument("operands", metavar="SOURCE... TARGET", type=CopyPath(), nargs=-1)
@click.option("--recursive", "-r", is_flag=True, help="Copy directories with their content.")
@click.option("--archive", "-a", "keep", is_flag=True, help="As -r, and keep links, modes and times.")
@click.option("--checksum", "-c", is_flag=True, help="Skip files with the same SHA-256, whatever their times are.")
@click.option(
    "--exclude",
    "excludes",
    metavar="GLOB",
    multiple=True,
    help="Leave out files and directories with a matching name or path.",
)
@click.option("--mode", metavar="OCTAL", help="Permissions of a new file.  [default: those of SOURCE]")
@click.option(
    "--all",
    "patterns",
    metavar="GLOB",
    multiple=True,
    callback=_globs,
    help="Copy to all matching connections, with TARGET :path, or from all, with each SOURCE :path.",
)
@choosing
@jobs_option(DEFAULT_JOBS, MAX_JOBS)
@session_option
@fresh_option
@sudo_option
@click.option("--store", is_flag=True, help="Store a connection to USER@HOST under that name.")
@brief_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress on the terminal, and no summary.")
@json_option
def cp(
    operands: tuple[str, ...],
    mode: str | None,
    patterns: tuple[str, ...],
    choice: Choice,
    jobs: int,
    session: str | None,
    *,
    fresh: bool,
    sudo: str | None,
    store: bool,
    brief: bool,
    as_json: bool,
    recursive: bool,
    keep: bool,
    checksum: bool,
    excludes: tuple[str, ...],
    quiet: bool,
) -> None:
    """Copy files to, from or between connections.

    CONNECTION:path is a file of a connection, or of an address, USER@HOST or ssh://[USER@]HOST[:PORT]. The path is
    relative to the directory of the shell there, unless it is absolute or begins with ~/. The machine's shell expands
    *, ? and [ in it: put it in quotes. A path that begins with / . or ~ is on this machine, and - is standard input or
    output. If TARGET is a directory, each file goes there under its own name. A file gets its name once it is complete.

    With -r, existing files with the same size and time of change are skipped, so an interrupted run continues where it
    was. Files keep their times, and their modes minus the umask; links are left out. -a keeps links as links, whole
    modes, and the times of new directories. Owners are never kept. With --checksum files with the same size and SHA-256
    are skipped, single files too; both sides read these files for that.

    With --all, each connection that matches one of the GLOBs gets the SOURCEs of this machine as :path. Or :path of
    each is copied into the directory TARGET of this machine, into a subdirectory with the connection's name. Results
    are printed as by `connmgr exec --all`, with --brief and --json too.

    With --sudo the files on connections are read and written by root or another user.
    """
    raise_error_of_front()
    if len(operands) < 2:
        raise click.UsageError("Name what to copy, and where to: SOURCE... TARGET.")
    check_for_all(brief=brief, everywhere=bool(patterns), as_json=as_json)
    if patterns and store:
        raise click.UsageError("--store is for one address, not for --all.")
    session = session_of(session, fresh=fresh)
    # Read once, because reading the umask changes it for a moment.
    umask = 0 if keep else own_umask()
    options = CopyOptions(recursive or keep, keep, excludes, _bits(mode), checksum, umask, session, fresh, sudo)
    *sources, target = operands
    client = connect()
    if patterns:
        selected = select_connections(client, patterns, choice, usage="shell")
        to_all(client, selected, sources, target, options, jobs, as_json=as_json, brief=brief)
        return
    if choice.options:
        raise click.UsageError(f"Only with --all: {', '.join(choice.options)}.")
    if store and not any(map(is_of_address, operands)):
        raise click.UsageError(f"--store needs an address USER@HOST:PATH; {', '.join(operands)} has none.")
    if as_json and target == STREAM:
        raise click.UsageError("Standard output takes the file or --json, not both.")
    with Shells(client, options) as shells:
        end = shells.operand(target, store=store)
        starts = [start for text in sources for start in expand(client, shells.operand(text, store=store))]
        if len(starts) > 1 and STREAM in (*starts, end):
            raise click.UsageError("Standard input or output is a single file: copy it without others.")
        with transferring(str(sources[0]), quiet=quiet or as_json) as progress, locating():
            copy = Copy(client, options, progress)
            copy.run(starts, end)
    if as_json:
        print_json(copy.report.as_object())
    else:
        copy.report.tell(summary=not quiet and (copy.has_trees or checksum or len(starts) > 1))
    if copy.report.failures:
        raise click.exceptions.Exit(FAILED)


def _bits(mode: str | None) -> int | None:
    if mode is None:
        return None
    try:
        bits = int(mode, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o7777:
        raise click.BadParameter(f"{mode!r} is not an octal mode such as 0644.", param_hint="--mode")
    return bits


# Digits after the host are a port, and another colon follows.
_ADDRESS_AND_PATH = re.compile(
    r"(?P<address>ssh://([^@/]*@)?(\[[^\]/]*\]|[^:/\[\]]*)(:[0-9]+(?=:))?):(?P<path>.*)", re.DOTALL
)
_PORT_FIRST = re.compile(r"[0-9]+(/.*)?", re.DOTALL)


class Shells:
    """The shells by which one command copies: the shells of a session, or fresh ones, which end with the block.

    With ``--sudo`` they are those of that user, over the connections.
    """

    def __init__(self, client: Client, options: CopyOptions) -> None:
        self._client = client
        self._session, self._fresh, self._sudo = options.session, options.fresh, options.sudo
        self._own: dict[str, str] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Shells:
        return self

    def __exit__(self, *raised: object) -> None:
        self._cleanup.close()

    def remote(self, connection: str, name: str, path: str) -> RemotePath:
        """Return a path on the connection called ``name``; start its shell if none runs."""
        if self._sudo is not None:
            connection = self._client.connection.elevate(connection, self._sudo)
        if not self._fresh:
            ensure_shell(self._client, connection, self._session, name)
            return RemotePath(connection, path, self._session, name)
        if connection not in self._own:
            self._own[connection] = self._cleanup.enter_context(own_session(self._client, connection))
        return RemotePath(connection, path, self._own[connection], name)

    def operand(self, text: str, *, store: bool = False) -> CopyOperand:
        """Return what an operand names, or raise UsageError for an ``ssh://`` address without a path.

        With ``store`` the connection to an address stays in the vault.
        """
        name, path = _parts(text)
        if name is None:
            return text
        connection = reach(self._client, name, store=store and read_address(name) is not None)
        return self.remote(connection, name, path)


def is_of_address(text: str) -> bool:
    """Whether ``text`` names a file of an address; raises as :meth:`Shells.operand`."""
    name = _parts(text)[0]
    return name is not None and read_address(name) is not None


def _parts(text: str) -> tuple[str | None, str]:
    """Return connection and path, or None and ``text`` itself for a local path."""
    if not is_remote(text):
        return None, text
    if not text.startswith(SCHEME):
        name, _, path = text.partition(":")
        return name, path
    parts = _ADDRESS_AND_PATH.fullmatch(text)
    if parts is None or _PORT_FIRST.fullmatch(parts["path"]):
        raise click.UsageError(f"{text!r}: a file of an address is {SCHEME}[USER@]HOST[:PORT]:PATH.")
    return parts["address"], parts["path"]


def expand(client: Client, operand: CopyOperand) -> list[CopyOperand]:
    """Return the files that a path with wildcards matches on its connection; return any other operand unchanged.

    :raises Failure: no file matches.
    """
    if not isinstance(operand, RemotePath) or not has_wildcards(operand.path):
        return [operand]
    matches = client.fs.glob(operand.connection, operand.path, session=operand.session)
    if not matches:
        raise Failure(f"{operand}: nothing matches there.", NOT_FOUND)
    return [operand._replace(path=match.name) for match in matches]


Ends = Callable[[Client, Shells], tuple[list[CopyOperand], CopyOperand]]
"""Returns the sources and the target of one connection."""


class CopyOutcome(NamedTuple):
    """The result on one connection: what was copied, and the error that ended it, if one did."""

    connection: str
    report: CopyReport
    seconds: float
    failure: ClientError | Failure | OSError | None = None

    @property
    def verdict(self) -> str:
        if isinstance(self.failure, ClientError):
            return self.failure.code
        return "failed" if self.failure is not None or self.report.failures else OK

    @property
    def message(self) -> str:
        """Why it failed, ``""`` if it did not."""
        if isinstance(self.failure, OSError):
            return f"{self.failure.filename}: {self.failure.strerror}"
        return "" if self.failure is None else self.failure.message

    def as_object(self) -> dict[str, Any]:
        failure = {"error": {"code": self.verdict, "message": self.message}}
        return {"seconds": round(self.seconds, 3), **(self.report.as_object() if self.failure is None else failure)}

    def show(self, name: str, width: int) -> None:
        click.echo(f"{name:<{width}}  {self.verdict:<7}  {self.seconds:6.2f} s  {visible(self._summary())}".rstrip())

    def gather(self, gathered: Gathered, name: str) -> None:
        if self.failure is not None:
            gathered.add(name, self.verdict, message=self.message)
            return
        # Without the time, which would be another on each.
        summary = f"{self.report.summary(timed=False)}\n".encode()
        failures = "".join(f"{line}\n" for line in self.report.failures)
        gathered.add(name, self.verdict, summary, failures.encode(errors="surrogateescape"))

    def _summary(self) -> str:
        if self.failure is not None:
            return self.message
        return "; ".join([self.report.summary(), *self.report.failures[:1]])


def to_all(
    client: Client,
    selection: Selection,
    sources: Sequence[str],
    target: str,
    options: CopyOptions,
    jobs: int,
    *,
    as_json: bool,
    brief: bool,
) -> None:
    """Copy local files to all connections, or files of all connections to here, ``jobs`` at a time.

    Results are printed as those of `connmgr exec --all`.
    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    from connmgr.cli.fan_out import in_threads, report

    ends = _ends(telling(selection.names), sources, target)

    def work(ids: Sequence[str]) -> Iterator[CopyOutcome]:
        return in_threads(client, ids, lambda own, id: _copy_on(own, id, ends(id), options), jobs)

    report(client, selection, options.sudo, work, as_json=as_json, brief=brief)


def _ends(labels: dict[str, str], sources: Sequence[str], target: str) -> Callable[[str], Ends]:
    """Return a function from a connection's uuid to the ends of its copy.

    :raises click.UsageError: the operands are neither files for all connections nor files of all.
    """
    here = [not is_remote(text) for text in (*sources, target)]
    if target.startswith(":") and all(here[:-1]) and STREAM not in sources:
        return lambda id: lambda _, shells: ([*sources], shells.remote(id, labels[id], target[1:]))
    if not all(text.startswith(":") for text in sources) or not here[-1] or target == STREAM:
        raise click.UsageError(
            "With --all, files of this machine go to :path, the same path on each connection, or :path of each "
            "connection goes into a directory of this machine."
        )
    directories = _directories(labels, Path(target).expanduser())

    def ends_of(id: str) -> Ends:
        def ends(client: Client, shells: Shells) -> tuple[list[CopyOperand], CopyOperand]:
            places = [shells.remote(id, labels[id], text[1:]) for text in sources]
            starts = [start for place in places for start in expand(client, place)]
            directories[id].mkdir(parents=True, exist_ok=True)
            return starts, str(directories[id])

        return ends

    return ends_of


def _directories(labels: dict[str, str], target: Path) -> dict[str, Path]:
    """Return for each connection the directory of its name in ``target``.

    :raises Failure: a name cannot be that of a directory, or two directories would lie in one another.
    """
    names = set(labels.values())
    for name in names:
        if leads_out(name) or "\0" in name:
            raise Failure(f"{visible(name)!r} cannot be a directory's name: copy from that connection by itself.")
        parts = name.split("/")
        above = next((up for size in range(1, len(parts)) if (up := "/".join(parts[:size])) in names), None)
        if above is not None:
            raise Failure(
                f"{visible(name)} would go into the directory of {visible(above)}: copy from the two one after the "
                "other, into other directories."
            )
    return {id: target / name for id, name in labels.items()}


def _copy_on(client: Client, id: str, ends: Ends, options: CopyOptions) -> CopyOutcome:
    copy, began = Copy(client, options, None), time.monotonic()
    end: CopyOperand | None = None
    failed: ClientError | Failure | OSError | None = None
    try:
        with Shells(client, options) as shells:
            sources, end = ends(client, shells)
            copy.run(sources, end)
    except (ClientError, Failure, OSError) as error:
        failed = error
    if isinstance(end, str):
        # Nothing was copied: the new directory is still empty.
        with suppress(OSError):
            Path(end).rmdir()
    return CopyOutcome(id, copy.report, time.monotonic() - began, failed)
