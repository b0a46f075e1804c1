"""The sessions of control sockets: what a client asks for, as a request of the pipeline, and its descriptors.

ssh calls a client a passenger that waits while its master moves the bytes.
"""

from __future__ import annotations

import os
import shlex
import stat
import termios
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from connmgr.cancellation import Cancellation
from connmgr.contract.shell import SFTP_SERVER
from connmgr.errors import Busy, ConnmgrError, InternalError, InvalidRequest
from connmgr.multiplex import packets
from connmgr.multiplex.packets import NewSession, StdioForward
from connmgr.pipes.clients import GOODBYE_SECONDS, AnsweringEndpoint
from connmgr.printable import visible
from connmgr.streams.endpoints import Outcome, Receiver
from connmgr.streams.escapes import Escapes
from connmgr.streams.frames import DATA, STDERR
from connmgr.streams.loop import Loop
from connmgr.streams.passed import PassedEndpoint, fault_of, size_of

FAILED = 255
"""The exit status of ssh's own failures."""

SIGNAL_SECONDS = 1.0
"""Time after which a client surely passes on its signals."""

USUAL_SIZE = (80, 24)
LOCALE = ("LANG", "LC_")
"""Beginnings of the names of variables that ssh sends unasked on most systems; the connection says which it takes."""

TURN_SECONDS = 20.0
"""Longest wait for a slot of requests that wait for machines."""

BUSY_SECONDS, LONGEST_BUSY_SECONDS = 0.1, 1.6
"""Interval between the first two attempts to get one, and the longest: each next one is twice as long."""

AGENT = "SSH_AUTH_SOCK"
"""A variable that is for the daemon alone: where the client's ssh-agent listens."""

PIPE, LOGIN = "/shell/pipe", "/connection/login"


class Sender(Protocol):
    """Whose rights a control socket has: the caller that opened it."""

    @property
    def token(self) -> str | None: ...

    @property
    def holder(self) -> str | None: ...

    @property
    def ended(self) -> bool: ...


class Pipeline(Protocol):
    """The way to the endpoints, with all checks. Its methods wait, and are called in threads that may."""

    def stream(self, sender: Sender, path: str, passenger: Passenger) -> None:
        """Have the endpoint ``path`` serve a client, or refuse it."""

    def post(self, sender: Sender, path: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of the endpoint ``path`` to a request with ``members``; raise its error."""


class Served(Protocol):
    """The control socket at which a passenger waits."""

    @property
    def connection(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def sender(self) -> Sender: ...


class AnsweredClient(Protocol):
    """The client that a passenger is: where it gets its answers."""

    closed: bool
    forwards: list[Mapping[str, Any]]

    @property
    def at(self) -> Served: ...

    def answer(self, *members: int | bytes) -> None:
        """Send a packet of these members."""

    def refuse(self, number: int, why: str, kind: int = ...) -> None:
        """Refuse the request with this ``number``."""

    def finish(self) -> None:
        """Close once all answers are sent."""

    def close(self) -> None:
        """Close at once."""


class Shared(Protocol):
    """What all clients of control sockets share."""

    loop: Loop
    pipeline: Pipeline

    def number(self) -> int:
        """Return a number for a session."""

    def passengers_of(self, at: Served) -> list[Passenger]:
        """Return the sessions that were begun at a control socket."""

    def left(self, client: Any) -> None:
        """Handle that a client is gone."""

    def why_busy(self, at: Served) -> str | None:
        """Return why no further client of a control socket may begin anything now, or None."""

    def keep(self, at: Served, forward: Mapping[str, Any], *, lasts: bool) -> None:
        """Note that a forward lasts without the client that has opened it, or no longer does."""

    def is_kept(self, at: Served, forward: Mapping[str, Any]) -> bool:
        """Whether a forward lasts, or another client has asked for it."""


class Passenger:
    """A client that waits for its session: its request for the pipeline, and its place in the stream that begins.

    It implements :class:`connmgr.pipes.clients.WaitingClient`. Its methods belong to the thread of the loop.
    """

    def __init__(
        self, host: Shared, client: AnsweredClient, request: NewSession | StdioForward, descriptors: list[int]
    ) -> None:
        self._host, self._client, self._request = host, client, request
        self._descriptors: list[int] | None = descriptors
        self._session = request if isinstance(request, NewSession) else None
        self.id = host.number()
        self._endpoint: PassengerEndpoint | None = None
        self._agent: str | None = None
        self._until, self._pause = time.monotonic() + TURN_SECONDS, BUSY_SECONDS
        self.sender = client.at.sender
        self.cancellation = Cancellation()
        self.members: dict[str, Any] = {}
        """The request for the pipeline, as JSON has it."""

    @property
    def token(self) -> str | None:
        """The id of the token with which the stream ends; None for the owner."""
        return self.sender.token

    @property
    def holder(self) -> str | None:
        """Whose share of the streams it counts for."""
        return self.sender.holder

    @property
    def session(self) -> None:
        """None: a passenger is not a page."""

    @property
    def has_ended(self) -> Callable[[], bool]:
        """Returns whether that token has become invalid."""
        return lambda: self.sender.ended

    @property
    def on_terminal(self) -> bool:
        """Whether its process gets a terminal."""
        return self._session is not None and self._session.wants_terminal

    def begin(self, why_busy: str | None = None) -> None:
        """Send the request through the pipeline, unless too many of others are there (``why_busy``)."""
        assert self._descriptors is not None, "it has just begun"  # noqa: S101
        try:
            if why_busy is not None:
                raise Busy(why_busy)
            if (fault := fault_of(self._descriptors)) is not None:
                raise InvalidRequest(fault)
            if self._session is not None:
                self._agent = _text(self._session.environment.get(AGENT.encode(), b""), AGENT) or None
                self.members = _of_session(self._client.at.connection, self._session, self._descriptors[0])
            else:
                self.members = _of_stream(self._client.at.connection, self._request)
        except ConnmgrError as error:
            self._tell(error)
        else:
            if self._wants_forwards_alone(self._descriptors[0]):
                self._leave_forwards()
            else:
                self._host.loop.work(self._carry_out)

    def _wants_forwards_alone(self, source: int) -> bool:
        """Whether it has asked for forwards, and now for a shell that would end at once.

        That is ``ssh -fN -L``: mux.c of OpenSSH (9.2) knows neither option. It asks for a session, which gets /dev/null
        for its input, and waits for its end in the foreground.
        """
        session = self._session
        if (
            session is None
            or session.command
            or session.is_subsystem
            or session.wants_terminal
            or not self._client.forwards
        ):
            return False
        status = os.fstat(source)
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev

    def _leave_forwards(self) -> None:
        """Tell the client that its session has ended well, and keep its forwards, as OpenSSH's master does."""
        for forward in self._client.forwards:
            self._host.keep(self._client.at, forward, lasts=True)
        endpoint = self._take_over(lambda *_: None)
        endpoint.receiver = _NullReceiver()
        endpoint.finish(0)

    def _carry_out(self) -> None:
        """Send the request through the pipeline, in a thread that may wait."""
        try:
            self._host.pipeline.stream(self.sender, PIPE, self)
        except BaseException:
            self.refuse(InternalError("An internal error occurred; the daemon's log says more."))
            raise

    def refuse(self, why: ConnmgrError) -> None:
        """Tell the client why it gets no session, unless what it lends helps; in a thread that may wait."""
        if why.code == Busy.code and time.monotonic() < self._until:
            # Many sessions at once, as of a tool for many hosts, come one after the other.
            self._host.loop.after(self._pause, partial(self._host.loop.work, self._carry_out))
            self._pause = min(2 * self._pause, LONGEST_BUSY_SECONDS)
            return
        opens, agent = why.details.get("opens"), self._agent
        if why.code == "auth_failed" and "agent" in why.details and isinstance(opens, str) and agent is not None:
            self._agent = None
            try:
                self._host.pipeline.post(self.sender, LOGIN, {"connection": opens, "agent": agent})
            except ConnmgrError as error:
                why = error if error.code != InvalidRequest.code else why
            else:
                self._carry_out()
                return
        self._host.loop.call(partial(self._tell, why))

    def join(self, loop: Loop, resized: Callable[[int, int], object], *, forwards_agent: bool) -> AnsweringEndpoint:
        """Return the client as an endpoint, and tell it that its session begins."""
        endpoint = self._take_over(resized)
        if self._session is not None:
            if self._session.wants_x11:
                endpoint.warnings.append("X11 is not forwarded.")
            if self._session.wants_agent and not forwards_agent:
                name = shlex.quote(self._client.at.name)
                endpoint.warnings.append(
                    f"No ssh-agent is forwarded: `connmgr edit {name} forwardAgent=true` allows it (type ssh)."
                )
            self._listen_to_keys(endpoint)
        if self._client.closed:
            loop.call(endpoint.leave)
        return endpoint

    def abandon(self) -> None:
        """Release the client without an answer."""
        self._drop()
        self._client.close()

    def leave(self) -> None:
        """Handle that the client has left."""
        self.cancellation.cancel()
        if self._endpoint is not None:
            self._endpoint.leave()

    def end(self) -> None:
        """End the session, on the wish of a client."""
        self._client.finish()

    def resize(self) -> None:
        """Look at the size of its terminal."""
        if self._endpoint is not None and self.on_terminal:
            self._endpoint.resize()

    @property
    def line(self) -> str:
        """One line about it for a person."""
        if self._session is None:
            to = self.members.get("tcp", {})
            return f"#{self.id} stream to {to.get('host')}:{to.get('port')}"
        what = self.members.get("command") or ("sftp" if self._session.is_subsystem else "login shell")
        return f"#{self.id} session: {visible(what)[:60]}"

    def _tell(self, why: ConnmgrError) -> None:
        if self._client.closed or self._descriptors is None:
            self._drop()
            return
        text = told(why, self._client.at.name)
        if self._session is None:
            self._client.refuse(self._request.number, text)
            self._drop()
            self._client.finish()
            return
        # A client that is refused by the protocol's own answer goes on to connect by itself: so it gets a session,
        # which fails.
        endpoint = self._take_over(lambda *_: None)
        if self.on_terminal:
            self._client.answer(packets.TTY_ALLOC_FAIL, self.id)
        endpoint.receiver = _NullReceiver()
        endpoint.stop(why)

    def _take_over(self, resized: Callable[[int, int], object]) -> PassengerEndpoint:
        """Tell the client that its session begins, and return its descriptors as an endpoint."""
        assert self._descriptors is not None, "a client has one session"  # noqa: S101
        descriptors, self._descriptors = self._descriptors, None
        self._client.answer(packets.SESSION_OPENED, self._request.number, self.id)
        self._endpoint = PassengerEndpoint(self._host.loop, self, self._client, descriptors, resized)
        return self._endpoint

    def _drop(self) -> None:
        descriptors, self._descriptors = self._descriptors or [], None
        for descriptor in descriptors:
            os.close(descriptor)

    # The escape character.

    def _listen_to_keys(self, endpoint: PassengerEndpoint) -> None:
        assert self._session is not None, "a stream has no terminal"  # noqa: S101
        if not self.on_terminal or self._session.escape > 0xFF:
            return
        escape = chr(self._session.escape)
        meanings: dict[bytes, Callable[[], None]] = {
            b".": endpoint.leave,
            b"?": lambda: endpoint.show(_help(escape)),
            b"#": lambda: endpoint.show(["Sessions at this control socket:", *self._lines()]),
        }
        for key in (b"&", b"B", b"C", b"R", b"V", b"v", b"\x1a"):
            name = "^Z" if key == b"\x1a" else key.decode()
            meanings[key] = partial(
                endpoint.show, [f"{escape}{name} is not available for sessions of a control socket."]
            )
        endpoint.typed = Escapes(escape, meanings).typed

    def _lines(self) -> list[str]:
        return [f"  {passenger.line}" for passenger in self._host.passengers_of(self._client.at)]


def _help(escape: str) -> list[str]:
    return [
        "Supported escape sequences:",
        f" {escape}.   - end this session",
        f" {escape}#   - list the sessions at this control socket",
        f" {escape}?   - this message",
        f" {escape}{escape}   - send the escape character by typing it twice",
        "(Note that escapes are only recognized immediately after newline.)",
    ]


class PassengerEndpoint(PassedEndpoint, AnsweringEndpoint):
    """The descriptors of a passenger, whose ``client`` learns the exit status when all output is written."""

    def __init__(
        self,
        loop: Loop,
        passenger: Passenger,
        client: AnsweredClient,
        descriptors: list[int],
        resized: Callable[[int, int], object],
    ) -> None:
        self._passenger, self._client, self._resized = passenger, client, resized
        self._has_stderr = len(descriptors) > 2
        self._size = size_of(descriptors[0])
        self.warnings: list[str] = []
        """What the person reads at the beginning."""

        super().__init__(loop, *descriptors, released=lambda: None)

    def begin(self, receiver: Receiver) -> None:
        super().begin(receiver)
        if self._passenger.on_terminal:
            # The client passes on no signals until it has read that its session is open (mux.c of OpenSSH).
            self._loop.after(SIGNAL_SECONDS, self.resize)
        for warning in self.warnings:
            self.say(warning)

    def resize(self) -> None:
        """Report the size of the client's terminal, if it is another than before."""
        size = None if self._closed else size_of(self._passed[0])
        if size is not None and size != self._size:
            self._size = size
            self._resized(*size)

    def say(self, text: str) -> None:
        """Tell the person at the client something about the session."""
        if self._has_stderr:
            end = "\r\n" if self._passenger.on_terminal else "\n"
            self.write("".join(f"connmgr: {line}{end}" for line in text.splitlines()).encode(), STDERR)

    def show(self, lines: list[str]) -> None:
        """Show lines on the client's terminal, which is raw."""
        self.write("".join(f"{line}\r\n" for line in ["", *lines]).encode(), STDERR)

    def leave(self) -> None:
        """Handle that the client has left: the stream ends."""
        if not self._closed:
            self.close()
            self.receiver.over(ConnectionResetError("The client has left."))

    def stop(self, why: ConnmgrError) -> None:
        self.finish(why)
        if not self._closed:
            # Somebody may read neither the output nor the reason.
            self._loop.after(GOODBYE_SECONDS, self.leave)

    def finish(self, outcome: Outcome) -> None:
        if isinstance(outcome, ConnmgrError):
            self.say(told(outcome, self._client.at.name))
        super().finish(outcome)

    def close(self, *, reset: bool = False) -> None:
        if not self._closed:
            super().close(reset=reset)
            self._client.finish()

    def _conclude(self, outcome: Outcome) -> None:
        # A client of ssh -W expects the end of the connection, and no packet.
        if self._has_stderr:
            status = outcome & 0xFF if isinstance(outcome, int) else FAILED
            self._client.answer(packets.EXIT_MESSAGE, self._passenger.id, status)


class _NullReceiver:
    """Receives from a client for which nothing runs."""

    def arrived(self, data: bytes | memoryview, kind: int = DATA) -> None: ...
    def taken(self, size: int) -> None: ...
    def ended(self) -> None: ...
    def over(self, outcome: Outcome) -> None: ...


def _of_session(connection: str, request: NewSession, source: int) -> dict[str, Any]:
    """Return the request for ``/shell/pipe`` that asks for what ``request`` does; ``source`` is its terminal."""
    members: dict[str, Any] = {"connection": connection, "agent": request.wants_agent}
    command = _text(request.command, "The command")
    if request.is_subsystem:
        if command != "sftp":
            raise InvalidRequest(f"The subsystem {visible(command)} is not served; sftp is.")
        members["argv"] = list(SFTP_SERVER)
    elif command:
        members["command"] = command
    if request.wants_terminal:
        columns, rows = size_of(source) or USUAL_SIZE
        members |= {"pty": True, "term": _text(request.term, "TERM") or "dumb", "columns": columns, "rows": rows}
        if modes := modes_of(source):
            members["modes"] = modes
    return members | _environment(request.environment)


def _of_stream(connection: str, request: StdioForward | NewSession) -> dict[str, Any]:
    """Return the request for ``/shell/pipe`` that asks for a TCP stream."""
    assert isinstance(request, StdioForward), "a session is not a stream"  # noqa: S101
    if request.port == packets.UNIX_PORT:
        raise InvalidRequest("A stream leads to a TCP port, not to a Unix socket.")
    return {"connection": connection, "tcp": {"host": _text(request.host, "The host"), "port": request.port}}


def _environment(sent: Mapping[bytes, bytes]) -> dict[str, Any]:
    variables = {_text(name, "A variable's name"): _text(value, "A variable") for name, value in sent.items()}
    variables.pop(AGENT, None)
    locale = {name: value for name, value in variables.items() if name.startswith(LOCALE)}
    others = {name: value for name, value in variables.items() if name not in locale}
    return ({"sendEnv": locale} if locale else {}) | ({"env": others} if others else {})


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{what} is not UTF-8.") from None


def told(why: ConnmgrError, name: str) -> str:
    """Return what the person at ssh reads about a failure on the connection ``name``: the message, and what to do."""
    shown, quoted = visible(why.message, lines=True), shlex.quote(name)
    advice = {
        "secret_locked": "`connmgr vault unlock USER` unlocks the vault until it is locked again.",
        "vault_locked": "`connmgr vault unlock USER` unlocks the vault until it is locked again.",
        "auth_failed": f"`connmgr shell {quoted}` asks for what is missing (`connmgr info {quoted}`).",
        "approval_required": "Repeat the command after the approval (`connmgr approve`).",
    }.get(why.code)
    if why.details.get("passwordRequired"):
        advice = f"`connmgr edit {quoted} --secret password` stores one."
    if why.details.get("passwordRefused"):
        advice = f"`connmgr edit {quoted} --secret password` stores another."
    return shown if advice is None else f"{shown}\n{advice}"


# The modes of a terminal, by stty(1). A new one there is as the kernel makes it (tty_std_termios of Linux).
_FLAGS = (
    (0, "ignbrk brkint ignpar parmrk inpck istrip inlcr igncr icrnl ixon ixoff ixany", ("icrnl", "ixon")),
    (1, "opost onlcr ocrnl onocr onlret", ("opost", "onlcr")),
    (
        3,
        "isig icanon echo echoe echok echonl noflsh tostop iexten",
        ("isig", "icanon", "echo", "echoe", "echok", "iexten"),
    ),
)
_CONTROL = {
    "intr": ("VINTR", 3),
    "quit": ("VQUIT", 28),
    "erase": ("VERASE", 127),
    "kill": ("VKILL", 21),
    "eof": ("VEOF", 4),
    "start": ("VSTART", 17),
    "stop": ("VSTOP", 19),
    "susp": ("VSUSP", 26),
}


def modes_of(descriptor: int) -> list[str]:
    """Return, as words of stty, the settings of a terminal that a new one does not have; none if it is not one."""
    try:
        attributes = termios.tcgetattr(descriptor)
    except termios.error:
        return []
    words: list[str] = []
    for place, names, usual in _FLAGS:
        for name in names.split():
            is_on = bool(attributes[place] & getattr(termios, name.upper()))
            if is_on != (name in usual):
                words.append(name if is_on else f"-{name}")
    characters = attributes[6]
    for name, (index, value) in _CONTROL.items():
        code = characters[getattr(termios, index)][0]
        if code != value:
            words += [name, "undef" if not code else f"^{chr(code ^ 64)}" if code < 32 or code == 127 else str(code)]
    return words
