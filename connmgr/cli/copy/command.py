"""``connmgr cp``: copy files and directories to and from connections."""

from __future__ import annotations

import click

from connmgr.cli.connect import connect, raise_met
from connmgr.cli.copy.engine import Copy, locating
from connmgr.cli.copy.operands import CopyPath, Shells, expanded, is_of_address
from connmgr.cli.copy.paths import STREAM
from connmgr.cli.copy.plan import CopyOptions
from connmgr.cli.exits import FAILED
from connmgr.cli.output import json_option, print_json
from connmgr.cli.plain import umask as own_umask
from connmgr.cli.progress import transferring
from connmgr.cli.selection import Choice, brief_option, check_brief, choosing, chosen, jobs_option
from connmgr.cli.sessions import SUDO, WithSudo, fresh_option, session_of, session_option, sudo_option

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
    raise_met()
    if len(operands) < 2:
        raise click.UsageError("Name what to copy, and where to: SOURCE... TARGET.")
    check_brief(brief=brief, everywhere=bool(patterns), as_json=as_json)
    if patterns and store:
        raise click.UsageError("--store is for one address, not for --all.")
    session = session_of(session, fresh=fresh)
    # Read once, because reading the umask changes it for a moment.
    umask = 0 if keep else own_umask()
    options = CopyOptions(recursive or keep, keep, excludes, _bits(mode), checksum, umask, session, fresh, sudo)
    *sources, target = operands
    client = connect()
    if patterns:
        from connmgr.cli.copy.everywhere import to_all

        selected = chosen(client, patterns, choice, usage="shell")
        to_all(client, selected, sources, target, options, jobs, as_json=as_json, brief=brief)
        return
    if choice.given:
        raise click.UsageError(f"Only with --all: {', '.join(choice.given)}.")
    if store and not any(map(is_of_address, operands)):
        raise click.UsageError(f"--store is for USER@HOST:PATH, and none of {', '.join(operands)} is that.")
    if as_json and target == STREAM:
        raise click.UsageError("Standard output takes the file or --json, not both.")
    with Shells(client, options) as shells:
        end = shells.operand(target, store=store)
        starts = [one for text in sources for one in expanded(client, shells.operand(text, store=store))]
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
