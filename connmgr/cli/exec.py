"""``connmgr exec``: run a command on a connection, or on many."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from connmgr.cli import exits, standard_input
from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.duration import Duration
from connmgr.cli.names import ConnectionName
from connmgr.cli.outcome import (
    KILLED,
    as_object,
    ensure_shell,
    fresh_option,
    own_session,
    sent_environment,
    session_of,
    session_option,
    write_all,
)
from connmgr.cli.output import json_option
from connmgr.cli.progress import ahead_in, waiting
from connmgr.cli.selection import (
    Choice,
    Chosen,
    brief_option,
    check_brief,
    choosing,
    chosen,
    jobs_option,
    require_some,
)
from connmgr.cli.sudo import spelled_out, sudo_option
from connmgr.client import Client, ClientError
from connmgr.client.names import named
from connmgr.errors import ConnmgrError

if TYPE_CHECKING:
    from connmgr.cli.script import Script


_BEFORE_MARK = "connmgr.exec.before_mark"
"""The words of a command before a ``--`` within it, which a person may have meant as connections."""


class Target(ConnectionName):
    """A connection that is to run the command; the words after a single one, or after ``--``, are the command."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        begun = ctx.params["command"] is not None or (ctx.params["names"] and not ctx.params["everywhere"])
        return [] if begun else super().shell_complete(ctx, param, incomplete)


class ExecCommand(click.Command):
    """Gives connmgr's own failures exit codes that differ from the command's."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise exits.coded(error, exits.NOT_RUN) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            code = exits.TIMED_OUT if error.code == KILLED else exits.NOT_RUN
            raise exits.coded(exits.failure(error), code) from error
        except click.ClickException as error:
            raise exits.coded(error, exits.NOT_RUN) from error
        except ConnmgrError as error:
            raise exits.Failure(error.message, exits.NOT_RUN) from error
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # The reader closed the pipe; click then ends quietly.
                raise
            raise exits.coded(exits.io_failure(error), exits.NOT_RUN) from error


class _WithCommand(ExecCommand):
    """Reads its words as ssh does: options end at the connection, and the words after it are ``command``.

    A ``--`` right after the connection is dropped. With ``--all``, and for options after the connection, the ``--``
    marks where the command begins. ``command`` is None without a ``--`` and words after a connection.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = self._divided(ctx, args)
        rest = super().parse_args(ctx, own)
        ctx.params["command"] = None if command is None else tuple(command)
        return rest

    def _divided(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str] | None]:
        """Return connmgr's own words, and those of the command."""
        marked = args.index("--") if "--" in args else None
        own, marked_command = (args, None) if marked is None else (args[:marked], args[marked + 1 :])
        # Word by word, so that words of the command can be taken from ``args`` as they were typed.
        own = spelled_out(own)
        options, after = self._parsed(ctx, own, interspersed=False)
        if not after or options.get("everywhere"):
            return own, marked_command
        before, [name, *following] = own[: len(own) - len(after)], after
        if not following:
            return own, marked_command
        if not following[0].startswith("-"):
            if "--all" in following and marked is not None:
                raise click.UsageError(
                    f"--all could belong to connmgr, or to the command on {name}: write it before the connections, or "
                    f"write -- after {name}.",
                    ctx,
                )
            if marked is not None:
                ctx.meta[_BEFORE_MARK] = following
            return [*before, name], args[len(before) + 1 :]
        leading, rest = self._parsed(ctx, following, interspersed=False)
        if marked is None and (leading.get("saved") or leading.get("script")):
            # What runs is named, and the words behind the options are its arguments.
            return own[: len(own) - len(rest)], args[len(args) - len(rest) :]
        # No program is called like an option, so these are connmgr's, if the command is marked behind them.
        if marked is None or self._parsed(ctx, following, interspersed=True)[1]:
            raise click.UsageError(
                f"{following[0]} stands after the connection {name}, where the command begins. Write connmgr's options "
                f"before {name}, or -- behind them: `connmgr exec {name} {following[0]} … -- COMMAND...`.",
                ctx,
            )
        return own, marked_command

    def _parsed(self, ctx: click.Context, args: list[str], *, interspersed: bool) -> tuple[dict[str, Any], list[str]]:
        """Return the options in ``args``, and the other words: with ``interspersed`` all, else from the first on."""
        allowed, ctx.allow_interspersed_args = ctx.allow_interspersed_args, interspersed
        try:
            parser = self.make_parser(ctx)
        finally:
            ctx.allow_interspersed_args = allowed
        options, _, _ = parser.parse_args(list(args))
        names = options.pop("names", ())
        # Without any, click 8.1 has an empty tuple here, and later versions a mark of their own.
        return options, list(names) if isinstance(names, tuple) else []


@click.command(cls=_WithCommand)
@click.argument("names", metavar="CONNECTION COMMAND...", type=Target(), nargs=-1)
@click.option(
    "--all", "everywhere", is_flag=True, help="Run it on all matching connections; each CONNECTION is then a GLOB."
)
@choosing
@jobs_option()
@click.option(
    "--timeout",
    metavar="TIME",
    type=Duration(),
    help="Kill it after this time: 30s, 5m, 1h30m, or plain seconds.",
)
@click.option("--cwd", metavar="DIR", help="Run in this directory.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Set a variable for the command.")
@click.option(
    "--stdin", "reads", is_flag=True, help="Pass standard input to the command even from a terminal, or with --all."
)
@click.option("-n", "--no-stdin", "no_input", is_flag=True, help="Give the command no input, and leave standard input.")
@click.option(
    "--script",
    metavar="FILE",
    help="Run this script of this machine there by the program of its #! line; the words are its arguments. - is "
    "standard input.",
)
@click.option(
    "--argv", "as_argv", is_flag=True, help="The words after -- are a program and its arguments, which no shell reads."
)
@click.option(
    "--saved", metavar="COMMAND", help="Run a saved command; the words are its arguments, as in service=nginx."
)
@session_option
@fresh_option
@sudo_option
@brief_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Run nothing; print whether the daemon would run it, and which rule of the token decides.",
)
@click.option("--store", is_flag=True, help="Store a connection to USER@HOST under that name.")
@click.option("--detach", is_flag=True, help="Begin it as a job, which runs on by itself, and print the job's uuid.")
@click.option("--name", metavar="NAME", help="With --detach: a name for the job.")
@click.option(
    "--key", metavar="KEY", help="With --detach: begin no job if the connection already has one with this key."
)
@click.option(
    "--keep",
    metavar="TIME",
    type=Duration(least=0),
    help="With --detach: how long the job is kept after its end, 1d by default.",
)
@click.option(
    "--open-input", is_flag=True, default=None, help="With --detach: the job reads what `connmgr job input` sends."
)
@json_option
def exec(
    names: tuple[str, ...],
    command: tuple[str, ...] | None,
    env: tuple[str, ...],
    *,
    everywhere: bool,
    choice: Choice,
    jobs: int,
    timeout: float | None,
    cwd: str | None,
    reads: bool,
    no_input: bool,
    script: str | None,
    as_argv: bool,
    saved: str | None,
    session: str | None,
    fresh: bool,
    sudo: str | None,
    store: bool,
    detach: bool,
    dry_run: bool,
    brief: bool,
    as_json: bool,
    **of_job: Any,
) -> None:
    """Run a command in the shell of a connection. The shell is started if needed, and stays.

    As with ssh, options end at CONNECTION: all words after it are the command, except a -- right after it. They are
    joined by blanks into one command of that shell's language: quote a word with blanks for that shell too. Options may
    also stand between CONNECTION and a --. With --argv no shell reads the words: the first one is the program, each
    other one an argument, whatever characters it contains. --saved runs a command of `connmgr command save`, --script a
    script of this machine. Output appears as it is printed, byte by byte and without a limit, and the exit code is the
    command's. The command is killed after --timeout, by Ctrl-C, and when it prints after the reader of its output has
    ended.

    As with ssh, the command reads standard input if that is a pipe, a socket or a file: of any size, as fast as the
    command reads. From a terminal it does so only with --stdin. Like ssh it also takes what it does not need: in
    `while read host; do connmgr exec $host uptime; done < hosts` the first command takes all other hosts, and -n
    prevents that. With --all and --detach standard input is read only with --stdin, whole and at most 11 MiB; without
    it, input that is there is refused, unless -n leaves it. With --all every command gets all of it.

    CONNECTION may also be the address of a machine without a stored connection, USER@HOST or
    ssh://[USER@]HOST[:PORT]: ~/.ssh/config of the daemon's user applies to it, and it is forgotten a minute after its
    shell has ended.

    With --all it runs on all connections that match one of the GLOBs in place of CONNECTION; write -- before the
    command. When all have ended, each output is printed once, below the names of the connections that share it; then
    come failures and a summary. With --brief each connection gets one line when it finishes. The exit code is 1 if any
    failed. With --json there is one object, or with --all one per line, with the whole output, when the command has
    ended. --failed reads such lines, and repeats the command where it failed. --category, --type, --failed and --limit
    go with --all.

    With --sudo it runs as root or another user, in a shell of its own, which stays too. Nothing needs to be stored
    but the password, and that only if nobody is there to be asked; a token needs the scope elevate.

    With --detach the command becomes a job: it goes on without this program, the daemon and the link to its machine.
    See `connmgr job`. With --all too there is one on each connection, and `connmgr job wait` waits for all of them.
    """
    _check(of_job, detach=detach, everywhere=everywhere, reads=reads, store=store, dry_run=dry_run)
    check_brief(brief=brief, everywhere=everywhere, as_json=as_json)
    _check_what(script, saved, as_argv=as_argv, detach=detach, dry_run=dry_run)
    own = "--script -" if script == standard_input.WORD else "--failed -" if choice.reads_stdin else None
    if reads and (no_input or own):
        raise click.UsageError("Give --stdin or -n." if no_input else f"{own} reads standard input itself.")
    no_input = no_input or own is not None
    lacks_words = saved is not None or script is not None
    targets, words = _parted(names, command, choice, everywhere=everywhere, lacks_words=lacks_words)
    session = session_of(session, fresh=fresh)
    options: dict[str, Any] = {} if script is not None else _what_runs(words, saved, as_argv=as_argv)
    options |= {"timeout": timeout, "cwd": cwd, "env": _assigned(env, "--env"), "session": session}
    if fresh and not detach:
        options["fresh"] = True
    if sudo is not None:
        options["elevate"] = {"user": sudo}
    # It may read a passphrase from standard input, before anything else does.
    client = connect()
    _refuse_connections(client, targets, click.get_current_context().meta.get(_BEFORE_MARK, ()))
    local = None if script is None else _script(script, words)
    if everywhere or detach:
        option = "--open-input" if of_job["open_input"] else "--all" if everywhere else "--detach"
        options |= _whole_input(option, reads=reads, no_input=no_input)
    if everywhere:
        selected = chosen(client, targets, choice, usage="shell")
        options["send_env"] = sent_environment(client, connections=[one.id for one in selected.names])
        of_each = of_job | {"sudo": sudo, "fresh": fresh} if detach else None
        _run_everywhere(client, selected, options, jobs, of_each, local, as_json=as_json, brief=brief)
        return
    connection = targets[0]
    id = reach(client, connection, store=store)
    if sudo is not None and not dry_run:
        # With an id of its own, it is like any other connection from here on.
        del options["elevate"]
        id = client.connection.elevate(id, sudo)
    if dry_run:
        from connmgr.cli.foretold import foretell

        takes = {"input": "body"} if reads or (not no_input and standard_input.is_there()) else {}
        foretell(client, {"connection": id, **options, **takes}, as_json=as_json)
        return
    options["send_env"] = sent_environment(client, connection=id)
    if detach:
        from connmgr.cli.detach import start_job

        start_job(client, id, connection, fresh=fresh, **options, **of_job, as_json=as_json)
        return
    if reads or (not no_input and standard_input.is_there()):
        options["stdin"] = standard_input.StandardInput()
    raise click.exceptions.Exit(_attend(client, id, connection, options, local, as_json=as_json))


def _attend(client: Client, id: str, name: str, options: dict[str, Any], local: Script | None, *, as_json: bool) -> int:
    """Run a command, or a ``local`` script, on one connection to its end, and return its exit code."""
    ahead = None if options.get("fresh") else ahead_in(client, id, options["session"])
    with ExitStack() as placed:
        if local is not None:
            if options.pop("fresh", False):
                options["session"] = placed.enter_context(own_session(client, id))
            ensure_shell(client, id, options["session"], name)
            options["argv"] = placed.enter_context(local.placed(client, id, options["session"]))
        with waiting(name, ahead) as over:
            return _run(client, id, name, options, over, as_json=as_json)


def _refuse_connections(client: Client, targets: Sequence[str], words: Sequence[str]) -> None:
    """Raise UsageError if all ``words`` are connections, so that the command is only what follows the ``--``."""
    if words and all(named(client.connection, word) for word in words):
        everyone = shlex.join([*targets, *words])
        raise click.UsageError(f"For several connections write `connmgr exec --all {everyone} -- …`.")


def _run(
    client: Client, id: str, name: str, options: dict[str, Any], over: Callable[[], None], *, as_json: bool
) -> int:
    """Run a command whose input may be standard input, show its outcome, and return its exit code."""
    source = options.get("stdin")
    if source is not None:
        there = source.read_what_is_there()
        options["stdin"] = source if there is None else there or None
    try:
        if as_json:
            return _print_object(client, id, options, over)
        return _print_as_it_comes(client, id, name, options, over)
    except ClientError as error:
        if options.get("stdin") is not None:
            standard_input.add_hint(error)
        raise


def _whole_input(option: str, *, reads: bool, no_input: bool) -> dict[str, Any]:
    """Return the member ``stdin`` of a request with ``option`` that needs all input before it is sent."""
    if no_input:
        return {}
    if not reads:
        standard_input.refuse_unread(option)
        return {}
    if option == "--all":
        why, instead = "every command gets all of it", "Copy it as a file with `connmgr cp --all`."
    else:
        why = "a job's input is stored before it begins"
        instead = "Begin the job with --open-input, and send it with `connmgr job input`."
    return {"stdin": standard_input.StandardInput().read_whole(why=why, instead=instead)}


def _script(path: str, arguments: tuple[str, ...]) -> Script:
    # Imported here, because most commands need none of it.
    from connmgr.cli.script import Script

    return Script.read(path, arguments)


def _run_everywhere(
    client: Client,
    selected: Chosen,
    options: dict[str, Any],
    jobs: int,
    of_job: dict[str, Any] | None,
    script: Script | None,
    *,
    as_json: bool,
    brief: bool,
) -> None:
    if of_job is None:
        from connmgr.cli.fan_out import run_everywhere

        run_everywhere(client, selected, options, jobs, script=script, as_json=as_json, brief=brief)
        return
    from connmgr.cli.detach import start_everywhere

    options.pop("elevate", None)
    start_everywhere(client, selected, {**options, **of_job}, jobs, as_json=as_json)


def _what_runs(words: tuple[str, ...], saved: str | None, *, as_argv: bool) -> dict[str, Any]:
    if saved is not None:
        return {"saved": {"name": saved, "arguments": _assigned(words, "an argument") or {}}}
    return {"argv": words} if as_argv else {"command": " ".join(words)}


def _parted(
    names: tuple[str, ...],
    command: tuple[str, ...] | None,
    choice: Choice,
    *,
    everywhere: bool,
    lacks_words: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the connections that are named, and the words of the command.

    A command that ``lacks_words`` needs none.
    :raises click.UsageError: one is missing, or the words cannot be told apart.
    """
    if everywhere:
        if command is None and not lacks_words:
            shown = shlex.join(names) or "GLOB..."
            raise click.UsageError(
                "With --all write -- between the connections and the command, as in "
                f"`connmgr exec --all {shown} -- COMMAND...`."
            )
        require_some(names, choice)
    else:
        if choice.given:
            raise click.UsageError(f"{', '.join(choice.given)} goes with --all.")
        if len(names) > 1:
            raise click.UsageError(f"For several connections write `connmgr exec --all {shlex.join(names)} -- …`.")
        if not names:
            raise click.UsageError("Missing argument 'CONNECTION'.")
    if not command and not lacks_words:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    return names, command or ()


def _check_what(script: str | None, saved: str | None, *, as_argv: bool, detach: bool, dry_run: bool) -> None:
    """Raise UsageError for several things to run, or a script that is run in a way that it cannot be."""
    if sum((as_argv, saved is not None, script is not None)) > 1:
        raise click.UsageError("Give one of --argv, --saved and --script.")
    if script is not None and (detach or dry_run):
        raise click.UsageError(f"--script does not go with {'--detach' if detach else '--dry-run'}.")


def _check(of_job: dict[str, Any], *, detach: bool, everywhere: bool, reads: bool, store: bool, dry_run: bool) -> None:
    """Raise UsageError for options that do not go together."""
    if everywhere and store:
        raise click.UsageError("--store is for one address, not for --all.")
    if everywhere and dry_run:
        raise click.UsageError("--dry-run is for one connection, not for --all.")
    if detach and dry_run:
        raise click.UsageError("--dry-run tells what becomes of a command, not of a job: leave out --detach.")
    if not detach and any(value is not None for value in of_job.values()):
        raise click.UsageError("--name, --key, --keep and --open-input are for --detach.")
    if reads and of_job["open_input"]:
        raise click.UsageError("Give --stdin or --open-input.")


def _print_as_it_comes(client: Client, id: str, name: str, options: dict[str, Any], over: Callable[[], None]) -> int:
    """Write the output of a command to ours as it comes, and return its exit code."""
    with client.shell.stream(id, start=True, **options) as stream:
        write_all(stream, name, over)
    assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
    return stream.exit_code


def _print_object(client: Client, id: str, options: dict[str, Any], over: Callable[[], None]) -> int:
    """Print the outcome of a command as JSON, and return its exit code."""
    from connmgr.cli.output import print_json

    try:
        result = client.shell.exec_bytes(id, start=True, **options)
    except ClientError as error:
        over()
        if error.code == KILLED:
            print_json(as_object(error))
        raise
    over()
    print_json(as_object(result))
    return result.exit_code


def _assigned(assignments: tuple[str, ...], hint: str) -> dict[str, str] | None:
    for assignment in assignments:
        if "=" not in assignment:
            raise click.BadParameter(f"{assignment!r} is not of the form NAME=VALUE.", param_hint=hint)
    return dict(one.split("=", 1) for one in assignments) or None
