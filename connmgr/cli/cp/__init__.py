"""``connmgr cp``: copy files and directories to and from connections."""

from __future__ import annotations

import click

from connmgr.cli.cp.copy import Copy, Options
from connmgr.cli.cp.places import STREAM, CopyPath, Place, Remote, place_of
from connmgr.cli.daemon import connect
from connmgr.cli.exits import FAILED, NOT_FOUND, Failure
from connmgr.cli.outcome import session_option
from connmgr.cli.progress import transferring
from connmgr.cli.selection import Choice, choosing, jobs_option
from connmgr.client import Client

DEFAULT_JOBS, MAX_JOBS = 8, 64


@click.command()
@click.argument("operands", metavar="SOURCE... TARGET", type=CopyPath(), nargs=-1)
@click.option("--recursive", "-r", is_flag=True, help="Copy directories with all that they hold.")
@click.option("--archive", "-a", "keep", is_flag=True, help="As -r, and keep links, modes and times as they are.")
@click.option("--checksum", "-c", is_flag=True, help="Leave what has the same SHA-256, whatever its time is.")
@click.option("--exclude", "excludes", metavar="GLOB", multiple=True, help="Leave out what bears such a name, or path.")
@click.option("--mode", metavar="OCTAL", help="Permissions of a new file.  [default: those of SOURCE]")
@click.option(
    "--all",
    "patterns",
    metavar="GLOB",
    multiple=True,
    help="Copy to all connections that match: TARGET is then :path.",
)
@choosing
@jobs_option(DEFAULT_JOBS, MAX_JOBS)
@session_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress on the terminal, and no summary.")
def cp(
    operands: tuple[str, ...],
    mode: str | None,
    patterns: tuple[str, ...],
    choice: Choice,
    jobs: int,
    session: str | None,
    *,
    recursive: bool,
    keep: bool,
    checksum: bool,
    excludes: tuple[str, ...],
    quiet: bool,
) -> None:
    """Copy files to, from or between connections.

    CONNECTION:path is a file of a connection. The path starts from the directory of the shell there, unless it is
    absolute or begins with ~/. A path that begins with / . or ~ is one of this machine, and - is standard input or
    output. With *, ? and [ in it the machine's shell expands it: put it in quotes. A directory as TARGET takes each
    file under its own name. Each file gets its name once it is there whole.

    With -r, a file that is there with the same size and time of change is left, so that a run that broke off goes on
    where it was. Files keep their times, and their modes but for what the umask takes away; links are left out. -a
    keeps links as links, the modes whole, and the times of new directories. Owners are never kept. With --checksum
    what has the same size and SHA-256 is left, single files too; both sides read these files for it.
    """
    if len(operands) < 2:
        raise click.UsageError("Name what to copy, and where to: SOURCE... TARGET.")
    options = Options(recursive or keep, keep, excludes, _bits(mode), checksum)
    *sources, target = operands
    client = connect()
    if patterns:
        from connmgr.cli.cp.everywhere import to_all

        to_all(client, patterns, choice, sources, target, options, jobs, session)
        return
    end = place_of(client, target, session)
    places = [place for text in sources for place in _expanded(client, place_of(client, text, session))]
    if len(places) > 1 and STREAM in (*places, end):
        raise click.UsageError("Standard input and output are one file: copy them by themselves.")
    with transferring(str(sources[0]), quiet=quiet) as progress:
        copy = Copy(client, options, progress)
        copy.run(places, end)
    copy.ledger.tell(summary=not quiet and (copy.has_trees or checksum or len(places) > 1))
    if copy.ledger.failures:
        raise click.exceptions.Exit(FAILED)


def _expanded(client: Client, place: Place) -> list[Place]:
    """Return the files that a path with wildcards matches on its connection; any other place as it is."""
    if not isinstance(place, Remote) or not place.has_wildcards:
        return [place]

    found = client.fs.glob(place.connection, place.path, session=place.session)
    if not found:
        raise Failure(f"{place}: nothing matches there.", NOT_FOUND)
    return [Remote(place.connection, one.name, place.session, place.name) for one in found]


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
