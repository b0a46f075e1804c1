"""Opens links as the engine does, and runs programs on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from connmgr.links.wrapped import WrappedTransport
from connmgr.plugin import AnyConnectionType, Channel, Transport, Wrapper
from connmgr.registry import Registry

WAIT = 30.0
"""Seconds that nothing in a test may take; whether a wait ended by itself shows in how it ended."""


class Outcome(NamedTuple):
    """How a program ended and what it printed; ``stderr`` is empty where it arrived within ``stdout``."""

    status: int
    stdout: bytes
    stderr: bytes


def connect(
    kind: AnyConnectionType, data: Mapping[str, Any], via: Transport | None = None, *, timeout: float = WAIT
) -> Transport:
    """Open ``data``, as a client would send it but for ``type`` and with secrets in plain, over ``via``.

    Whoever calls this closes the transport, and ``via`` after it.
    :raises connmgr.plugin.ValidationError: the type's schema refuses ``data``.
    :raises connmgr.errors.OperationError: it could not be opened.
    """
    loaded = kind.schema().load(data)
    if isinstance(kind, Wrapper):
        if via is None:
            raise ValueError("A wrapper runs over another connection's transport.")
        return WrappedTransport(kind, loaded, via)
    return kind.open(loaded, via, timeout=timeout)


def local() -> Transport:
    """Return a transport of this machine, for wrappers to run over."""
    return connect(Registry.load().get("local"), {})


def script(text: str, *arguments: str) -> list[str]:
    """Return the argv that runs ``text`` in a POSIX shell, with ``arguments`` as ``$1``, ``$2`` …"""
    return ["/bin/sh", "-c", text, "sh", *arguments]


def run(transport: Transport, argv: Sequence[str], stdin: bytes = b"", *, pty: bool = False) -> Outcome:
    """Run a program to its end, with ``stdin`` as all of its standard input.

    :raises AssertionError: it does not end within :data:`WAIT` seconds.
    """
    channel = transport.open_channel(argv, pty=pty, timeout=WAIT)
    try:
        if stdin:
            channel.sendall(stdin, WAIT)
        if not channel.merged:
            channel.shutdown_write()
        return finish(channel)
    finally:
        channel.close()


def finish(channel: Channel) -> Outcome:
    """Read both streams of a channel to their end and return the program's outcome."""
    out: list[bytes] = []
    err: list[bytes] = []
    deadline = time.monotonic() + WAIT
    try:
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise AssertionError(f"The streams did not end within {WAIT:g} s.")
            stdout, stderr = channel.recv(remaining)
            out.append(stdout)
            err.append(stderr)
    except EOFError:
        return Outcome(channel.exit_status(WAIT), b"".join(out), b"".join(err))
