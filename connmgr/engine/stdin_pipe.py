"""Sends a command's standard input over a second channel and a named pipe, as fast as the command reads it.

Shells read their input byte by byte, to leave the rest to their commands. So a megabyte within an envelope takes
seconds, and no input can follow an envelope.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from connmgr.engine.script import Source, script_argv
from connmgr.plugin import Channel, Deadline, Transport

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10
"""The block size of the remote host's dd, where the channel is a terminal."""

END_SECONDS = 5.0
"""Longest wait for the end of the feeding process after its reader has ended."""

INPUT_SECONDS = 48 * 3600.0
"""Longest wait for a command to read: longer than any command may run, so closing the channel ends the wait."""

_LINE_BYTES = 1 << 16

CHUNKS = Source(__package__, "chunks")
_SCRIPT = Source(__package__, "stdin_pipe")


class Input(Protocol):
    """A command's standard input that arrives while the command runs."""

    failed: bool
    """Whether it broke off: the command has only a part of it, and must not take that part for the whole."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces as they arrive, until the input ends, breaks off or is stopped."""

    def passed(self, size: int) -> None:
        """Note that the remote host has accepted ``size`` more bytes."""

    def stop(self) -> None:
        """End the iteration, even one that waits in another thread: the command has ended."""


class Whole:
    """An :class:`Input` that is complete from the start."""

    failed = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        return (self._data[start : start + PIECE_BYTES] for start in range(0, len(self._data), PIECE_BYTES))

    def passed(self, size: int) -> None: ...

    def stop(self) -> None: ...


class NamedPipe(NamedTuple):
    """A named pipe of the remote host at ``path``; once :meth:`begin` is called, exactly one reader must open it."""

    path: bytes
    begin: Callable[[], None]


@contextlib.contextmanager
def fed(transport: Transport, source: Input, timeout: float) -> Iterator[NamedPipe]:
    """Create a named pipe on the remote host, and write ``source`` to it after its ``begin`` is called.

    Input that the reader has not read when the ``with`` block ends is dropped. If ``source`` breaks off, the pipe stays
    open and its reader waits: the caller has to kill it.

    :raises connmgr.errors.OperationError: no channel could be opened for it within ``timeout`` seconds.
    :raises EOFError: the remote host could not create the pipe.
    """
    channel = transport.open_channel(script_argv(CHUNKS.text + _SCRIPT.text, [str(BLOCK_BYTES)]), timeout=timeout)
    writer = None
    try:
        manner, path = _announced(channel, Deadline(timeout))
        # A thread, because writing blocks until the command reads, and the command may first want its output read.
        writer = threading.Thread(target=_write, args=(channel, source, manner), name="stdin", daemon=True)
        yield NamedPipe(path, writer.start)
        if writer.ident is not None:
            _finish(channel, source, writer, manner)
    finally:
        source.stop()
        channel.close()
        if writer is not None and writer.ident is not None:
            writer.join(END_SECONDS)


def _finish(channel: Channel, source: Input, writer: threading.Thread, manner: bytes) -> None:
    """Let the remote host's program end by itself, after the reader."""
    source.stop()
    writer.join(END_SECONDS)
    if not writer.is_alive():
        with contextlib.suppress(TimeoutError, EOFError, OSError):
            if source.failed:
                # The command is dead, so nobody takes this for the end of the input.
                _end(channel, manner, END_SECONDS)
            channel.exit_status(END_SECONDS)


def _announced(channel: Channel, deadline: Deadline) -> tuple[bytes, bytes]:
    """Return how the input travels, ``plain`` or in chunks, and the path of the pipe."""
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < _LINE_BYTES:
        if deadline.passed:
            raise EOFError
        received += channel.recv(deadline.left())[0]
    # Start-up files of the login shell may have printed something before.
    for manner in (b"plain", b"exact", b"acknowledged"):
        _, mark, path = received.rpartition(b"ok " + manner + b" /")
        if mark:
            return manner, bytes(b"/" + path.rstrip(b"\r\n"))
    raise EOFError


def _write(channel: Channel, source: Input, manner: bytes) -> None:
    # A command need not read its input: then the remote host's end is closed early.
    with contextlib.suppress(EOFError, OSError):
        channel.sendall(b"begin\n", INPUT_SECONDS)
        for piece in source:
            if manner == b"plain":
                channel.sendall(piece, INPUT_SECONDS)
            else:
                # A terminal has no end of input that may follow any bytes, so the program there counts them.
                channel.sendall(b"%d\n" % len(piece) + piece, INPUT_SECONDS)
            while manner == b"acknowledged" and b"ok" not in channel.recv(INPUT_SECONDS)[0]:
                pass
            source.passed(len(piece))
        if source.failed:
            # An end of input would tell the command that this part was everything (see fed).
            return
        _end(channel, manner, INPUT_SECONDS)


def _end(channel: Channel, manner: bytes, timeout: float) -> None:
    """Tell the remote host's program, which has got all pieces so far, that no more follow."""
    if manner == b"plain":
        channel.shutdown_write()
    else:
        channel.sendall(b"0\n", timeout)
