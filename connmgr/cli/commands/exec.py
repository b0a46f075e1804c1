"""``connmgr exec``: run a command on a connection, or on many."""

from __future__ import annotations

import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from connmgr.cli.connect import connect, raise_error_of_front
from connmgr.cli.exits import KILLED, NOT_RUN, ExecCommand, Failure
from connmgr.cli.options import read_assignments
from connmgr.cli.output import Duration, json_option, plural, print_json
from connmgr.cli.plain import StandardInput, ensure_shell, feed, has_input, run_to_end, sent_environment, tell_restarted
from connmgr.cli.progress import ahead_in, waiting
from connmgr.cli.selection import (
    Choice,
    ConnectionName,
    Selection,
    brief_option,
    check_for_all,
    choosing,
    jobs_option,
    reach,
    require_some,
    select_connections,
)
from connmgr.cli.sessions import (
    BUSY_SECONDS,
    OK,
    as_object,
    fresh_option,
    is_new,
    own_session,
    printed_until,
    session_of,
    session_option,
    spelled_out,
    sudo_option,
)
from connmgr.client import Client, ClientError, RawOutcome, RawResult
from connmgr.client.names import resolve_name
from connmgr.client.repeat import Retry
from connmgr.printable import gist, visible

if TYPE_CHECKING:
    from connmgr.cli.fan_out import Gathered

_BEFORE_MARK = "connmgr.exec.before_mark"
"""The words of a command before a ``--`` within it, which a person may have meant as connections."""


class Target(ConnectionName):
    """A connection that is to run the command; the words after a single one, or after ``--``, are the command."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        has_command = ctx.params["command"] is not None or (ctx.params["names"] and not ctx.params["everywhere"])
        return [] if has_command else super().shell_complete(ctx, param, incomplete)


class _WithCommand(ExecCommand):
    """Reads its words as ssh does: options end at the connection, and the words after it are ``command``.

    A ``--`` right after the connection is dropped. With ``--all``, and for options after the connection, the ``--``
    marks where the command begins. ``command`` is None without a ``--`` and words after a connection.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click would take options of the command, such as those of `ls -l`, for connmgr's own.
        own, command = self._divide(ctx, args)
        rest = super().parse_args(ctx, own)
        ctx.params["command"] = None if command is None else tuple(command)
        return rest

    def _divide(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str] | None]:
        """Return the words for connmgr, and the words of the command."""
        marked = args.index("--") if "--" in args else None
        own, marked_command = (args, None) if marked is None else (args[:marked], args[marked + 1 :])
        # Word by word, so that words of the command can be taken from ``args`` as they were typed.
        own = spelled_out(own)
        options, after = self._parse(ctx, own, interspersed=False)
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
        leading, rest = self._parse(ctx, following, interspersed=False)
        if marked is None and (leading.get("saved") or leading.get("script")):
            # What runs is named, and the words behind the options are its arguments.
            return own[: len(own) - len(rest)], args[len(args) - len(rest) :]
        # No program is called like an option, so these are connmgr's, if the command is marked behind them.
        if marked is None or self._parse(ctx, following, interspersed=True)[1]:
            raise click.UsageError(
                f"{following[0]} stands after the connection {name}, where the command begins. Write connmgr's options "
                f"before {name}, or -- behind them: `connmgr exec {name} {following[0]} … -- COMMAND...`.",
                ctx,
            )
        return own, marked_command

    def _parse(self, ctx: click.Context, args: list[str], *, interspersed: bool) -> tuple[dict[str, Any], list[str]]:
        """Return the options in ``args``, and the other words: with ``interspersed`` all, else from the first on."""
        # The parser takes this setting from the context when it is made.
        allowed, ctx.allow_interspersed_args = ctx.allow_interspersed_args, interspersed
        try:
            parser = self.make_parser(ctx)
        finally:
            ctx.allow_interspersed_args = allowed
        options, _, _ = parser.parse_args(list(args))
        names = options.pop("names", ())
        # Without any, click 8.1 has an empty tuple here, and later versions a mark of their own.
        return options, list(names) if isinstance(names, tuple) else []


class ExecOptions(NamedTuple):
    """The options of ``connmgr exec`` that decide what runs, and how."""

    everywhere: bool
    timeout: float | None
    cwd: str | None
    env: tuple[str, ...]
    reads: bool
    no_input: bool
    script: str | None
    as_argv: bool
    saved: str | None
    session: str | None
    fresh: bool
    sudo: str | None
    dry_run: bool
    store: bool
    detach: bool
    name: str | None
    key: str | None
    keep: float | None
    open_input: bool | None

    @property
    def job(self) -> dict[str, Any]:
        """The options of a job, as the daemon takes them."""
        return {"name": self.name, "key": self.key, "keep": self.keep, "open_input": self.open_input}

    def check(self, choice: Choice) -> None:
        """Raise UsageError for options that do not go together."""
        if self.everywhere and self.store:
            raise click.UsageError("--store is for one address, not for --all.")
        if self.everywhere and self.dry_run:
            raise click.UsageError("--dry-run is for one connection, not for --all.")
        if self.detach and self.dry_run:
            raise click.UsageError("--dry-run tells what becomes of a command, not of a job: leave out --detach.")
        if not self.detach and any(value is not None for value in self.job.values()):
            raise click.UsageError("--name, --key, --keep and --open-input need --detach.")
        if self.reads and self.open_input:
            raise click.UsageError("Give --stdin or --open-input.")
        if sum((self.as_argv, self.saved is not None, self.script is not None)) > 1:
            raise click.UsageError("Give one of --argv, --saved and --script.")
        if self.script is not None and (self.detach or self.dry_run):
            raise click.UsageError(f"--script cannot be combined with {'--detach' if self.detach else '--dry-run'}.")
        if self.reads and self.no_input:
            raise click.UsageError("Give --stdin or -n.")
        if self.reads and (reader := self._reader_of_input(choice)):
            raise click.UsageError(f"{reader} reads standard input itself.")

    def leaves_input(self, choice: Choice) -> bool:
        """Whether the command gets no standard input: because of -n, or because another option reads it."""
        return self.no_input or self._reader_of_input(choice) is not None

    def takes_input(self, choice: Choice) -> bool:
        """Whether one command gets standard input as it comes."""
        return self.reads or (not self.leaves_input(choice) and has_input())

    def _reader_of_input(self, choice: Choice) -> str | None:
        return "--script -" if self.script == STREAM else "--failed -" if choice.reads_stdin else None

    def request(self, words: tuple[str, ...]) -> dict[str, Any]:
        """Return the members of a request that runs ``words``; a script's own come when it is in place."""
        members: dict[str, Any] = {}
        if self.saved is not None:
            members["saved"] = {"name": self.saved, "arguments": read_assignments(words, "an argument")}
        elif self.script is None:
            members |= {"argv": words} if self.as_argv else {"command": " ".join(words)}
        session = session_of(self.session, fresh=self.fresh)
        members |= {
            "timeout": self.timeout,
            "cwd": self.cwd,
            "env": read_assignments(self.env, "--env") or None,
            "session": session,
        }
        if self.fresh and not self.detach:
            members["fresh"] = True
        if self.sudo is not None:
            members["elevate"] = {"user": self.sudo}
        return members


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
@click.option(
    "-n", "--no-stdin", "no_input", is_flag=True, help="Give the command no input, and leave standard input unread."
)
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
    *,
    choice: Choice,
    jobs: int,
    brief: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run a command in the shell of a connection. The shell is started if needed, and stays.

    As with ssh, options end at CONNECTION: all words after it are the command, except a -- right after it. They are
    joined by blanks into one command of that shell's language: quote a word with blanks for that shell too. Options may
    also stand between CONNECTION and a --. With --argv no shell reads the words: the first one is the program, each
    other one an argument, whatever characters it contains. --saved runs a command of `connmgr command save`, --script a
    script of this machine. Output appears as it is printed, byte by byte and without a limit, and the exit code is the
    command's. The command is killed after --timeout, by Ctrl-C, and when it prints into a pipe that nobody reads any
    more, such as to `head`.

    As with ssh, the command reads standard input if that is a pipe, a socket or a file: of any size, as fast as the
    command reads. From a terminal it does so only with --stdin. Like ssh it reads more than the command needs: in
    `while read host; do connmgr exec $host uptime; done < hosts` the first command swallows the other hosts, unless -n
    is given. With --all and --detach standard input is read only with --stdin, whole and at most 11 MiB, and with --all
    every command gets all of it. Input without --stdin is then an error, unless -n says to leave it unread.

    CONNECTION may also be the address of a machine without a stored connection, USER@HOST or
    ssh://[USER@]HOST[:PORT]: ~/.ssh/config of the daemon's user applies to it, and it is forgotten a minute after its
    shell has ended.

    With --all it runs on all connections that match one of the GLOBs in place of CONNECTION; write -- before the
    command. When all have ended, each output is printed once, below the names of the connections that share it; then
    come failures and a summary. With --brief each connection gets one line when it finishes. The exit code is 1 if any
    failed. With --json there is one object, or with --all one per line, with the whole output, when the command has
    ended. --failed reads such lines, and repeats the command where it failed. --category, --type, --failed, --limit and
    --jobs need --all.

    With --sudo it runs as root or another user, in a shell of its own, which stays too. sudo's password is asked for,
    unless it is stored (`connmgr sudo-password`); a token needs the scope elevate.

    With --detach the command becomes a job: it runs on without this program, the daemon and the link to its machine.
    See `connmgr job`. With --all and --detach there is one job on each connection; `connmgr job wait` waits for them.
    """
    raise_error_of_front()
    options = ExecOptions(**flags)
    options.check(choice)
    check_for_all(brief=brief, everywhere=options.everywhere, as_json=as_json)
    targets, words = _targets_and_words(options, names, command, choice)
    request = options.request(words)
    # It may read a passphrase from standard input, before anything else does.
    client = connect()
    _refuse_connections(client, targets)
    script = _read_script(options, words)
    request |= _whole_input(options, choice) if options.everywhere or options.detach else {}
    if options.everywhere:
        selected = select_connections(client, targets, choice, usage="shell")
        _run_on_all(client, selected, options, request, script, jobs, as_json=as_json, brief=brief)
        return
    connection = reach(client, targets[0], store=options.store)
    if options.dry_run:
        takes = {"input": "body"} if options.takes_input(choice) else {}
        _print_decision(client, {"connection": connection, **request, **takes}, as_json=as_json)
        return
    if elevate := request.pop("elevate", None):
        # With an id of its own, it is like any other connection from here on.
        connection = client.connection.elevate(connection, elevate["user"])
    request["send_env"] = sent_environment(client, connection=connection)
    if options.detach:
        from connmgr.cli.commands.jobs import start_job

        start_job(client, connection, targets[0], fresh=options.fresh, as_json=as_json, **request, **options.job)
        return
    if options.takes_input(choice):
        request["stdin"] = StandardInput()
    raise click.exceptions.Exit(_run_on_one(client, connection, targets[0], request, script, as_json=as_json))


def _targets_and_words(
    options: ExecOptions, names: tuple[str, ...], command: tuple[str, ...] | None, choice: Choice
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the connections that are named, and the words of the command.

    :raises click.UsageError: one is missing, or the words cannot be told apart.
    """
    lacks_words = options.saved is not None or options.script is not None
    if options.everywhere:
        if command is None and not lacks_words:
            example = shlex.join(names) or "GLOB..."
            raise click.UsageError(
                "With --all write -- between the connections and the command, as in "
                f"`connmgr exec --all {example} -- COMMAND...`."
            )
        require_some(names, choice)
    else:
        if choice.options:
            raise click.UsageError(f"Only with --all: {', '.join(choice.options)}.")
        if len(names) > 1:
            raise click.UsageError(f"For several connections write `connmgr exec --all {shlex.join(names)} -- …`.")
        if not names:
            raise click.UsageError("Missing argument 'CONNECTION'.")
    if not command and not lacks_words:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    return names, command or ()


def _refuse_connections(client: Client, targets: Sequence[str]) -> None:
    """Raise UsageError if the words before a ``--`` are all connections, so that the command is only what follows."""
    words = click.get_current_context().meta.get(_BEFORE_MARK, ())
    if words and all(resolve_name(client.connection, word) for word in words):
        everyone = shlex.join([*targets, *words])
        raise click.UsageError(f"For several connections write `connmgr exec --all {everyone} -- …`.")


def _read_script(options: ExecOptions, arguments: tuple[str, ...]) -> Script | None:
    if options.script is None:
        return None
    return Script.read(options.script, arguments)


def _whole_input(options: ExecOptions, choice: Choice) -> dict[str, Any]:
    """Return the member ``stdin`` of a request that needs all input before it is sent."""
    if options.leaves_input(choice):
        return {}
    if not options.reads:
        refuse_unread_input("--open-input" if options.open_input else "--all" if options.everywhere else "--detach")
        return {}
    if options.everywhere:
        why, instead = "every command gets all of it", "Copy it as a file with `connmgr cp --all`."
    else:
        why = "a job's input is stored before it begins"
        instead = "Begin the job with --open-input, and send it with `connmgr job input`."
    return {"stdin": read_whole_input(why=why, instead=instead)}


def _run_on_all(
    client: Client,
    selected: Selection,
    options: ExecOptions,
    request: dict[str, Any],
    script: Script | None,
    jobs: int,
    *,
    as_json: bool,
    brief: bool,
) -> None:
    request["send_env"] = sent_environment(client, connections=[name.id for name in selected.names])
    if options.detach:
        from connmgr.cli.commands.jobs import start_everywhere

        request.pop("elevate", None)
        of_each = {**request, **options.job, "sudo": options.sudo, "fresh": options.fresh}
        start_everywhere(client, selected, of_each, jobs, as_json=as_json)
        return
    from connmgr.cli.fan_out import report

    if script is None:
        work = partial(_broadcast, client, options={**request, "parallel": jobs})
    else:
        work = partial(_run_script, client, script, options=request, jobs=jobs)
    report(client, selected, options.sudo, work, as_json=as_json, brief=brief)


def _run_on_one(
    client: Client, connection: str, name: str, request: dict[str, Any], script: Script | None, *, as_json: bool
) -> int:
    """Run a command, or a ``script``, on one connection to its end, and return its exit code."""
    ahead = None if request.get("fresh") else ahead_in(client, connection, request["session"])
    with ExitStack() as placed:
        if script is not None:
            if request.pop("fresh", False):
                request["session"] = placed.enter_context(own_session(client, connection))
            ensure_shell(client, connection, request["session"], name)
            request["argv"] = placed.enter_context(script.placed(client, connection, request["session"]))
        with waiting(name, ahead) as over:
            return _attend(client, connection, name, request, over, as_json=as_json)


def _attend(
    client: Client, connection: str, name: str, request: dict[str, Any], over: Callable[[], None], *, as_json: bool
) -> int:
    """Run a command whose input may be standard input, show its outcome, and return its exit code."""
    with feed(request):
        if as_json:
            return _print_object(client, connection, request, over)
        return run_to_end(client.shell.stream(connection, start=True, **request), name, over)


def _print_object(client: Client, connection: str, request: dict[str, Any], over: Callable[[], None]) -> int:
    """Print the outcome of a command as JSON, and return its exit code."""
    try:
        result = client.shell.exec_bytes(connection, start=True, **request)
    except ClientError as error:
        over()
        if error.code == KILLED:
            print_json(as_object(error))
        raise
    over()
    print_json(as_object(result))
    return result.exit_code


_EFFECTS = {"allow": "would run", "ask": "would wait for an approval", "deny": "would be refused"}


def _print_decision(client: Client, request: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the daemon's decision about a request to ``/shell/exec``; exit with 125 unless it would run."""
    members = {name: value for name, value in request.items() if value is not None}
    decision = client.post("/token/check", path="/shell/exec", request=members)
    if as_json:
        print_json(decision)
    else:
        click.echo(_decision(decision))
    if decision["effect"] != "allow":
        raise click.exceptions.Exit(NOT_RUN)


def _decision(decision: Mapping[str, Any]) -> str:
    rule = "" if decision["rule"] is None else f" by rule {visible(str(decision['rule']))}"
    run_as = f": {visible(shlex.join(decision['argv']))}" if "argv" in decision else ""
    why = f" ({decision['code']}: {visible(decision['message'])})" if "code" in decision else ""
    return f"It {_EFFECTS[decision['effect']]}{rule}{why}{run_as}"


STREAM = "-"
"""Standard input in place of a file."""

SILENT_SECONDS = 0.5
"""Time after which a pipe without input counts as one that nobody writes."""

MAX_WHOLE_BYTES = 11 << 20
"""Most input that is sent with a request: in base64 it fits into the daemon's 16 MiB, beside a command of 1 MiB."""


def read_whole_input(*, why: str, instead: str) -> bytes:
    """Return all standard input, read to its end.

    :raises Failure: it is larger than a request may be; ``why`` it has to fit there, and what to do ``instead``.
    """
    content = StandardInput().read_up_to(MAX_WHOLE_BYTES)
    if len(content) > MAX_WHOLE_BYTES:
        limit = f"{MAX_WHOLE_BYTES >> 20} MiB"
        raise Failure(f"Nothing was run: standard input has more than {limit}, and {why}. {instead}", NOT_RUN)
    return content


def refuse_unread_input(option: str) -> None:
    """Make sure that nothing is dropped in silence: with ``option`` standard input is not read unless asked for.

    :raises Failure: there is input.
    """
    if not has_input():
        return
    # The program before a pipe may need a moment; CI and cron leave one open that stays silent.
    news = select.poll()
    news.register(0, select.POLLIN)
    news.poll(SILENT_SECONDS * 1000)
    source = StandardInput()
    if source.read_what_is_there() == b"":
        return
    instead = "Use `connmgr job input`" if option == "--open-input" else "Give --stdin"
    if source.has_begun:
        raise Failure(
            f"Nothing was run: there is standard input, which {option} does not read. "
            f"{instead} to pass it on, or give -n to leave it.",
            NOT_RUN,
        )
    click.echo(f"connmgr: {option} does not read standard input. {instead} to pass it on, or give -n.", err=True)


INTERPRETER = "/bin/sh"
"""Runs a script without a ``#!`` line, as shells do."""


class Script(NamedTuple):
    """A script, and the arguments for it."""

    content: bytes
    arguments: Sequence[str]

    @classmethod
    def read(cls, path: str, arguments: Sequence[str]) -> Script:
        """Read the script at ``path``, or on standard input.

        :raises Failure: its first line cannot name an interpreter.
        """
        content = sys.stdin.buffer.read() if path == STREAM else Path(path).expanduser().read_bytes()
        script = cls(content, tuple(arguments))
        if not script.interpreter:
            raise Failure(f"{path}: nothing was run: the line #! names no interpreter.", NOT_RUN)
        return script

    @property
    def interpreter(self) -> list[str]:
        """The program of the ``#!`` line, with at most one argument, as the kernel reads it (execve(2))."""
        first = self.content.partition(b"\n")[0]
        if not first.startswith(b"#!"):
            return [INTERPRETER]
        return first[2:].strip().decode(errors="surrogateescape").split(None, 1)

    @contextmanager
    def placed(self, client: Client, connection: str, session: str | None) -> Iterator[list[str]]:
        """Put the script on a connection's machine, yield the words that run it, and remove it.

        The connection's shell must run. The file is executable by its owner alone.
        """
        path = client.fs.script(connection, client.fs.blob(self.content), session=session)
        try:
            # A file system may forbid execution, so the interpreter is named.
            yield [*self.interpreter, path, *self.arguments]
        finally:
            directory = PurePosixPath(path).parent
            try:
                client.fs.remove(connection, str(directory), recursive=True, session=session)
            except ClientError as error:
                # A shell that stops removes its scripts.
                if error.code not in ("no_shell", "no_such_file"):
                    click.echo(f"connmgr: {visible(str(directory))} is left: {visible(error.message)}", err=True)


def _run_script(
    client: Client, script: Script, ids: Sequence[str], options: dict[str, Any], jobs: int
) -> Iterator[ExecOutcome]:
    """Run ``script`` on the connections ``ids``, at most ``jobs`` at a time, and yield the outcome on each."""
    from connmgr.cli.fan_out import in_threads

    def outcome(own: Client, id: str) -> ExecOutcome:
        start = time.monotonic()
        result: RawResult | ClientError
        try:
            result = _retry_while_busy().call(lambda: _script_result(own, script, id, dict(options)))
        except ClientError as error:
            result = error
        return ExecOutcome(RawOutcome(id, (), time.monotonic() - start, result))

    return in_threads(client, ids, outcome, jobs)


def _script_result(client: Client, script: Script, id: str, options: dict[str, Any]) -> RawResult:
    if elevate := options.pop("elevate", None):
        id = client.connection.elevate(id, elevate["user"])
    if options.pop("fresh", False):
        with own_session(client, id) as session:
            return _script_result(client, script, id, {**options, "session": session})
    # The shell must run before the file is put beside it, and it may have been lost before: that is said once.
    restarted = client.shell.ensure(id, session=options["session"])
    with script.placed(client, id, options["session"]) as argv:
        result = client.shell.exec_bytes(id, argv=argv, **options)
    return result._replace(restarted=restarted or result.restarted)


CONNECTIONS_PER_REQUEST = 1000

GIST_CHARACTERS = 100
"""Characters of output shown in a line."""


def _broadcast(client: Client, ids: list[str], options: dict[str, Any]) -> Iterator[ExecOutcome]:
    """Yield the outcome on each connection; if the answer breaks off, the missing ones get its error."""
    # The daemon takes so many connections with a request; each batch begins when the one before has ended.
    pending = iter(ids)
    while batch := dict.fromkeys(islice(pending, CONNECTIONS_PER_REQUEST)):
        start = time.monotonic()
        with _retry_while_busy().call(
            partial(client.shell.broadcast_bytes, connections=list(batch), **options)
        ) as outcomes:
            try:
                for outcome in outcomes:
                    del batch[outcome.connection]
                    yield ExecOutcome(outcome)
            except ClientError as error:
                for id in batch:
                    yield ExecOutcome(RawOutcome(id, (), time.monotonic() - start, error))


def _retry_while_busy() -> Retry:
    """Return what repeats a request while the daemon has no free slot; it has not begun then."""
    return Retry(BUSY_SECONDS, None, lambda error: error.code == "busy")


class ExecOutcome(NamedTuple):
    """The outcome of a command on one of many connections, as a :class:`connmgr.cli.fan_out.ShownOutcome`."""

    raw: RawOutcome

    @property
    def connection(self) -> str:
        return self.raw.connection

    @property
    def failure(self) -> ClientError | None:
        return self.raw.failure

    @property
    def verdict(self) -> str:
        if isinstance(self.raw.result, ClientError):
            return self.raw.result.code
        return f"exit {self.raw.result.exit_code}" if self.raw.result.exit_code else OK

    def as_object(self) -> dict[str, Any]:
        return {"seconds": round(self.raw.seconds, 3), **as_object(self.raw.result)}

    def show(self, name: str, width: int) -> None:
        click.echo(f"{name:<{width}}  {self.verdict:<7}  {self.raw.seconds:6.2f} s  {self._gist()}".rstrip())
        if is_new(self.raw.result):
            tell_restarted(name)

    def gather(self, gathered: Gathered, name: str) -> None:
        result = self.raw.result
        if is_new(result):
            tell_restarted(name)
        messages = [result.message] if isinstance(result, ClientError) else []
        output = printed_until(result) if isinstance(result, ClientError) else result
        if output is not None and output.truncated:
            messages.append("output beyond the daemon's max-output is missing")
        stdout, stderr = (b"", b"") if output is None else (output.stdout, output.stderr)
        gathered.add(name, self.verdict, stdout, stderr, " ".join(messages))

    def _gist(self) -> str:
        """Return the first line of output or error, and a count of the others."""
        result = self.raw.result
        if isinstance(result, ClientError):
            lines = result.message.splitlines()
        else:
            output = result.stderr if result.exit_code and result.stderr else result.stdout or result.stderr
            lines = output.decode(errors="replace").splitlines()
        if len(lines) < 2:
            return gist("".join(lines), GIST_CHARACTERS)
        return f"{gist(lines[0], GIST_CHARACTERS)}  (+{plural(len(lines) - 1, 'line')})"
