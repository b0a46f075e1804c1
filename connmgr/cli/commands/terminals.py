"""``connmgr terminal``: the terminals that the daemon keeps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from connmgr.cli.connect import connect
from connmgr.cli.exits import NOT_FOUND, Failure
from connmgr.cli.options import Group
from connmgr.cli.output import (
    ago,
    amount,
    check_new,
    command_text,
    json_option,
    lasting,
    plural,
    print_json,
    print_table,
    write_private,
)
from connmgr.cli.selection import find_exactly, on_matching
from connmgr.client import Client
from connmgr.client.names import split_elevation, with_beginning
from connmgr.contract.recording import RecordingInfo
from connmgr.contract.terminal import RUNNING, TerminalInfo
from connmgr.printable import gist, visible

_terminal_argument = click.argument("name", metavar="TERMINAL")


@click.group(cls=Group)
def terminal() -> None:
    """Look after terminals, which go on by themselves.

    `connmgr shell` opens one, and `connmgr shell --attach` comes back to it. Name a TERMINAL by its uuid, or by its
    connection if it is the only one there. For screen the first 8 digits of the uuid suffice.
    """


@terminal.command(name="ls")
@click.argument("pattern", metavar="[GLOB]", default="*")
@json_option
def ls(pattern: str, *, as_json: bool) -> None:
    """List terminals of the connections that GLOB matches.

    The oldest come first, each with its state, the number of attached clients, its age and its command. Ended terminals
    are listed for 5 minutes.
    """
    client = connect()
    answers = on_matching(client, pattern, client.terminal.query())
    if as_json:
        print_json(answers)
        return
    if answers:
        terminals = [TerminalInfo.read(members) for members in answers]
        paths = _paths(client, terminals)
        print_table([(info.terminal, visible(paths[info.connection]), *_details(info)) for info in terminals])


@terminal.command(name="screen")
@_terminal_argument
@json_option
def screen(name: str, *, as_json: bool) -> None:
    """Print the screen of a terminal.

    Blank lines at its end are left out.
    """
    client = connect()
    answer = client.terminal.screen(find_terminal(client, None, _require_name(name), reads=True, ended=True))
    if as_json:
        print_json(answer)
        return
    lines = list(answer["lines"])
    while lines and not lines[-1]:
        lines.pop()
    for line in lines:
        click.echo(visible(line))


@terminal.command(name="close")
@_terminal_argument
def close(name: str) -> None:
    """End a terminal: its program gets HUP."""
    client = connect()
    client.terminal.close(find_terminal(client, None, _require_name(name), ended=True))


@terminal.command(name="recordings")
@click.argument("pattern", metavar="[GLOB]", default="*")
@click.option("--search", metavar="TEXT", help="Print the lines that contain TEXT, in any case of its letters.")
@json_option
def recordings(pattern: str, search: str | None, *, as_json: bool) -> None:
    """List recordings of terminals on the connections that GLOB matches.

    The newest come first, each with its connection, when it began, how long it is, its size and its command. `connmgr
    shell --record` makes one. With --search each line has the recording and the seconds from its beginning.
    """
    client = connect()
    answers = [members for members in client.recording.query() if members["connection"] is not None or pattern == "*"]
    answers = on_matching(client, pattern, answers)
    if search is not None:
        _search(
            client, search, None if pattern == "*" else [members["recording"] for members in answers], as_json=as_json
        )
        return
    if as_json:
        print_json(answers)
        return
    # Not by their ids, of which some may have been removed.
    paths = {connection.id: connection.path for connection in client.connection.choose("*")} if answers else {}
    recorded = [RecordingInfo.read(members) for members in answers]
    if recorded:
        print_table([(info.recording, _place(paths, info.connection), *_facts(info)) for info in recorded])


@terminal.command(name="export")
@click.argument("recording", metavar="RECORDING")
@click.argument("target", metavar="[FILE]", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def export(recording: str, target: Path | None, *, force: bool) -> None:
    """Write a recording as an asciicast, version 3, which asciinema plays.

    RECORDING is its uuid or the beginning of it. Without FILE it is written to standard output. The file is readable by
    you alone, because a recording has all that was printed, secrets included.
    """
    if target is not None:
        check_new(target, force=force)
    client = connect()
    ids = with_beginning({members["recording"] for members in client.recording.query()}, recording)
    if len(ids) != 1:
        raise Failure(
            f"{plural(len(ids), 'recording')} of that name: `connmgr terminal recordings` lists them.", NOT_FOUND
        )
    content = client.recording.read(ids.pop())
    if target is None:
        click.echo(content, nl=False)
    else:
        write_private(target, content.decode(), replaces=force)


def _search(client: Client, text: str, recordings: list[str] | None, *, as_json: bool) -> None:
    if recordings == []:
        return
    answer = client.recording.search(text, recordings)
    if as_json:
        print_json(answer)
    else:
        for match in answer.matches:
            click.echo(f"{match.recording}  {match.seconds:.1f} s  {visible(match.text)}")
    if not answer.complete:
        click.echo("connmgr: there may be more; choose fewer recordings, or a longer text.", err=True)


def find_terminal(
    client: Client, connection: str | None, name: str, *, reads: bool = False, ended: bool = False
) -> str:
    """Return the uuid of the running terminal that ``name`` means, of ``connection`` if given.

    ``name`` is its uuid, ``""``, or the name of its connection; if ``reads``, the beginning of its uuid suffices. With
    ``ended`` a uuid may be that of a terminal that has ended.
    :raises Failure: there is none, or several, which are listed.
    """
    every = [TerminalInfo.read(members) for members in client.terminal.query()]
    running = [info for info in every if info.state == RUNNING]
    eligible = every if ended else running
    matches = [info for info in eligible if info.terminal == name.lower()]
    # An empty name, as of --attach alone, means the only terminal that runs.
    if not matches and not name:
        matches = running
    elif not matches:
        target = find_exactly(client, name)
        matches = [info for info in running if info.connection == target]
        begins = with_beginning({info.terminal for info in eligible}, name) if target is None and reads else []
        matches += [info for info in every if info.terminal in begins]
        if target is None and not matches:
            raise Failure(f"No such terminal runs: {visible(name)} is neither a uuid nor a connection.", NOT_FOUND)
    matches = [info for info in matches if connection in (None, info.connection)]
    if len(matches) == 1:
        return matches[0].terminal
    if not matches:
        raise Failure("No such terminal runs. `connmgr shell CONNECTION` opens one.", NOT_FOUND)
    paths = _paths(client, matches)
    lines = sorted(f"  {info.terminal}  {visible(paths[info.connection])}" for info in matches)
    raise Failure("\n".join([f"{len(matches)} terminals run; name one with --attach:", *lines]), NOT_FOUND)


def _paths(client: Client, terminals: Iterable[TerminalInfo]) -> dict[str, str]:
    ids = sorted({info.connection for info in terminals})
    return {info.id: info.path for info in client.connection.info(ids)}


def _require_name(name: str) -> str:
    """Return ``name``; an empty one would mean the only terminal."""
    if not name.strip():
        raise Failure("The name of the terminal is empty: `connmgr terminal ls` lists them.", NOT_FOUND)
    return name


def _details(info: TerminalInfo) -> tuple[str, ...]:
    state = info.state if info.exit_code is None else f"{info.state} {info.exit_code}"
    attached = f"{info.clients} attached" if info.clients else "-"
    command = gist(command_text(info.command or "shell"))
    return state, attached, ago(info.opened), command


def _place(paths: dict[str, str], connection: str | None) -> str:
    base, user = split_elevation(connection or "")
    return visible(paths.get(base, "(removed)")) + (f" as {visible(user)}" if user else "")


def _facts(info: RecordingInfo) -> tuple[str, ...]:
    length = "active" if info.active else lasting(info.seconds or 0.0)
    command = gist(info.command or "shell")
    return ago(info.began), length, amount(info.size), command
