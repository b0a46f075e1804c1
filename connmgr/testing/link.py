"""Opens links as the engine does, and runs programs on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from connmgr.links.login import WrappedTransport
from connmgr.plugin import AnyConnectionType, Channel, Pty, Transport, Tunnel, Wrapper
from connmgr.registry import Registry

WAIT_SECONDS = 30.0
"""Longest wait in a test; the outcome shows whether the wait ended by itself."""


class Outcome(NamedTuple):
    """The exit status and output of a program; ``stderr`` is empty if it arrived within ``stdout``."""

    status: int
    stdout: bytes
    stderr: bytes


def connect(
    kind: AnyConnectionType, data: Mapping[str, Any], via: Transport | None = None, *, timeout: float = WAIT_SECONDS
) -> Transport:
    """Open ``data`` over ``via``: as a client sends it, but without ``type`` and with secrets in plain text.

    The caller closes the transport, then ``via``.
    :raises connmgr.plugin.ValidationError: the type's schema refuses ``data``.
    :raises connmgr.errors.OperationError: it could not be opened.
    """
    loaded = kind.schema().load(data)
    if isinstance(kind, Wrapper):
        if via is None:
            raise ValueError("A wrapper runs over another connection's transport.")
        return WrappedTransport(kind, loaded, via)
    if isinstance(kind, Tunnel):
        raise TypeError("A tunnel carries no processes.")
    return kind.open(loaded, via, timeout=timeout)


def local() -> Transport:
    """Return a transport of this machine, for wrappers to run over."""
    return connect(Registry.load().get("local"), {})


def script(text: str, *arguments: str) -> list[str]:
    """Return the argv that runs ``text`` in a POSIX shell, with ``arguments`` as ``$1``, ``$2`` …"""
    return ["/bin/sh", "-c", text, "sh", *arguments]


def run(transport: Transport, argv: Sequence[str], stdin: bytes = b"", *, pty: Pty | None = None) -> Outcome:
    """Run a program to its end, with ``stdin`` as its whole input.

    :raises AssertionError: it does not end within :data:`WAIT_SECONDS`.
    """
    channel = transport.open_channel(argv, pty=pty, timeout=WAIT_SECONDS)
    try:
        if stdin:
            channel.sendall(stdin, WAIT_SECONDS)
        if not channel.merged:
            channel.shutdown_write()
        return finish(channel)
    finally:
        channel.close()


def finish(channel: Channel) -> Outcome:
    """Read both streams of a channel to their end and return the program's outcome."""
    out: list[bytes] = []
    err: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise AssertionError(f"The streams did not end within {WAIT_SECONDS:g} s.")
            stdout, stderr = channel.recv(remaining)
            out.append(stdout)
            err.append(stderr)
    except EOFError:
        return Outcome(channel.exit_status(WAIT_SECONDS), b"".join(out), b"".join(err))
