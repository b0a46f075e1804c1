"""``/shell/pipe``: a process on a connection, whose streams and exit status belong to one client."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from connmgr import errors
from connmgr.api.context import caller, cancellation, ground_of, note_forwarding
from connmgr.api.endpoint import Group
from connmgr.api.record import end_recorder
from connmgr.api.running import EXAMPLE, OPENING, program_of, sent_by, with_words
from connmgr.api.services import services
from connmgr.api.stream_endpoint import Begin, StreamEndpoint
from connmgr.contract.shell import Address, PipeRequest
from connmgr.engine.dialects import become
from connmgr.engine.envelope import words_alike
from connmgr.engine.kill import hang_up
from connmgr.engine.sandbox import sandboxed
from connmgr.engine.script import Source, exports, script_argv
from connmgr.links.channels import TcpChannel, open_on_link
from connmgr.links.link import Link
from connmgr.links.login import ResumedChannel
from connmgr.pipes.clients import WaitingClient
from connmgr.pipes.streams import Pipe
from connmgr.plugin import LEAST_SECONDS, Channel, Deadline, Pty
from connmgr.printable import in_one_line
from connmgr.rights.actions import Action
from connmgr.shell.commands import sandbox_of

HANG_UP_SECONDS = 10.0
LANGUAGE_SECONDS = 10.0
NOISE_BYTES = 64 * 1024
"""Most bytes that start files may print on a terminal before the program begins."""

_PLAIN_VARIABLE = re.compile(r"LANG|LC_[A-Z_]+|GIT_PROTOCOL")
"""Names that tools send, and that no shell keeps for itself: one may refuse to set others, and end (POSIX, 2.8.1)."""

_STREAM = Source("connmgr.engine", "stream")
_GIVEN = Source("connmgr.engine", "given")

group = Group(
    "pipe",
    "A process or a TCP stream for one client. A WebSocket carries every byte unchanged, as `ssh` does.",
    prefix="/shell",
)

FRAMES = (
    "101, and then the frames of a stream in both directions: input, output, standard error, and finally the exit "
    "status."
)


@group.endpoint(
    "/pipe",
    kind=StreamEndpoint,
    action=Action("shell.pipe", runs=True, takes_input=True, on_terminal=lambda request: request.pty),
    about=("connection", "command", "argv", "tcp"),
    selects=with_words,
    raises=[
        *OPENING,
        errors.UnknownCommand,
        errors.ShellLost,
        errors.UpgradeRequired,
        errors.BadFrame,
        errors.StreamLimit,
    ],
    waits=True,
    first_message=True,
    frames=FRAMES,
    example={"connection": EXAMPLE, "command": "tar -cf - /etc"},
)
def pipe(request: PipeRequest) -> Begin:
    """Start a process whose input, output and standard error are streams of this WebSocket.

    The first message is the request, as JSON. Failures come as a frame with an error. The process has neither the
    directory nor the variables of a shell. It gets HUP when its client leaves. What has left for a session of its own
    by then, as daemons do, and what ignores HUP runs on, as after a logout.
    """
    daemon, asking = services(), caller()
    daemon.streams.require_room(asking.holder)
    cookie, sandbox = secrets.token_hex(16), sandbox_of(asking.grant)
    if request.tcp is None:
        open = partial(_start, request, sent_by(request) or {}, cookie, sandbox)
    else:
        open = partial(_open_tcp, request.tcp)
    timeout, ground = daemon.settings.start_timeout, ground_of(request.connection)
    lease, channel = open_on_link(
        daemon.links, request.connection, asking.access, open, timeout, cancellation(), ground
    )
    note_forwarding(lease.link.first)
    record_end = end_recorder()

    def ended(status: int | None) -> None:
        lease.release()
        record_end(status)

    if _may_be_line(request) and not sandbox and lease.link.transport.can_learn_language:
        daemon.streams.loop.work(partial(lease.link.transport.learn_language, LANGUAGE_SECONDS))
    # git and scp often connect again soon, and then need no login.
    daemon.idle_links.keep(request.connection, lease)
    daemon.vault.connections.touch(request.connection)

    def hung_up(again: bool) -> bool:
        """Send HUP; return False if it could not be tried and may be tried again: not over a link that is lost."""
        # No second login for each attempt: one that fails again and again locks an account, or the daemon's address.
        transport = lease.link.first if again else lease.link.transport
        return hang_up(transport, cookie, HANG_UP_SECONDS) or not lease.link.alive

    def join(opening: WaitingClient) -> None:
        # Whatever fails in here, neither link nor process nor client may stay without an owner.
        with ExitStack() as unless_joined:
            unless_joined.callback(daemon.streams.loop.work, lease.release)
            unless_joined.callback(daemon.streams.loop.work, channel.close)
            unless_joined.callback(opening.abandon)
            Pipe(
                daemon.streams,
                opening,
                channel,
                request.connection,
                forwards_agent=lease.link.first.forwards_agent and request.tcp is None,
                hang_up=hung_up,
                when_ended=ended,
            )
            unless_joined.pop_all()

    return lambda opening: daemon.streams.loop.call(partial(join, opening))


def _may_be_line(request: PipeRequest) -> bool:
    """Whether the login shell itself may run the request, as a line of its language."""
    return request.command is not None and not request.pty


def _start(
    request: PipeRequest, sent: Mapping[str, str], cookie: str, sandbox: str, link: Link, timeout: float
) -> Channel:
    pty = Pty(request.term, request.columns, request.rows) if request.pty else None
    variables = {**link.environment.select(sent), **(request.env or {})}
    if not sandbox and _may_be_line(request) and all(map(_PLAIN_VARIABLE.fullmatch, variables)):
        # Three shells, one after the other, would take longer to start than many a command takes. The settings stand in
        # front of the command, and not in lines of their own, because shells count lines in their messages. bash
        # complains of a locale that the host lacks when it sets it, and not when it is started with it.
        setting = exports(variables, b" 2>/dev/null; ").decode() + f"export CONNMGR_STREAM={cookie}.$$; "
        setting += "" if request.agent else "unset SSH_AUTH_SOCK; "
        channel = link.transport.open_line(f"{setting}{request.command}", timeout=timeout)
        if channel is not None:
            return channel
    given = {name: value for name, value in variables.items() if not _PLAIN_VARIABLE.fullmatch(name)}
    shown = {name: value for name, value in variables.items() if name not in given}
    setting = "" if sandbox else exports(shown).decode() + (_GIVEN.text if given else "")
    if pty and request.modes:
        setting += f"stty {shlex.join(request.modes)} 2>/dev/null\n"
    script = setting + ("" if request.agent else "unset SSH_AUTH_SOCK; ") + _STREAM.one_line
    words: Sequence[str | bytes]
    if sandbox:
        inside = _words_of(request)
        if given:
            inside = (b"/bin/sh", b"-c", _GIVEN.text.encode() + b'exec "$@"', b"sh", *inside)
        script, words = become() + script, [b"argv", *sandboxed(inside, shown, sandbox)]
    elif request.argv is not None:
        script, words = become() + script, ["argv", *program_of(request.argv, request.env)]
    elif request.command is not None:
        plain = words_alike(request.command.encode())
        words = ["command", request.command] if plain is None else ["words", request.command, *plain]
    else:
        words = ["login" if pty else "shell"]
    argv = script_argv(script, [cookie, *words], own_locale=True)
    channel = link.transport.open_channel(argv, pty=pty, timeout=timeout)
    if given:
        channel = _give(channel, given, cookie if pty else None, Deadline(timeout))
    channel.expect_bulk()
    return channel


def _give(channel: Channel, variables: Mapping[str, str], mark: str | None, deadline: Deadline) -> Channel:
    """Send the line that sets ``variables`` in the process, before any input of its client; return the channel.

    With a ``mark`` it is on a terminal, which the process makes ready for the line and then as it was.

    :raises ShellLost: the process has ended, or takes no input.
    """
    line = exports(variables, b";").replace(b"\n", b"'\"$_cm_newline\"'")
    printed = bytearray()
    try:
        if mark is not None:
            _read_past(channel, f"{mark}:".encode(), printed, deadline)
        channel.sendall(line + b"\n", deadline.left(LEAST_SECONDS))
        if mark is not None:
            # What the client types before the terminal is as it was would be taken for what it is not.
            _read_past(channel, f"{mark}.".encode(), printed, deadline)
    except (EOFError, OSError) as error:
        channel.close()
        said = in_one_line(printed.decode(errors="replace"))
        reason = f": {said}" if said else "; try again."
        raise errors.ShellLost(f"The process ended before it had its variables{reason}") from error
    return ResumedChannel(channel, bytes(printed), b"", b"") if printed else channel


def _read_past(channel: Channel, mark: bytes, printed: bytearray, deadline: Deadline) -> None:
    """Add output to ``printed`` until the ``mark`` is there, and take it out.

    :raises EOFError, OSError: the process ends first, or the mark does not come in time.
    """
    while mark not in printed:
        if deadline.passed or len(printed) > NOISE_BYTES:
            raise TimeoutError
        printed += channel.recv(deadline.left())[0]
    at = printed.index(mark)
    del printed[at : at + len(mark)]


def _words_of(request: PipeRequest) -> tuple[bytes, ...]:
    """Return the argv of a request for the sandbox, which has the login shell's variables."""
    if request.argv is not None:
        return tuple(word.encode() for word in program_of(request.argv, request.env))
    run = b'exec "${SHELL:-/bin/sh}"' if request.command is None else b'exec "${SHELL:-/bin/sh}" -c "$1"'
    return (b"/bin/sh", b"-c", run, b"sh", (request.command or "").encode())


def _open_tcp(address: Address, link: Link, timeout: float) -> Channel:
    return TcpChannel(link.transport.open_tcp(address.host, address.port, timeout=timeout))
