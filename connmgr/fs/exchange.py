"""One run of a script on the far side: what it answers, what it is sent and what it delivers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from connmgr import errors
from connmgr.plugin import Channel, Transport

OPEN_TIMEOUT = 30.0
STALL_TIMEOUT = 60.0
"""Seconds without any progress after which a transfer is given up."""

LINE_LIMIT = 64 << 10

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
        argv = ["/bin/sh", "-c", script, "sh", *(_text(word) for word in (directory, *arguments))]
        self._channel: Channel = transport.open_channel(argv, timeout=OPEN_TIMEOUT)
        self._seen = b""
        self._ended = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    @property
    def merged(self) -> bool:
        """Whether the script has a terminal, on which its input cannot be ended."""
        return self._channel.merged

    def answer(self, timeout: float = STALL_TIMEOUT) -> str:
        """Return what follows ``ok`` on the script's next line.

        :raises connmgr.errors.ConnmgrError: the script said ``no``; the error of that code.
        """
        deadline = time.monotonic() + timeout
        while b"\n" not in self._seen:
            if len(self._seen) > LINE_LIMIT or not self._more(deadline - time.monotonic()):
                self._fail("The far side did not answer as it should.")
        line, _, self._seen = self._seen.partition(b"\n")
        verdict, _, facts = line.rstrip(b"\r").decode(errors="replace").partition(" ")
        if verdict == "ok":
            return facts
        refusal = REFUSALS.get(facts)
        if verdict != "no" or refusal is None:
            self._fail("The far side did not answer as it should.")
        raise type(refusal)(refusal.message)

    def send(self, pieces: Iterable[bytes]) -> None:
        """Write ``pieces`` to the script; one that has ended meanwhile says why by its next answer."""
        try:
            for piece in pieces:
                self._channel.sendall(piece, STALL_TIMEOUT)
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

    def _more(self, timeout: float) -> bool:
        """Wait for more output; return False at its end."""
        deadline = time.monotonic() + timeout
        while not self._ended:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._fail("The far side sends nothing any more.")
            try:
                stdout, _ = self._channel.recv(remaining)
            except EOFError:
                self._ended = True
                break
            except OSError as error:
                raise errors.TransferFailed("The link broke during the transfer.") from error
            if stdout:
                self._seen += stdout
                return True
        return False

    def _fail(self, reason: str) -> NoReturn:
        raise errors.TransferFailed(reason)


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode(errors="surrogateescape")
