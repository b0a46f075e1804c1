"""The packets of OpenSSH's multiplexing protocol, version 4: what clients ask, and the answers.

OpenSSH describes it in ``PROTOCOL.mux``; where that page and ``mux.c`` of OpenSSH 9 differ, ssh's own behaviour counts.
Nothing here reads or writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

VERSION = 4

HELLO = 0x00000001
NEW_SESSION, ALIVE_CHECK, TERMINATE, OPEN_FORWARD = 0x10000002, 0x10000004, 0x10000005, 0x10000006
CLOSE_FORWARD, NEW_STDIO_FORWARD, STOP_LISTENING, PROXY = 0x10000007, 0x10000008, 0x10000009, 0x1000000F

OK, PERMISSION_DENIED, FAILURE, EXIT_MESSAGE = 0x80000001, 0x80000002, 0x80000003, 0x80000004
ALIVE, SESSION_OPENED, REMOTE_PORT, TTY_ALLOC_FAIL = 0x80000005, 0x80000006, 0x80000007, 0x80000008

LOCAL, REMOTE, DYNAMIC = 1, 2, 3
"""The types of forwards: ``-L``, ``-R`` and ``-D``."""

UNIX_PORT = 0xFFFFFFFE
"""In place of a port: the host is the path of a Unix socket."""

MAX_PACKET_BYTES = 256 * 1024
"""As in OpenSSH, which takes no larger packets (CHANNEL_MUX_MAX_PACKET)."""

MAX_VARIABLES = 4096
_NUMBER = struct.Struct(">I")
LENGTH_BYTES = _NUMBER.size


class Malformed(ValueError):
    """A packet that the protocol does not allow; its text is for the person at the client."""


@dataclass(frozen=True)
class MultiplexRequest:
    """What a client asks, under a number of its own that the answer repeats."""

    descriptors: ClassVar[int] = 0
    """How many descriptors follow the packet."""

    number: int


@dataclass(frozen=True)
class NewSession(MultiplexRequest):
    """A command, or the login shell if it is empty, on the three descriptors that follow."""

    descriptors: ClassVar[int] = 3

    wants_terminal: bool
    wants_x11: bool
    wants_agent: bool
    is_subsystem: bool
    escape: int
    """The code of the escape character; larger than a byte where there is none (``ssh -e none``)."""

    term: bytes
    command: bytes
    environment: Mapping[bytes, bytes]


@dataclass(frozen=True)
class StdioForward(MultiplexRequest):
    """A TCP stream to an address on the two descriptors that follow: ``ssh -W``."""

    descriptors: ClassVar[int] = 2

    host: bytes
    port: int


@dataclass(frozen=True)
class ForwardPacket:
    """A port, or the path of a Unix socket, and where its connections lead; an empty host stands for the usual one."""

    kind: int
    listen_host: bytes
    listen_port: int
    connect_host: bytes
    connect_port: int


@dataclass(frozen=True)
class OpenForward(MultiplexRequest):
    """A forward to begin."""

    forward: ForwardPacket


@dataclass(frozen=True)
class CloseForward(MultiplexRequest):
    """A forward to end."""

    forward: ForwardPacket


@dataclass(frozen=True)
class AliveCheck(MultiplexRequest):
    """The question for the process at the other end."""


@dataclass(frozen=True)
class Terminate(MultiplexRequest):
    """The wish that everything behind the socket ends."""


@dataclass(frozen=True)
class StopListening(MultiplexRequest):
    """The wish that nothing new begins behind the socket."""


@dataclass(frozen=True)
class Unsupported(MultiplexRequest):
    """A request of another kind, such as for proxy mode."""

    kind: int

    @property
    def why(self) -> str:
        """Why it is refused."""
        if self.kind == PROXY:
            return "Proxy mode (-O proxy) is not supported: control sockets do not speak SSH. Leave it out."
        return f"Requests of the type {self.kind:#x} are not supported."


class _Reader:
    """Reads the members of a packet in order."""

    def __init__(self, packet: bytes) -> None:
        self._rest = memoryview(packet)

    @property
    def has_more(self) -> bool:
        return bool(self._rest)

    def number(self) -> int:
        if len(self._rest) < _NUMBER.size:
            raise Malformed("A packet ends within a number.")
        value: int = _NUMBER.unpack_from(self._rest)[0]
        self._rest = self._rest[_NUMBER.size :]
        return value

    def text(self) -> bytes:
        length = self.number()
        if len(self._rest) < length:
            raise Malformed("A packet ends within a string.")
        value = bytes(self._rest[:length])
        self._rest = self._rest[length:]
        return value

    def word(self) -> bytes:
        """Return a string that C can hold."""
        value = self.text()
        if b"\0" in value:
            raise Malformed("A string of a packet has a NUL.")
        return value

    def flag(self) -> bool:
        # A whole number in this protocol, unlike the single byte of SSH's own.
        return self.number() != 0


def read_hello(packet: bytes) -> None:
    """Return if ``packet`` is a client's hello of our version, whatever extensions it names.

    :raises Malformed: it is not.
    """
    reader = _Reader(packet)
    if reader.number() != HELLO:
        raise Malformed("The first packet is not a hello of the multiplexing protocol.")
    version = reader.number()
    if version != VERSION:
        raise Malformed(f"The client speaks version {version} of the multiplexing protocol, not {VERSION}.")
    # Names and values of extensions: ssh, too, ignores those that it does not know.
    while reader.has_more:
        reader.text()
        reader.text()


def read_request(packet: bytes) -> MultiplexRequest:
    """Return what a client asks by ``packet``.

    :raises Malformed: it cannot be understood.
    """
    reader = _Reader(packet)
    kind, number = reader.number(), reader.number()
    read = _READERS.get(kind)
    return Unsupported(number, kind) if read is None else read(number, reader)


def _new_session(number: int, reader: _Reader) -> NewSession:
    # Reserved by the protocol; ssh sends it empty.
    reader.text()
    wants_terminal, wants_x11, wants_agent, is_subsystem = reader.flag(), reader.flag(), reader.flag(), reader.flag()
    escape, term, command = reader.number(), reader.word(), reader.word()
    environment: dict[bytes, bytes] = {}
    while reader.has_more:
        name, _, value = reader.word().partition(b"=")
        environment[name] = value
        if len(environment) > MAX_VARIABLES:
            raise Malformed(f"The client sends more than {MAX_VARIABLES} variables.")
    return NewSession(number, wants_terminal, wants_x11, wants_agent, is_subsystem, escape, term, command, environment)


def _stdio_forward(number: int, reader: _Reader) -> StdioForward:
    # Reserved by the protocol, as above.
    reader.text()
    return StdioForward(number, reader.word(), reader.number())


def _forward(reader: _Reader) -> ForwardPacket:
    forward = ForwardPacket(reader.number(), reader.word(), reader.number(), reader.word(), reader.number())
    if any(port > 0xFFFF and port != UNIX_PORT for port in (forward.listen_port, forward.connect_port)):
        raise Malformed("A port is larger than 65535.")
    return forward


_READERS: Mapping[int, Callable[[int, _Reader], MultiplexRequest]] = {
    NEW_SESSION: _new_session,
    NEW_STDIO_FORWARD: _stdio_forward,
    OPEN_FORWARD: lambda number, reader: OpenForward(number, _forward(reader)),
    CLOSE_FORWARD: lambda number, reader: CloseForward(number, _forward(reader)),
    ALIVE_CHECK: lambda number, _: AliveCheck(number),
    TERMINATE: lambda number, _: Terminate(number),
    STOP_LISTENING: lambda number, _: StopListening(number),
}


def packet(*members: int | bytes) -> bytes:
    """Return the packet that consists of these numbers and strings."""
    parts = [
        _NUMBER.pack(member) if isinstance(member, int) else _NUMBER.pack(len(member)) + member for member in members
    ]
    body = b"".join(parts)
    return _NUMBER.pack(len(body)) + body


def length_of(received: bytes | bytearray) -> int | None:
    """Return the length of the packet that begins ``received``, None if that has not come.

    :raises Malformed: it is longer than any packet of the protocol.
    """
    if len(received) < LENGTH_BYTES:
        return None
    length: int = _NUMBER.unpack_from(received)[0]
    if length > MAX_PACKET_BYTES:
        raise Malformed(f"A packet has {length} bytes, and at most {MAX_PACKET_BYTES} are allowed.")
    return length
