"""``connmgr ssh``: a replacement for OpenSSH's ``ssh`` over the daemon's connections, for other programs."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from connmgr import __version__
from connmgr.cli import exits
from connmgr.cli.connect import Doorkeeper, connect, remedies
from connmgr.cli.plain import sent_environment
from connmgr.cli.selection import ConnectionName
from connmgr.cli.ssh.options import (
    AUTO,
    FORCE,
    YES,
    ForwardSpec,
    SshOptions,
    dynamic_forward,
    host_and_port,
    local_forward,
    parse,
    resolve,
)
from connmgr.cli.standard_streams import PipeEndpoint, Session, Signalled, die_by, end_stdout
from connmgr.client import Client, ClientError
from connmgr.client.pipe import Pipe
from connmgr.contract.shell import SFTP_SERVER
from connmgr.errors import ConnmgrError
from connmgr.printable import visible
from connmgr.streams.loop import Loop
from connmgr.streams.splice import Splice

if TYPE_CHECKING:
    from connmgr.streams.listener import Accepted

FAILED = 255
"""The exit code of ssh's own failures."""

MAX_STREAMS = 256
"""Most connections per forwarded port at a time; further ones wait."""


class _Host(ConnectionName):
    """Completes the connection; the words after it are a command for another machine."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        options = ctx.params["options"]
        return super().shell_complete(ctx, param, incomplete) if options and options.host is None else []


class SshCommand(click.Command):
    """Takes ssh's own options, and fails as ssh does: with one line on standard error, and 255."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # ssh has no long options; connmgr's stand before its own.
        long = [word for word in args[:1] if word == "--help"]
        super().parse_args(ctx, long)
        try:
            ctx.params["options"] = parse(args)
        except click.UsageError as error:
            # An incomplete line that is being completed need not be valid.
            if not ctx.resilient_parsing:
                raise _failure(error.message) from error
        return []

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Signalled as ended:
            die_by(ended.number)
        except ClientError as error:
            raise _failure(exits.failure(error).message) from error
        except click.ClickException as error:
            raise _failure(error.message) from error
        except ConnmgrError as error:
            raise _failure(error.message) from error
        except OSError as error:
            raise _failure(exits.io_failure(error).message) from error


class _Failure(click.ClickException):
    exit_code = FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"connmgr ssh: {self.message}", err=True, file=file)


def _failure(message: str) -> _Failure:
    return _Failure(" ".join(message.split("\n")))


@click.command(cls=SshCommand, context_settings={"help_option_names": ["--help"]}, options_metavar="[SSH'S OPTIONS]")
@click.argument("options", metavar="CONNECTION [COMMAND...]", type=_Host(), nargs=-1)
def ssh(options: SshOptions) -> None:
    """Act as ssh for rsync, git, scp, sftp and others.

    Standard input, output and error are those of the COMMAND on the connection, byte by byte, and so is the exit code.
    255 is connmgr's own failure, with a line on standard error. Without a COMMAND it is the login shell, on a terminal
    if standard input is one.

    The options are ssh's own, and so are their places: -t -T -n -f -N -L -D -W -s -l -p -e -G -v and many of -o do what
    they do there. Options that the stored connection or the daemon decides, such as -i or -c, are ignored; options that
    would silently do something else, such as -J or -R, are refused. docs/TOOLS.md lists them. connmgr-ssh is the same
    as one word.
    """
    if options.version:
        click.echo(f"connmgr {__version__}, with the options of OpenSSH", err=True)
        return
    if options.host is None:
        raise click.UsageError("Name a connection: connmgr ssh [ssh's options] CONNECTION [COMMAND...]")
    client = connect(offers_start=not options.batch)
    if options.batch:
        client.remedy(remedies(client, Doorkeeper(client), asks=False))
    id = resolve(client, options)
    if options.verbose and options.ignored:
        _tell(f"ignored: {' '.join(options.ignored)}")
    if options.describe:
        _describe(client, id, options.host)
    elif options.control is not None:
        _control(options.control)
    else:
        raise click.exceptions.Exit(_run(client, id, options))


def _run(client: Client, id: str, options: SshOptions) -> int:
    """Run what the options ask for, and return the exit status."""
    request = _request(options)
    if options.agent:
        _require_agent(client, id)
    elif options.agent is False and request is not None and "tcp" not in request:
        request["agent"] = False
    if request is not None and "tcp" not in request:
        request |= _environment(client, id, options)
    while True:
        try:
            return _once(client, id, options, request)
        except ClientError as error:
            # Nothing has begun, so the request may be repeated after a question about a host key or a passphrase.
            if not client.remedies(error, connection=id):
                raise


def _require_agent(client: Client, id: str) -> None:
    """Refuse ``-A`` where the connection does not allow it."""
    stored = client.connection.info([id])[0]
    if not stored.data.get("forwardAgent"):
        name = shlex.quote(stored.path)
        raise click.UsageError(
            f"-A: {name} forwards no ssh-agent; `connmgr edit {name} forwardAgent=true` allows it (type ssh)."
        )


def _environment(client: Client, id: str, options: SshOptions) -> dict[str, Any]:
    """Return the variables that the connection takes, and those that the command line names."""
    names = [name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in options.send_env)]
    env = {**{name: os.environ[name] for name in names}, **options.set_env}
    return {"send_env": sent_environment(client, connection=id), **({"env": env} if env else {})}


def _request(options: SshOptions) -> dict[str, Any] | None:
    """Return the request for the pipe, or None if no pipe is asked for."""
    command = " ".join(options.command)
    if options.stdio_to is not None:
        return {"tcp": host_and_port(options.stdio_to)}
    if options.no_command:
        return None
    if options.subsystem:
        if command != "sftp":
            raise click.UsageError(f"The remote host is asked for the subsystem sftp alone, not for {command!r}.")
        return {"argv": list(SFTP_SERVER)}
    members = {"command": command} if command else {}
    if not _takes_terminal(options, has_command=bool(command)):
        return members
    from connmgr.cli.standard_streams import size_of

    columns, rows = size_of(sys.stdin.fileno())
    term = os.environ.get("TERM") or "dumb"
    return {**members, "pty": True, "term": term, "columns": columns, "rows": rows}


def _takes_terminal(options: SshOptions, *, has_command: bool) -> bool:
    if options.tty == FORCE:
        return True
    asks = options.tty == YES or (options.tty == AUTO and not has_command)
    return asks and not options.no_input and not options.background and sys.stdin.isatty()


def _once(client: Client, id: str, options: SshOptions, request: dict[str, Any] | None) -> int:
    with contextlib.ExitStack() as opened:
        pipe = None if request is None else opened.enter_context(client.shell.pipe(id, **request))
        session = Session(pipe, reads=not (options.no_input or options.background))
        if options.local or options.dynamic or pipe is None:
            # The link must be open and working before anything listens or goes to the background.
            client.shell.ensure(id)
            specs = [local_forward(text) for text in options.local] + [
                dynamic_forward(text) for text in options.dynamic
            ]
            for spec in specs:
                forward = _Forward(session.loop, spec, lambda host, port: client.shell.pipe(id, tcp=(host, port)))
                opened.callback(forward.close)
        if options.background:
            _go_to_background()
        if request is not None and request.get("pty") and session.local is not None and sys.stdin.isatty():
            from connmgr.cli.standard_streams import on_terminal

            status = on_terminal(session, options.escape)
        else:
            if session.local is not None:
                session.local.output_ended = end_stdout
            status = session.run()
    return FAILED if status is None else status & 0xFF


class _Forward:
    """A local port whose connections continue from the remote host, until it is closed: ``ssh -L`` and ``ssh -D``.

    :raises OSError: the port is taken.
    """

    def __init__(self, loop: Loop, spec: ForwardSpec, open_tcp: Callable[[str, int], Pipe]) -> None:
        # Loaded only where a port is forwarded.
        from connmgr.streams.listener import PortListener

        self._loop, self._open_tcp = loop, open_tcp
        self._streams: set[Splice] = set()
        self._closed = False
        try:
            self._listener = PortListener(loop, (spec.host, spec.port), spec.to, self._join)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(spec)) from error
        if not spec.port:
            _tell(f"allocated port {self._listener.port}")
        self._listener.open()

    def close(self) -> None:
        """Stop listening, and end the streams."""
        self._closed = True
        self._listener.close()
        for stream in list(self._streams):
            stream.close()

    def _join(self, accepted: Accepted) -> None:
        try:
            pipe = self._open_tcp(*accepted.to)
        except ClientError as error:
            _tell(error.message)
            accepted.endpoint.answer(accepted.answer(False))
            accepted.endpoint.close()
            return
        # A SOCKS client is answered before the remote host has dialled; its stream ends if that fails.
        accepted.endpoint.answer(accepted.answer(True))
        # As with ssh: its client reads an end, whatever has failed, and the reason is on standard error.
        accepted.endpoint.resets = False
        far = PipeEndpoint(self._loop, pipe, failed=lambda error: _tell(error.message))
        stream = Splice(accepted.endpoint, far, early=accepted.early, ended=self._ended)
        if not stream.closed:
            self._streams.add(stream)
        if len(self._streams) >= MAX_STREAMS:
            self._listener.shut()

    def _ended(self, stream: Splice) -> None:
        self._streams.discard(stream)
        if not self._closed:
            self._listener.open()


def _go_to_background() -> None:
    """Continue in a process without a terminal, and end this one."""
    # As ssh -f does, after the login and before the command's output: whoever called sees that it works. No thread runs
    # yet that the child would lack.
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _describe(client: Client, id: str, host: str) -> None:
    """Print host, user and port of the connection, as `ssh -G` prints its configuration."""
    data = client.connection.info([id])[0].data
    settings = {"host": host, "hostname": data.get("host"), "user": data.get("user"), "port": data.get("port")}
    for name, value in settings.items():
        # A connection that runs in another one has that connection's uuid as its host.
        if value is not None:
            click.echo(f"{name} {visible(str(value))}")


def _control(command: str) -> None:
    """Answer the control command ``-O``; the daemon is the multiplexing master."""
    if command not in ("check", "exit", "stop"):
        raise click.UsageError(f"-O {command} is not possible: the daemon keeps the link.")
    if command == "check":
        click.echo("Master running (the daemon of connmgr)", err=True)


def _tell(message: str) -> None:
    click.echo(f"connmgr ssh: {visible(message)}", err=True)
