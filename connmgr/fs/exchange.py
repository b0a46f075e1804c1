"""One run of a script on the far side: what it answers, what it is sent and what it delivers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from connmgr import errors
from connmgr.plugin import Channel, Transport
from connmgr.shell.frame import new_nonce
from connmgr.shell.script import script_argv

OPEN_TIMEOUT = 30.0
STALL_TIMEOUT = 60.0
"""Seconds without any progress after which a transfer is given up."""

SEND_SIZE = 128 << 10
"""Bytes whose acceptance counts as progress."""

NOISE_LIMIT = 64 << 10
"""Bytes that a far side's start-up files may print before the script answers."""

DETAIL_LIMIT = 200

REFUSALS: dict[str, errors.ConnmgrError] = {
    error.code: error
    for error in (
        errors.NoSuchFile("File does not exist"),
        errors.NoSuchDirectory("The directory does not exist."),
        errors.WrongFileType("The file is of another kind than the operation is for."),
        errors.FileExists("There is a file of that name already."),
        errors.DirectoryNotEmpty("The directory is not empty; set recursive to remove it with what it holds."),
        errors.PermissionDenied("The session's user may not do that with this file."),
        errors.NoSpace("There is no space left for the file."),
        errors.TransferFailed("The file did not arrive whole; the old one, if there is one, was left as it was."),
        errors.FileOperationFailed("The far side could not do it."),
    )
}


class Exchange:
    """A script that runs on a channel of its own; a context manager that closes it.

    Each method raises :class:`connmgr.errors.TransferFailed` when the link breaks or nothing moves for a minute.
    """

    def __init__(self, transport: Transport, directory: bytes, script: str, arguments: Sequence[str | bytes]) -> None:
        mark = new_nonce()
        self.mark = mark.encode()
        argv = script_argv(script, (mark, directory, *arguments))
        self._channel: Channel = transport.open_channel(argv, timeout=OPEN_TIMEOUT)
        self._seen = b""
        self._complaint = b""
        self._ended = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def answer(self, timeout: float = STALL_TIMEOUT) -> bytes:
        """Return what follows ``ok`` on the script's next line; what comes before that line is dropped.

        :raises connmgr.errors.ConnmgrError: the script said ``no``; the error of that code.
        """
        deadline = time.monotonic() + timeout
        while True:
            _, mark, line = self._seen.partition(self.mark + b" ")
            if mark and b"\n" in line:
                break
            if len(self._seen) > NOISE_LIMIT or not self._more(deadline - time.monotonic()):
                self._fail("The far side did not answer as it should." + self._quoted_complaint())
        line, _, self._seen = line.partition(b"\n")
        verdict, _, facts = line.rstrip(b"\r").partition(b" ")
        if verdict == b"ok":
            return facts
        code, _, detail = facts.decode(errors="replace").partition(" ")
        refusal = REFUSALS.get(code)
        if verdict != b"no" or refusal is None:
            self._fail("The far side did not answer as it should.")
        raise type(refusal)(f"{refusal.message} {_shown(detail)}".rstrip())

    def send(self, pieces: Iterable[bytes]) -> None:
        """Write ``pieces`` to the script; one that has ended meanwhile says why by its next answer."""
        try:
            for piece in pieces:
                for start in range(0, len(piece), SEND_SIZE):
                    self._channel.sendall(piece[start : start + SEND_SIZE], STALL_TIMEOUT)
            # On a terminal input has no end; there the script counts.
            if not self._channel.merged:
                self._channel.shutdown_write()
        except TimeoutError:
            self._fail("The far side takes no more data.")
        except (EOFError, OSError):
            return

    def data(self) -> Iterator[bytes]:
        """Yield what the script prints, to the end."""
        while self._seen or self._more(STALL_TIMEOUT):
            piece, self._seen = self._seen, b""
            yield piece

    def succeeded(self) -> bool:
        """Return whether the script, whose data has ended, has exited with 0."""
        try:
            return self._channel.exit_status(STALL_TIMEOUT) == 0
        except (EOFError, OSError):
            return False

    def _more(self, timeout: float) -> bool:
        """Wait for more output; return False at its end."""
        deadline = time.monotonic() + timeout
        while not self._ended:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._fail("The far side sends nothing any more.")
            try:
                stdout, stderr = self._channel.recv(remaining)
            except EOFError:
                self._ended = True
                break
            except OSError as error:
                raise errors.TransferFailed("The link broke during the transfer.") from error
            self._complaint = (self._complaint + stderr)[-DETAIL_LIMIT:]
            if stdout:
                self._seen += stdout
                return True
        return False

    def _quoted_complaint(self) -> str:
        said = _shown(self._complaint.decode(errors="replace"))
        return f" It printed: {said}" if said else ""

    def _fail(self, reason: str) -> NoReturn:
        raise errors.TransferFailed(reason)


def _shown(text: str) -> str:
    """Return what a far machine has said on one line, without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:DETAIL_LIMIT]
