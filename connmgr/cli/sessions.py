"""The shell session that a command uses: which one, as which user, how it starts, and what comes out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from connmgr.cli.exits import KILLED, TIMED_OUT
from connmgr.cli.output import lasting
from connmgr.cli.plain import SESSION_VARIABLE, own_or
from connmgr.client import Client, ClientError, RawResult
from connmgr.client.shells import ListedShell
from connmgr.contract.shell import BroadcastLine, fresh_session
from connmgr.processes import posix_session_of

OK = "ok"
"""The verdict on work that has succeeded on a connection; any other verdict is why it has not."""

BUSY_SECONDS = 60.0
"""Seconds to retry while the daemon has no free slot."""

session_option = click.option(
    "--session",
    metavar="NAME",
    envvar=SESSION_VARIABLE,
    help="Use the shell of this name, with its own directory and variables; - is the connection's own shell, which "
    "clients of the API share. $CONNMGR_SESSION names one too. By default each terminal, and each cron job, has its "
    "own.",
)

fresh_option = click.option(
    "--fresh", is_flag=True, help="Use a new shell, which is stopped afterwards: directory and variables are not kept."
)


def session_of(session: str | None, *, fresh: bool) -> str | None:
    """Return the session of the running command's shells: that of ``--session``, or of its terminal.

    None is the connection's own shell, or a new one for ``--fresh``, which outranks the environment.
    :raises click.UsageError: both are given.
    """
    if not fresh:
        return own_or(session)
    if click.get_current_context().get_parameter_source("session") == ParameterSource.COMMANDLINE:
        raise click.UsageError("Give --session or --fresh.")
    return None


def shell_label(session: str | None, user: str = "") -> str:
    """Return words for the shell with this session's name, which runs by sudo as ``user``, if that is one."""
    label = "the shared shell" if session is None else str(posix_session_of(session) or session)
    return f"{label} as {user}" if user else label


@contextlib.contextmanager
def own_session(client: Client, connection: str) -> Iterator[str]:
    """Yield the name of a new shell's session, which is stopped at the end of the block if it still runs."""
    # By chance, because other commands may use fresh shells of this connection at the same time.
    name = fresh_session()
    client.shell.start(connection, session=name)
    try:
        yield name
    finally:
        try:
            client.shell.stop(connection, session=name)
        except ClientError as error:
            if error.code != "no_shell":
                raise


def printed_until(error: ClientError) -> RawResult | None:
    """Return the output of a command killed at its timeout; None for any other ``error``."""
    # The error's details have the members of a line of /shell/broadcast, except the exit code.
    line = BroadcastLine.read({**error.details, "exitCode": TIMED_OUT}) if error.code == KILLED else None
    return None if line is None else RawResult.of(line)


def as_object(outcome: RawResult | ClientError) -> dict[str, Any]:
    """Return an outcome for JSON: exit code, or code and message of an error, and any output.

    Output is text without its final newline.
    """
    if isinstance(outcome, ClientError):
        head: dict[str, Any] = {"error": {"code": outcome.code, "message": outcome.message}}
        until = printed_until(outcome)
        members = {**head, **(_texts(until) if until else {})}
    else:
        members = {"exitCode": outcome.exit_code, **_texts(outcome)}
    return {**members, **_mark("restarted", is_so=is_new(outcome))}


def is_new(outcome: RawResult | ClientError) -> bool:
    """Whether the command had a new shell because the last one was lost."""
    return bool(outcome.details.get("restarted")) if isinstance(outcome, ClientError) else outcome.restarted


def _mark(name: str, *, is_so: bool) -> dict[str, bool]:
    return {name: True} if is_so else {}


def _texts(result: RawResult) -> dict[str, Any]:
    texts = {
        name: output.decode(errors="replace").removesuffix("\n")
        for name, output in (("stdout", result.stdout), ("stderr", result.stderr))
    }
    return {**texts, **_mark("truncated", is_so=result.truncated)}


SUDO, ROOT = "--sudo", "root"


def _user(_context: click.Context, _option: click.Parameter, user: str | None) -> str | None:
    if user is not None and not user.strip():
        raise click.BadParameter("no user is named; --sudo alone means root.")
    return user


sudo_option = click.option(
    SUDO,
    "sudo",
    callback=_user,
    metavar="[=USER]",
    help="Work as root, or as USER, by sudo; its password is that of `connmgr sudo-password`, or asked for.",
)


class WithSudo(click.Command):
    """A command with :data:`sudo_option`, whose value may be left out: it never takes the word after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(args: Sequence[str]) -> list[str]:
    """Return ``args`` with the user that a bare ``--sudo`` means; what follows ``--`` stays as it is."""
    end = args.index("--") if "--" in args else len(args)
    return [*(f"{SUDO}={ROOT}" if arg == SUDO else arg for arg in args[:end]), *args[end:]]


def at_work(shell: ListedShell) -> str:
    """Return the state of a shell in a few words, and for how long its command has run."""
    status, seconds = shell.status, shell.command_seconds
    if status.state == "lost":
        return "lost: the next command starts a new one"
    if seconds is not None:
        queue = f", {status.waiting} more wait" if status.waiting else ""
        return f"a command runs for {lasting(seconds)}{queue}"
    return f"idle for {lasting(status.idle)}" if status.state == "idle" else "in use"
