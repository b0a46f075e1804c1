"""TCP streams through a connection that only runs processes, such as sudo: a program there opens them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from connmgr.engine.script import Source, script_argv
from connmgr.errors import HostRefused, TransportUnsupported
from connmgr.plugin import Channel, Deadline, Transport

READ_SECONDS = 1.0
PROGRAMS = ("python3", "bash", "socat", "nc")
"""Programs that can relay, the best first: they pass on more about the end of a stream."""

_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}")
"""Names and addresses that no program can mistake for an option or for more than a host."""

_FIND = Source("connmgr.tunnels", "find_relay")
_RELAY = Source("connmgr.tunnels", "relay")


@dataclass(frozen=True)
class Relay:
    """A program of the far side that joins its standard streams with a TCP connection."""

    program: str

    def dial(self, transport: Transport, host: str, port: int, timeout: float) -> Channel:
        """Start it for a connection to ``host:port``; the channel's exit status tells whether that failed.

        :raises HostRefused: ``host`` is neither a name nor an address.
        """
        if not _HOST.fullmatch(host):
            raise HostRefused(f"{host!r} is neither the name nor the address of a host.")
        argv = script_argv(_RELAY.text, [self.program, host, str(port)], own_locale=True)
        channel = transport.open_channel(argv, timeout=timeout)
        channel.expect_bulk()
        return channel


def find_relay(transport: Transport, timeout: float) -> Relay:
    """Return the first of :data:`PROGRAMS` that the far side has.

    :raises TransportUnsupported: it has none.
    :raises connmgr.errors.OperationError: it could not be asked.
    """
    deadline = Deadline(timeout)
    channel = transport.open_channel(script_argv(_FIND.text, PROGRAMS, own_locale=True), timeout=timeout)
    told = b""
    try:
        while not deadline.passed:
            told += channel.recv(min(READ_SECONDS, deadline.left()))[0]
    except EOFError:
        pass
    finally:
        channel.close()
    lines = told.decode(errors="replace").split()
    if "relay" not in lines[:-1]:
        raise TransportUnsupported(
            "The connection carries no TCP streams, and its machine has none of the programs that could: "
            f"{', '.join(PROGRAMS)}. Install one there."
        )
    return Relay(lines[lines.index("relay") + 1])
