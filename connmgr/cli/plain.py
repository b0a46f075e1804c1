"""What a single command needs: the daemon and a session with it, its shell, environment, input and output.

The front and the commands share this. It loads no library, since the front's whole purpose is to start at once.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connmgr import paths
from connmgr.client import Client, ClientError
from connmgr.client.address import default_auth_file, default_url, is_address_named
from connmgr.client.credentials import digest
from connmgr.client.sessions import SessionFile
from connmgr.paths import find_daemon, url_of
from connmgr.processes import current_session

if TYPE_CHECKING:
    from connmgr.client import Stream
    from connmgr.client.names import Name
    from connmgr.settings import Settings


CLIENT_NAME = "connmgr"
ANSWER_SECONDS = 86400.0 + 60.0


def daemon_address() -> tuple[str, Path]:
    """Return URL and auth file of the daemon that the environment or the settings name, else of this user's.

    :raises ValueError: what is named is not an address.
    :raises StartupError: the settings cannot be read.
    """
    if not paths.config_file(os.environ).exists():
        auth_file = default_auth_file()
        return default_url(auth_file), auth_file
    # Imported here, because most people have no settings.
    from connmgr.settings import load

    settings = load({})
    return address(settings, is_named=is_address_named()), settings.auth_file


def address(settings: Settings, *, is_named: bool) -> str:
    """Return the URL of the daemon with ``settings``: as the running daemon has noted it, unless it ``is_named``."""
    running = None if is_named else find_daemon(settings.auth_file)
    return running.url if running else url_of(settings.host, settings.port)


def session_with(
    url: str,
    auth_file: Path,
    credential: str | None,
    *,
    timeout: float = ANSWER_SECONDS,
    continues: bool = True,
    foreign: bool = False,
) -> tuple[Client, Callable[[], None]]:
    """Return a client of the daemon at ``url``, and a function to call when the command ends.

    It authenticates with ``credential``, by default with the auth file. If it ``continues``, it uses the session of
    ``connmgr vault unlock``, if there is one.
    :raises ValueError: ``url`` is not the URL of a daemon.
    :raises ClientError: the file of the kept session is not private.
    """
    # Each credential has a session file of its own, or a token could continue the owner's unlocked session.
    session = SessionFile(auth_file.parent, url, None if credential is None else digest(credential))
    # Without an auth file the daemon has ended, and its sessions with it.
    token = session.token() if continues and (credential or auth_file.exists()) else None
    client = Client(url, auth_file, credential, name=CLIENT_NAME, timeout=timeout, session_token=token, foreign=foreign)

    def end() -> None:
        # A handshake during the command means that the stored session has expired: the next command need not try it.
        if token and client.session_token != token:
            session.forget()
        client.close()

    return client, end


QUIET_SECONDS = 1.0
"""Shorter waits are not shown."""

SESSION_VARIABLE = "CONNMGR_SESSION"

SHARED = "-"
"""In place of a session's name: the connection's own shell, which has none."""


def own_or(session: str | None) -> str | None:
    """Return ``session``, by default that of the environment or of the terminal, as the API takes it."""
    if session is None:
        session = os.environ.get(SESSION_VARIABLE) or current_session().name
    # An empty one, as of an unset variable, is refused by the daemon, and is not another shell.
    return session_or_none(session)


def session_or_none(session: str | None) -> str | None:
    """Return ``session`` as the API takes it, where the connection's own shell has no name."""
    return None if session == SHARED else session


def sent_environment(client: Client, **about: Any) -> dict[str, str]:
    """Return the variables of this environment that a ``connection``, or one of several ``connections``, takes.

    Of what is sent to several, the daemon gives each only what that one takes.
    """
    patterns = client.post("/connection/environment", **about)["send"]
    return {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def ensure_shell(client: Client, connection: str, session: str | None, name: str) -> None:
    """Start a shell of the connection ``name`` unless one runs; say if the last one was lost."""
    members = {} if session is None else {"session": session}
    if client.post("/shell/start", connection=connection, tellRestarted=True, **members).get("restarted"):
        tell_restarted(name)


def umask() -> int:
    """Return the permissions that new files of this process do not get; reading it changes it for a moment."""
    # There is no call that only reads it; 077 in between, so that a file made by another thread is not open to others.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


AT_ONCE_BYTES = 16 << 10
"""Input of up to this size is sent with the command, if it has ended by then."""

PIECE_BYTES = 64 << 10


class StandardInput:
    """The pipe, socket, file or terminal on descriptor 0, after the bytes that were read already."""

    def __init__(self) -> None:
        self._head = b""
        self._ended = False

    def read_what_is_there(self) -> bytes | None:
        """Return all input, if it has ended and is small; None if it goes on. This never waits for a writer."""
        # A regular file is always readable for poll(), and a pipe without a writer too: then read() returns its end.
        news = select.poll()
        news.register(0, select.POLLIN)
        while not self._ended and len(self._head) <= AT_ONCE_BYTES and news.poll(0):
            self._read()
        return self._head if self._ended and len(self._head) <= AT_ONCE_BYTES else None

    @property
    def has_begun(self) -> bool:
        """Whether there is any input yet."""
        return bool(self._head)

    def read_up_to(self, most: int) -> bytes:
        """Read to the end, or until there are more than ``most`` bytes, and return what was read."""
        while not self._ended and len(self._head) <= most:
            self._read()
        return self._head

    def __iter__(self) -> Iterator[bytes]:
        """Yield the input as it comes."""
        head, self._head = self._head, b""
        if head:
            yield head
        # Not by sys.stdin, whose lock a thread that waits here would hold when the program ends.
        while not self._ended:
            piece = os.read(0, PIECE_BYTES)
            self._ended = not piece
            yield piece

    def _read(self) -> None:
        piece = os.read(0, PIECE_BYTES)
        self._ended = not piece
        self._head += piece


def has_input() -> bool:
    """Whether a command reads standard input unless it is told otherwise.

    It reads a pipe, a socket and a file, as ssh does; not a terminal, a closed descriptor and the null device.
    """
    try:
        kind = os.fstat(0)
    except OSError:
        # It is closed.
        return False
    if stat.S_ISCHR(kind.st_mode):
        return not (os.isatty(0) or kind.st_rdev == Path(os.devnull).stat().st_rdev)
    return True


@contextmanager
def feed(request: dict[str, Any]) -> Iterator[None]:
    """Replace a :class:`StandardInput` as ``request["stdin"]`` by its bytes, if it has ended; in the block run it.

    :raises ClientError: what the block raises; where the input is to blame, the message says so.
    """
    source = request.get("stdin")
    if isinstance(source, StandardInput):
        there = source.read_what_is_there()
        request["stdin"] = source if there is None else there or None
    try:
        yield
    except ClientError as error:
        if request.get("stdin") is not None and error.code in ("policy_denied", "channel_refused"):
            error.message += " The command was to read standard input; -n runs it without."
        raise


class Names:
    """The connections' names, as :class:`connmgr.client.names.Listing` without the rest of ``/connection``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def names(self, name: str = "*", *, path: str = "*", category: str = "*", type: str = "*") -> list[Name]:
        """Return the names of the connections that all filters match."""
        # Imported here, so that the front can load it while the daemon answers.
        from connmgr.client.names import Name

        filters = {"categoryFilter": category, "connectionFilter": path, "typeFilter": type, "nameFilter": name}
        answer = self._client.post("/connection/query", **filters, names=True)
        return [
            Name(id, tuple(member["category"]), tuple(member["name"]), member["type"], member["usageCategory"])
            for id, member in zip(answer["found"], answer["names"], strict=True)
        ]


def run_to_end(command: Stream, name: str, over: Callable[[], None]) -> int:
    """Write the output of a command on the connection ``name`` as it comes, and return its exit code.

    ``over`` is called before the first byte of output.
    :raises ClientError: it does not run to its end.
    """
    with command as stream:
        write_all(stream, name, over)
    assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
    return stream.exit_code


def write_all(stream: Stream, name: str, over: Callable[[], None] = lambda: None) -> bool:
    """Write the output of a command on the connection ``name`` as it comes, to its end.

    Call ``over`` before the first byte. Return whether the last line ended with a newline.
    """
    last = b"\n"
    for piece in stream:
        over()
        if stream.restarted and not any(piece):
            tell_restarted(name)
        write(*piece)
        last = piece.stderr or piece.stdout or last
    return last.endswith(b"\n")


def write(stdout: bytes, stderr: bytes) -> None:
    """Write output byte by byte to ours."""
    for stream, output in ((sys.stdout, stdout), (sys.stderr, stderr)):
        if output:
            stream.buffer.write(output)
            stream.flush()


def tell_restarted(name: str) -> None:
    """Say that the shell of the connection ``name`` was lost."""
    from connmgr.printable import visible

    sys.stderr.write(f"{visible(name)}: the shell was started anew; its directory and variables are new\n")
    sys.stderr.flush()
