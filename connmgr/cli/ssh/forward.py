"""Local ports whose connections continue from the far side: ``ssh -L`` and ``ssh -D``."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

import click

from connmgr.cli.relay.ends import Sink, Source
from connmgr.cli.relay.loop import READABLE, Loop
from connmgr.cli.relay.relay import Relay
from connmgr.cli.ssh.options import SshOptions
from connmgr.client import ClientError
from connmgr.client.pipe import Pipe
from connmgr.streams.socks import Asked, Greeting

MAX_STREAMS = 256
"""Most connections per port at a time; further ones wait."""

_LOOPBACK = {"": "127.0.0.1", "localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
_PART = re.compile(r"\[([^\]]*)\]|([^:/]*)")

OpenTcp = Callable[[str, int], Pipe]


class Place(NamedTuple):
    """A local port to listen on, and its destination; None if each client asks for its own."""

    host: str
    port: int
    to: tuple[str, int] | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def local(text: str) -> Place:
    """Parse ``[HERE:]PORT:HOST:PORT``.

    :raises click.UsageError: it is malformed, or HERE is not the loopback interface.
    """
    parts = _parts(text)
    if len(parts) == 3:
        parts.insert(0, "")
    if len(parts) != 4 or not parts[2]:
        raise click.UsageError(
            f"{text!r} is not of the form [HERE:]PORT:HOST:PORT; sockets of files are not forwarded."
        )
    return Place(_here(parts[0]), _port(parts[1], least=0), (parts[2], _port(parts[3])))


def dynamic(text: str) -> Place:
    """Parse ``[HERE:]PORT``; otherwise as :func:`local`."""
    parts = _parts(text)
    if len(parts) == 1:
        parts.insert(0, "")
    if len(parts) != 2:
        raise click.UsageError(f"{text!r} is not of the form [HERE:]PORT.")
    return Place(_here(parts[0]), _port(parts[1], least=0), None)


def host_and_port(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``."""
    parts = _parts(text)
    if len(parts) != 2 or not parts[0]:
        raise click.UsageError(f"{text!r} is not of the form HOST:PORT.")
    return parts[0], _port(parts[1])


def _parts(text: str) -> list[str]:
    found, at = [], 0
    while True:
        part = _PART.match(text, at)
        assert part is not None, "it matches nothing, too"  # noqa: S101
        found.append(part[1] or part[2] or "")
        at = part.end() + 1
        if part.end() == len(text):
            return found
        if text[part.end()] != ":":
            raise click.UsageError(f"{text!r} is not a port and host.")


def _here(host: str) -> str:
    if host not in _LOOPBACK:
        raise click.UsageError(f"Ports are forwarded from the loopback interface alone, not from {host!r}.")
    return _LOOPBACK[host]


def _port(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 1 << 16):
        raise click.UsageError(f"{text!r} is not a port.")
    return int(text)


class Listener:
    """A task that accepts connections to ``place``; each gets a task of its own.

    :raises OSError: the port is taken.
    """

    over = False

    def __init__(self, place: Place, loop: Loop, open_tcp: OpenTcp, tell: Callable[[str], None]) -> None:
        self._place = place
        self._loop = loop
        self._open_tcp = open_tcp
        self._tell = tell
        self._streams: list[Stream] = []
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        self._socket = socket.create_server((place.host, place.port), family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Stop listening, and end the streams."""
        self.over = True
        self._socket.close()
        for stream in self._streams:
            stream.close()

    def wanted(self) -> Iterable[tuple[int, int]]:
        self._streams = [stream for stream in self._streams if not stream.over]
        return [(self._socket.fileno(), READABLE)] if len(self._streams) < MAX_STREAMS else []

    def ready(self, descriptor: int) -> None:
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(accepted, self._place.to, self._open_tcp, self._tell)
        self._streams.append(stream)
        self._loop.tasks.append(stream)


class Stream:
    """A task that carries one accepted connection to ``to``, or if None where its SOCKS request says."""

    def __init__(
        self,
        accepted: socket.socket,
        to: tuple[str, int] | None,
        open_tcp: OpenTcp,
        tell: Callable[[str], None],
    ) -> None:
        accepted.setblocking(False)
        self.over = False
        self._accepted = accepted
        self._written_to = os.dup(accepted.fileno())
        self._open_tcp = open_tcp
        self._tell = tell
        self._greeting = Greeting()
        self._relay: Relay | None = None
        if to is not None:
            self._begin(*to)

    def wanted(self) -> Iterable[tuple[int, int]]:
        return [(self._accepted.fileno(), READABLE)] if self._relay is None else self._relay.wanted()

    def ready(self, descriptor: int) -> None:
        if self._relay is None:
            self._greet()
            return
        self._relay.ready(descriptor)
        if self._relay.error is not None and isinstance(self._relay.error, ClientError):
            self._tell(self._relay.error.message)
        if self._relay.over or self._relay.error is not None:
            self.close()

    def close(self) -> None:
        """Close both sides."""
        if self.over:
            return
        self.over = True
        if self._relay is not None:
            self._relay.close()
        self._accepted.close()
        os.close(self._written_to)

    def _greet(self) -> None:
        try:
            received = self._accepted.recv(512)
            asked = self._greeting.take(received)
            self._accepted.send(self._greeting.answer())
        except (OSError, ValueError):
            self.close()
            return
        if isinstance(asked, Asked):
            self._begin(asked.host, asked.port)
            if asked.rest and self._relay is not None:
                self._relay.pipe.write(asked.rest)

    def _begin(self, host: str, port: int) -> None:
        try:
            pipe = self._open_tcp(host, port)
        except ClientError as error:
            self._tell(error.message)
            self.close()
            return
        self._relay = Relay(pipe, Source(self._accepted.fileno()), Sink(self._written_to))
        self._relay.output_ended = self._shut

    def _shut(self) -> None:
        try:
            self._accepted.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()


def listeners(options: SshOptions, loop: Loop, open_tcp: OpenTcp, tell: Callable[[str], None]) -> list[Listener]:
    """Listen on all ports that ``options`` name.

    :raises click.UsageError: one of them is malformed.
    :raises OSError: one of them is taken; all are closed again.
    """
    places = [local(one) for one in options.local] + [dynamic(one) for one in options.dynamic]
    found: list[Listener] = []
    try:
        for place in places:
            found.append(Listener(place, loop, open_tcp, tell))
            if not place.port:
                tell(f"allocated port {found[-1].port}")
    except OSError as error:
        for one in found:
            one.close()
        raise OSError(error.errno, error.strerror, str(place)) from error
    return found
