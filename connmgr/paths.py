"""Where things are: connmgr's files by default, and the daemon, by the file ``daemon.json`` beside its auth file.

Nothing here imports the server.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from connmgr.processes import is_trusted, start_of

APPLICATION = "connmgr"
DEFAULT_PORT = 21721

TOKEN_VARIABLE = "CONNMGR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "CONNMGR_TOKEN_FILE"  # noqa: S105
API_KEY_FILE_VARIABLE = "CONNMGR_API_KEY_FILE"
CREDENTIAL_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, API_KEY_FILE_VARIABLE)
"""The variables that name a client's credential. One that is set and empty is an error, never the owner."""

CLIENT_VARIABLES = (*CREDENTIAL_VARIABLES, "CONNMGR_AUTH_FILE", "CONNMGR_HOST", "CONNMGR_PORT", "CONNMGR_CONFIG")
"""The variables that tell a client which daemon is meant, and with which rights."""

MAX_FILE_BYTES = 4096

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file of ours is made: never the file, or the target of a link, that somebody has put in its place."""


def write_file(path: Path, content: bytes, *, replaces: bool = True, is_durable: bool = True) -> None:
    """Write ``content`` to ``path``, mode 0600, whole or not at all; what ``is_durable`` survives a loss of power.

    :raises FileExistsError: the file exists, and ``replaces`` is False.
    :raises OSError: it cannot be written; the earlier content is still there.
    """
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(fresh, CREATE, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if is_durable:
                # Before the rename: after a power cut the name could otherwise belong to an empty file.
                file.flush()
                os.fsync(descriptor)
        if replaces:
            fresh.replace(path)
        else:
            # Unlike a rename, a link never replaces a file that appeared meanwhile.
            os.link(fresh, path)
            fresh.unlink()
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def value_of(environ: Mapping[str, str], variable: str) -> str | None:
    """Return the value of a ``variable``, None if it is not set.

    :raises StartupError: it is empty: what was to be named may be another vault, or another daemon, than the default.
    """
    value = environ.get(variable)
    if value is not None and not value.strip():
        # Imported here, because every start of the command line would pay for the tree of errors.
        from connmgr.errors import StartupError

        raise StartupError(is_empty(variable))
    return value


def misspelt(environ: Mapping[str, str], known: Collection[str]) -> str | None:
    """Return the message about a variable that is none of the ``known`` ones, but nearly one; None if there is none.

    What it was to name would be another daemon, another vault or other rights than those that are used without it.
    """
    for name in environ:
        if name.upper().startswith("CONNMGR_") and name not in known:
            forms = _nearly(name)
            if meant := next((each for each in known if not forms.isdisjoint(_nearly(each))), None):
                return f"The environment variable {name} is unknown. Is {meant} meant?"
    return None


def _nearly(name: str) -> set[str]:
    """Return the forms that the name of a variable shares with those that differ by a letter, by ``_`` or by case."""
    # Every command asks this, and loading difflib takes longer.
    letters = name.upper().replace("_", "")
    return {letters, *(letters[:at] + letters[at + 1 :] for at in range(len(letters)))}


def is_empty(variable: str) -> str:
    """Return the message about a ``variable`` that is set and empty."""
    return f"The environment variable {variable} is empty: unset it, or give it a value."


def data_directory() -> Path:
    """Return the platform's data directory of connmgr: vault, keys, known hosts."""
    if sys.platform == "linux":
        return _xdg_directory(os.environ, "XDG_DATA_HOME", ".local/share")
    import platformdirs

    return platformdirs.user_data_path(APPLICATION, appauthor=False)


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the path of ``config.toml``: ``CONNMGR_CONFIG``, or in the platform's configuration directory.

    :raises StartupError: the variable is empty.
    """
    path = value_of(environ, "CONNMGR_CONFIG")
    if path is not None:
        return Path(path)
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    import platformdirs

    return platformdirs.user_config_path(APPLICATION, appauthor=False) / "config.toml"


def auth_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the auth file: in the session's runtime directory, or else the platform's state directory.

    Never ``/tmp``, which platformdirs chooses if there is no runtime directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):  # noqa: PTH117 - the specification has a relative one ignored
        return Path(runtime) / APPLICATION / "auth"
    return state_directory(environ) / "auth"


def auth_file_elsewhere(auth_file: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the auth file of this user where sessions have another place for it, if there is one.

    cron, ``su`` and ``sudo`` have no XDG_RUNTIME_DIR, unlike the sessions of a desktop and of ssh.
    """
    usual = (
        state_directory(environ) if environ.get("XDG_RUNTIME_DIR") else Path(f"/run/user/{os.getuid()}", APPLICATION)
    )
    other = usual / "auth"
    return other if other != auth_file and os.path.isfile(other) else None  # noqa: PTH113 - it never raises


def socket_of(auth_file: Path, port: int) -> Path:
    """Return the path of the Unix socket of the daemon with this ``auth_file`` and ``port``; both are in its name."""
    return auth_file.with_name(f"{auth_file.name}.{port}.sock")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the platform's directory for state, as opposed to the user's data."""
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_STATE_HOME", ".local/state")
    import platformdirs

    return platformdirs.user_state_path(APPLICATION, appauthor=False)


def _xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    # As platformdirs on Linux, without its import time.
    path = environ.get(variable, "").strip()
    return (Path(path) if path else Path.home() / default) / APPLICATION


class Whereabouts(NamedTuple):
    """A running daemon: its ``url``, its process, and its ``version``.

    ``started`` is the clock ticks from the machine's boot to the start of the process, None if the system does not
    tell.
    """

    url: str
    pid: int
    started: int | None
    version: str

    def text(self) -> str:
        """Return the content of the file, for :func:`read_daemon_file`."""
        return json.dumps(self._asdict()) + "\n"


def daemon_file_of(auth_file: Path) -> Path:
    """Return the path of the file ``daemon.json`` for the daemon with this ``auth_file``."""
    # Several daemons may have their auth files in one directory.
    return auth_file.with_name("daemon.json" if auth_file.name == "auth" else f"{auth_file.name}.daemon.json")


def find_daemon(auth_file: Path) -> Whereabouts | None:
    """Return the content for the daemon with this ``auth_file``, or None if it does not run or left no file."""
    try:
        return read_daemon_file(daemon_file_of(auth_file))
    except OSError:
        return None


def read_daemon_file(path: Path) -> Whereabouts:
    """Return the content that a running daemon has written to ``path``.

    :raises OSError: there is no such file, or it is not trusted, as its ``strerror`` says: others could have written
        it, it is not a daemon's, or its daemon does not run (:class:`ProcessLookupError`).
    """
    # O_NONBLOCK, so that a FIFO is refused instead of waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not is_trusted(status.st_uid):
            raise PermissionError(errno.EPERM, "it is not a file of this user or root", str(path))
        if status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "it is open to others", str(path))
        daemon = _parsed(os.read(descriptor, MAX_FILE_BYTES))
    finally:
        os.close(descriptor)
    if daemon is None:
        raise OSError(errno.EINVAL, "it is not a daemon's", str(path))
    if not _runs(daemon):
        raise ProcessLookupError(errno.ESRCH, f"its daemon, process {daemon.pid}, does not run", str(path))
    return daemon


def url_of(host: str, port: int | str) -> str:
    """Return the URL of a daemon that listens on ``host``; a wildcard address is reached over loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what listens on ``host``, an address or ``localhost``."""
    # Every command loads this module, and few ask this.
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(content: bytes) -> Whereabouts | None:
    try:
        daemon = Whereabouts(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = isinstance(daemon.url, str) and isinstance(daemon.version, str)
    numbers = isinstance(daemon.pid, int) and daemon.pid > 0 and isinstance(daemon.started, int | None)
    return daemon if texts and numbers else None


def _runs(daemon: Whereabouts) -> bool:
    try:
        return daemon.started == start_of(daemon.pid)
    except PermissionError:
        # Another user's process has this id.
        return False
    except (ProcessLookupError, OverflowError):
        return False
