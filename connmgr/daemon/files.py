"""The files of the daemon, which only its user may use: what clients find it by, their secrets, the vault's places.

The auth file, the daemon file and the Unix socket are there while the daemon runs. The API key is made by the user's
command, the metrics token by the user.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from connmgr import __version__
from connmgr.errors import StartupError
from connmgr.paths import CREATE, Whereabouts, daemon_file_of, read_daemon_file, socket_of, write_file
from connmgr.processes import is_trusted, is_unmapped, start_of
from connmgr.secrets.vault_key import EncryptedKeyFile, KeyFile, Keyring, KeyStore
from connmgr.settings import Settings

MAX_API_KEY_FILE_BYTES = 200
MAX_AUTH_FILE_BYTES = 100
MAX_METRICS_FILE_BYTES = 1000
MIN_METRICS_CHARACTERS = 24
"""A shorter metrics token could be guessed."""

_AUTH_FILE = re.compile(rb"connmgr-[A-Za-z0-9_-]{43}\n?")

logger = logging.getLogger("connmgr.daemon")


def private_directory(path: Path, purpose: str) -> None:
    """Make ``path`` a directory of mode 0700, or check that it is one; an empty one of ours is closed to others.

    :raises StartupError: it cannot be created, is not ours, or is open to others; ``purpose`` names it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        # Only an empty one: what is in another may come from whoever could write there until now.
        if status.st_uid == os.geteuid() and status.st_mode & 0o077 and not any(path.iterdir()):
            path.chmod(0o700)
            status = path.stat()
    except FileExistsError:
        raise StartupError(f"The {purpose} {path} is not a directory.") from None
    except OSError as error:
        raise StartupError(f"The {purpose} {path} cannot be used: {error.strerror}.") from error
    if status.st_uid != os.geteuid():
        raise StartupError(f"The {purpose} {path} belongs to another user; use one of your own.")
    if status.st_mode & 0o077:
        raise StartupError(f"The {purpose} {path} is open to others: run chmod 700 {path}")


def read_private(path: Path, limit: int) -> str | None:
    """Return the text in a file of ours, mode 0600, at most ``limit`` bytes; None if there is none.

    :raises StartupError: it is open to others, not ours, a link, or no file.
    """
    try:
        # O_NONBLOCK, so that a FIFO is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StartupError(f"The file {path} cannot be read: {reason}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise StartupError(f"The file {path} is not a regular file that belongs to you.")
        if status.st_mode & 0o077:
            raise StartupError(f"The file {path} is open to others: run chmod 600 {path}")
        return os.read(descriptor, limit).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def replace_private(path: Path, text: str) -> None:
    """Replace the content of ``path``, mode 0600, atomically and durably.

    :raises StartupError: it cannot be written.
    """
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise StartupError(f"The file {path} cannot be written: {error.strerror}.") from error


def database_url(settings: Settings) -> str:
    """Return the SQLAlchemy URL of the vault's database."""
    return settings.database_url or f"sqlite:///{settings.data_dir / 'vault.db'}"


def key_store(settings: Settings, named: str | None = None) -> KeyStore:
    """Return the store of the vault's key: that of the settings, or the one that is ``named``.

    :raises StartupError: it is a keyring, and there is none.
    """
    name = settings.key_store if named is None else named
    if name == "keyring":
        return Keyring(settings.data_dir)
    if name == "systemd-creds":
        return EncryptedKeyFile(settings.data_dir / "vault.key.cred")
    return KeyFile(settings.data_dir / "vault.key")


class AuthFile:
    """A file, mode 0600, with a new secret; it exists from construction to :meth:`remove`.

    A leftover of a dead daemon at ``path`` is replaced. A missing directory is created; it must belong to this user or
    root, and no other user may be able to replace the file: see :func:`_check_path`.
    :raises StartupError: something else is at ``path``, such as a running daemon's auth file, or it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.content = f"connmgr-{secrets.token_urlsafe(32)}"
        self._path = path
        if not path.parent.exists():
            private_directory(path.parent, "directory of the auth file")
        _check_path(path)
        _remove_leftover(path)
        try:
            self._descriptor = os.open(path, CREATE, 0o600)
        except OSError as error:
            raise StartupError(f"The auth file {path} cannot be made: {error.strerror}.") from error
        try:
            # Locked while the daemon lives; a file without the lock is a leftover.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._descriptor, 0o600)
            os.write(self._descriptor, self.content.encode() + b"\n")
        except OSError as error:
            self.remove()
            raise StartupError(f"The auth file {path} cannot be written: {error.strerror}.") from error

    def remove(self) -> None:
        """Remove the file if it is still this one; calling it again does nothing."""
        if self._descriptor < 0:
            return
        own = os.fstat(self._descriptor)
        try:
            status = self._path.lstat()
            if (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino):
                self._path.unlink()
        except FileNotFoundError:
            return
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_leftover(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(
            f"{path} is not an auth file of this user; remove it, or choose another path with --auth-file."
        ) from error
    try:
        status = os.fstat(descriptor)
        # A file with another name may be any of this user's that somebody has linked here.
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        if not ours or not _AUTH_FILE.fullmatch(os.read(descriptor, MAX_AUTH_FILE_BYTES)):
            raise StartupError(
                f"{path} is not an auth file of this user; remove it, or choose another path with --auth-file."
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"Another daemon uses the auth file {path}; choose one with --auth-file.") from None
        path.unlink()
    finally:
        os.close(descriptor)


def _check_path(path: Path) -> None:
    """Check every directory and symbolic link on ``path``, as sshd does with ``StrictModes``.

    Each must belong to this user or root. Others must not be able to write to it, unless it is sticky. The private
    group of this user, with no other member, is allowed to.
    :raises StartupError: others could replace the file, or a directory cannot be examined.
    """
    try:
        for directory in _directories_above(path):
            status = directory.lstat()
            if not is_trusted(status.st_uid) and (directory == path.parent or not is_unmapped(status.st_uid)):
                raise StartupError(
                    f"The auth file would not be safe: {directory} belongs to another user. "
                    "Choose a place for it with --auth-file."
                )
            if stat.S_ISDIR(status.st_mode) and _is_open_to_others(status):
                raise StartupError(
                    f"The auth file would not be safe: {directory} is open to others. "
                    f"Run chmod go-w {directory}, or choose a place for it with --auth-file."
                )
    except OSError as error:
        raise StartupError(f"The directory {path.parent} cannot be used: {error.strerror}.") from error


def _directories_above(path: Path) -> Iterator[Path]:
    """Yield the directories above ``path``, the nearest first: as written, then with links resolved."""
    written = path.absolute().parent
    real = written.resolve(strict=True)
    yield from dict.fromkeys([written, *written.parents, real, *real.parents])


def _is_open_to_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or (
        bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)
    )


def _is_own_group(gid: int) -> bool:
    """Whether ``gid`` is the group with this user's name and no other members."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


class DaemonFile:
    """A file, mode 0600, with this daemon's address, from construction to :meth:`remove`.

    The caller holds ``auth_file``, so a file of another daemon is a leftover and is replaced. If the file cannot be
    written, clients must be given the ``url``.
    """

    def __init__(self, auth_file: Path, url: str) -> None:
        self._path = daemon_file_of(auth_file)
        self._content = Whereabouts(url, os.getpid(), start_of(os.getpid()), __version__)
        try:
            replace_private(self._path, self._content.text())
        except StartupError as error:
            logger.warning("%s Clients look for the daemon where the settings say.", error.message)

    def remove(self) -> None:
        """Remove the file if it is still this daemon's; calling it again does nothing."""
        with suppress(OSError):
            if read_daemon_file(self._path) == self._content:
                self._path.unlink()


class SocketFile:
    """A Unix socket beside ``auth_file``, mode 0600: found until :meth:`remove`, and listening until :meth:`close`.

    The caller holds the auth file, so sockets of other daemons beside it are leftovers, and are removed. If no socket
    can be made (the path is too long or taken), ``bound`` is None and clients use the port.
    """

    def __init__(self, auth_file: Path, port: int) -> None:
        self.bound: socket.socket | None = None
        self._path = socket_of(auth_file, port)
        for left in _sockets_beside(auth_file):
            left.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        try:
            bound.bind(str(self._path))
            self._path.chmod(0o600)
            bound.listen()
        except OSError as error:
            bound.close()
            reason = error.strerror or str(error)
            logger.warning("No Unix socket at %s: %s. Clients use the port.", self._path, reason)
            return
        self.bound = bound

    def remove(self) -> None:
        """Unlink the socket, so that no further client finds it; calling it again does nothing."""
        if self.bound is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlink the socket and stop listening."""
        self.remove()
        if self.bound is not None:
            self.bound.close()


def _sockets_beside(auth_file: Path) -> Iterator[Path]:
    """Yield this user's sockets that :func:`socket_of` names for ``auth_file``, whatever their ports."""
    # Sockets of other programs, and of daemons with other auth files, may have similar names.
    ours = re.compile(re.escape(auth_file.name) + r"\.[0-9]+\.sock")
    try:
        for path in auth_file.parent.iterdir():
            if ours.fullmatch(path.name):
                status = path.lstat()
                if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                    yield path
    except OSError as error:
        logger.warning("Sockets of earlier daemons are not looked for in %s: %s.", auth_file.parent, error.strerror)


def read_api_key(data_dir: Path) -> str | None:
    """Return the API key, for clients that cannot read the auth file; None if none was made.

    :raises StartupError: its file is not safe.
    """
    text = read_private(data_dir / "api.key", MAX_API_KEY_FILE_BYTES)
    return text.strip() or None if text is not None else None


def make_api_key(data_dir: Path, *, rotate: bool) -> str:
    """Return the API key; make it if it is missing or to ``rotate``. A running daemon accepts the new one at once.

    :raises StartupError: the data directory or the key's file cannot be used.
    """
    private_directory(data_dir, "data directory")
    key = None if rotate else read_api_key(data_dir)
    if key is None:
        key = secrets.token_urlsafe(32)
        replace_private(data_dir / "api.key", key + "\n")
    return key


def read_metrics_token(path: Path) -> str:
    """Return the static token for reading /metrics, in a file that belongs to this user and is closed to others.

    :raises StartupError: there is no such file, it is not safe, or its content is not a token.
    """
    text = read_private(path, MAX_METRICS_FILE_BYTES)
    if text is None:
        raise StartupError(f"The metrics token file {path} does not exist: openssl rand -hex 32 prints a token for it.")
    token = text.strip()
    if len(token) < MIN_METRICS_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise StartupError(
            f"The metrics token in {path} is not one word of {MIN_METRICS_CHARACTERS} or more ASCII characters: "
            "openssl rand -hex 32 prints one."
        )
    return token
