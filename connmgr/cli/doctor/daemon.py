"""Whether a daemon runs, where it listens, and whether its clients find it and may log in."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from connmgr.cli.doctor.files import private
from connmgr.cli.doctor.finding import OK, PROBLEM, WARNING, Examined, Finding
from connmgr.paths import daemon_file_of, read_daemon_file

VERSION_SECONDS = 3.0
REPLACED = "The next `connmgr serve` replaces it."


def daemon(examined: Examined) -> Iterator[Finding]:
    """Examine the address, the vault's lock, the file with the daemon's address, and the auth file."""
    settings = examined.settings
    answer = _who_answers(examined.url)
    if answer == "connmgr":
        yield Finding("port", OK, f"connmgr answers at {examined.url}")
    elif answer:
        message = f"at {examined.url} answers another program"
        yield Finding("port", PROBLEM, message, "Stop it, or choose another --port.")
    else:
        yield Finding("port", OK, f"nothing answers at {examined.url}")
    holder = _holder(settings.data_dir / "lock")
    if holder:
        yield Finding("daemon", OK, holder)
    yield from _told_whereabouts(daemon_file_of(settings.auth_file))
    if os.path.lexists(settings.auth_file):
        yield private("auth file", settings.auth_file, 0o600)
        if not holder and not answer:
            yield _other_auth_file(settings.auth_file)
    elif holder:
        advice = "Restart the daemon: until then only clients with the API key are let in."
        yield Finding("auth file", PROBLEM, f"a daemon runs, and {settings.auth_file} is missing", advice)


def _told_whereabouts(path: Path) -> Iterator[Finding]:
    try:
        found = read_daemon_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding(path.name, WARNING, f"{path} is not used: {error.strerror}", REPLACED)
    else:
        yield Finding(path.name, OK, f"tells clients of process {found.pid}, which listens on {found.url}")


def _holder(lock: Path) -> str:
    """Return who has the vault open and where that daemon listens, or ``""``; testing the lock would take it."""
    with suppress(OSError, ValueError):
        pid, *url = lock.read_text().split()
        os.kill(int(pid), 0)
        return f"process {pid} has the vault open" + "".join(f" and listens on {one}" for one in url[:1])
    return ""


def _other_auth_file(auth_file: Path) -> Finding:
    """Judge an auth file that belongs to no daemon on this vault or port: another daemon's, or a dead one's."""
    if _is_held(auth_file):
        advice = "Give doctor that daemon's --data-dir and --port; a second daemon needs an --auth-file of its own."
        return Finding("auth file", WARNING, f"{auth_file} is that of a running daemon with other settings", advice)
    return Finding("auth file", WARNING, f"{auth_file} is left from a daemon that was killed", REPLACED)


def _is_held(auth_file: Path) -> bool:
    """Whether a running daemon holds the lock of its auth file; it locks the file before it writes."""
    try:
        descriptor = os.open(auth_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not os.fstat(descriptor).st_size:
            # A daemon is creating the file; taking even a shared lock could make it fail.
            return True
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def _who_answers(url: str) -> str:
    """Return who answers at ``url``: ``connmgr``, ``other``, or ``""`` for nobody."""
    import http.client

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=VERSION_SECONDS)
    try:
        connection.request("GET", "/daemon/version")
        response = connection.getresponse()
        body = response.read(4096)
    except ConnectionRefusedError:
        return ""
    except (OSError, http.client.HTTPException):
        return "other"
    finally:
        connection.close()
    return "connmgr" if b"not_authenticated" in body or b"connmgr" in body else "other"
