"""Sends a command's large standard input over a second channel and a named pipe.

Shells read their input byte by byte, to leave the rest to their commands, so a megabyte within a frame takes seconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from connmgr.engine.script import Source, script_argv
from connmgr.plugin import Channel, Deadline, Transport

PIECE_BYTES = 1 << 20
END_SECONDS = 5.0
"""Longest wait for the end of the feeding process after its reader has ended."""

_LINE_BYTES = 1 << 16

_SCRIPT = Source(__package__, "stdin_pipe")


@contextlib.contextmanager
def fed(transport: Transport, data: bytes, timeout: float) -> Iterator[bytes]:
    """Provide ``data`` in a named pipe of the far side, and yield the pipe's path for one reader.

    :raises connmgr.errors.OperationError: no channel could be opened for it.
    :raises EOFError: the far side could not create the pipe.
    """
    channel = transport.open_channel(script_argv(_SCRIPT.text, [str(len(data))]), timeout=timeout)
    writer = threading.Thread(target=_write, args=(channel, data, timeout), name="stdin", daemon=True)
    try:
        path = _path(channel, Deadline(timeout))
        writer.start()
        yield path
        with contextlib.suppress(TimeoutError, EOFError, OSError):
            channel.exit_status(END_SECONDS)
    finally:
        channel.close()
        if writer.is_alive():
            writer.join(END_SECONDS)


def _path(channel: Channel, deadline: Deadline) -> bytes:
    seen = bytearray()
    while not seen.endswith(b"\n") and len(seen) < _LINE_BYTES:
        if deadline.passed:
            raise EOFError
        seen += channel.recv(deadline.left())[0]
    # Start-up files of the login shell may have printed something before.
    _, said, path = seen.rpartition(b"ok /")
    if not said:
        raise EOFError
    return bytes(b"/" + path.rstrip(b"\r\n"))


def _write(channel: Channel, data: bytes, timeout: float) -> None:
    # A command need not read its input: then the far side's end is closed early.
    with contextlib.suppress(EOFError, OSError):
        for start in range(0, len(data), PIECE_BYTES):
            channel.sendall(data[start : start + PIECE_BYTES], timeout)
        channel.shutdown_write()
