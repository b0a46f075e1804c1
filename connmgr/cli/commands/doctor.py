"""``connmgr doctor``: finds what is wrong on this machine, and says what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from connmgr import paths
from connmgr.cli.commands.jobs import orphans_of_open
from connmgr.cli.exits import FAILED
from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.output import json_option, plural, print_json, print_table
from connmgr.cli.plain import address
from connmgr.client import Client, ClientError
from connmgr.client.address import is_address_named
from connmgr.errors import ConnmgrError
from connmgr.paths import daemon_file_of, read_daemon_file
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.settings import Settings


ANSWER_SECONDS = 5.0


@click.command()
@json_option
@setting_options("host", "port", "data_dir", "auth_file", "database_url", "key_store")
def doctor(*, as_json: bool, **flags: Any) -> None:
    """Check the installation, and say what to do.

    It checks files, key, vault, plugins, programs, clock, daemon and leftovers of jobs. It changes nothing. If a daemon
    runs, programs and SSH agent are those that the daemon finds. It exits with 1 if something is wrong, but not for
    warnings.
    """
    findings = list(_findings(flags))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(
            [
                (finding.result.upper() if finding.result != OK else OK, finding.subject, finding.message)
                for finding in findings
            ]
        )
        for finding in findings:
            if finding.advice:
                click.echo(f"\n{visible(f'{finding.subject}: {finding.advice}')}")
    if any(finding.result == PROBLEM for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _findings(flags: dict[str, Any]) -> Iterator[Finding]:
    try:
        settings = read_settings(flags)
    except ConnmgrError as error:
        yield Finding("settings", PROBLEM, error.message, "Correct it there; docs/OPERATIONS.md lists all settings.")
        return
    yield Finding("settings", OK, "can be read")
    is_named = is_address_named() or any(flags[name] is not None for name in ("host", "port"))
    url = click.get_current_context().find_root().params["url"] or address(settings, is_named=is_named)
    examined = Examined(settings, url, _status(url, settings))
    for check in CHECKS:
        yield from check(examined)


def _status(url: str, settings: Settings) -> dict[str, Any] | None:
    try:
        client = Client(url, settings.auth_file, timeout=ANSWER_SECONDS)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # Without the file there is no credential, and the daemon would only refuse.
    if not os.path.lexists(settings.auth_file):
        return None
    with client, suppress(ClientError):
        answer: dict[str, Any] = client.post("/daemon/status")
        return answer
    return None


OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """A finding about ``subject``, with ``advice`` if something should be done."""

    subject: str
    result: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Examined:
    """The settings, the ``url`` of their daemon, and its answer to /daemon/status, or None without access."""

    settings: Settings
    url: str
    status: dict[str, Any] | None

    @property
    def environment(self) -> dict[str, Any] | None:
        """Return what the daemon says of its environment, None without a daemon or with one of an older version."""
        return None if self.status is None else self.status.get("environment")


MIN_FREE_BYTES = 100 * 1024 * 1024
MAX_CLOCK_SKEW_SECONDS = 300.0


def _data_directory(examined: Examined) -> Iterator[Finding]:
    """Examine the data directory, each file in it, and the free space on its disk."""
    directory = examined.settings.data_dir
    if not directory.exists():
        yield Finding("data directory", OK, f"{directory} will be created at the first start")
        return
    yield _private("data directory", directory, 0o700)
    modes = {path: 0o700 if path.is_dir() else 0o600 for path in sorted(directory.iterdir())}
    judged = [_private(path.name, path, mode) for path, mode in modes.items()]
    wrong = [finding for finding in judged if finding.result != OK]
    yield from wrong
    if not wrong:
        yield Finding("files", OK, "only this user can read those in the data directory")
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        yield Finding("disk", WARNING, f"{free >> 20} MiB are free at {directory}", "Make room, or move --data-dir.")
    else:
        yield Finding("disk", OK, f"{free >> 20} MiB are free")


def _private(subject: str, path: Path, mode: int) -> Finding:
    """Judge whether ``path`` is this user's own and closed to others, as with ``mode``."""
    # Of the link itself, whose target may be anybody's.
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Finding(subject, PROBLEM, f"{path} is a symbolic link", "Put the file itself there.")
    if status.st_uid != os.geteuid():
        return Finding(subject, PROBLEM, f"{path} belongs to another user", "Run connmgr as that user, or chown it.")
    if status.st_mode & 0o077:
        return Finding(subject, PROBLEM, f"{path} is open to others", f"chmod {mode:o} {path}")
    return Finding(subject, OK, f"{path} is closed to others")


def _config(examined: Examined) -> Iterator[Finding]:
    """Examine who may read and write the configuration file."""
    path = paths.config_file(os.environ)
    if not path.exists():
        yield Finding("config.toml", OK, "not used: the file does not exist")
    elif path.stat().st_mode & 0o022:
        yield Finding("config.toml", PROBLEM, f"others may write {path}", f"chmod 600 {path}")
    elif path.stat().st_mode & 0o044 and examined.settings.database_url:
        message = f"others may read {path}, and the database's password if it holds one"
        yield Finding("config.toml", WARNING, message, f"chmod 600 {path}")
    else:
        yield Finding("config.toml", OK, str(path))


def clock(examined: Examined) -> Iterator[Finding]:
    """Compare the clock with the times of the vault's files."""
    directory = examined.settings.data_dir
    files = list(directory.glob("*")) if directory.exists() else []
    ahead = max((path.lstat().st_mtime for path in files), default=0.0) - time.time()
    # A file from the future: the clock was set back, or was wrong when the file was written.
    if ahead > MAX_CLOCK_SKEW_SECONDS:
        advice = "Set the clock: times in the vault, the log and certificates depend on it."
        yield Finding("clock", PROBLEM, f"files of the vault are {ahead:.0f} s newer than the clock", advice)
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _vault(examined: Examined) -> Iterator[Finding]:
    """Examine key and records, also while a daemon runs."""
    from connmgr.daemon.files import database_url, key_store
    from connmgr.vault import integrity, open_database

    settings = examined.settings
    try:
        database = open_database(database_url(settings))
    except ConnmgrError as error:
        advice = "" if settings.database_url else "`connmgr vault restore` brings a backup back."
        yield Finding("vault", PROBLEM, error.message, advice)
        return
    try:
        store = key_store(settings)
        if database.empty:
            yield Finding("vault", OK, "will be created at the first start")
            return
        keys = [key for key in (store.read(), store.read_next()) if key and key.matches(database.key_verifier or b"")]
        if not keys:
            yield Finding("key", PROBLEM, "the vault's key is missing or another vault's", "Put back the right key.")
            return
        yield Finding("key", OK, "is the vault's")
        faults = integrity.faults(database, keys[0])
        advice = "It was changed outside of connmgr, or the disk is bad: restore a backup, or remove what is damaged."
        yield from (Finding("vault", PROBLEM, message, advice) for message in faults)
        if not faults:
            yield Finding("vault", OK, "every record is authentic")
    except ConnmgrError as error:
        yield Finding("vault", PROBLEM, error.message)
    finally:
        database.close()


AGENT_SECONDS = 1.0

PROGRAMS = {
    "ssh": "a ProxyCommand in ~/.ssh/config may call it; connmgr itself does not need it",
    "ssh-keygen": "to make keys and to look at known_hosts",
}


def _plugins(_: Examined) -> Iterator[Finding]:
    """List the connection types, and the plugins that are not used."""
    from connmgr.registry import Registry

    registry = Registry.load()
    for problem in registry.problems:
        message = f"{problem.plugin} of {problem.distribution} is not used: {problem.reason}"
        yield Finding("plugins", PROBLEM, message, f"Update or uninstall {problem.distribution}.")
    names = ", ".join(entry.type.name for entry in registry)
    yield Finding("plugins", OK if names else PROBLEM, f"connection types: {names or 'none'}")


def _programs(examined: Examined) -> Iterator[Finding]:
    """Look for programs in the daemon's PATH; without a daemon in that of doctor."""
    for name, purpose in PROGRAMS.items():
        if examined.environment:
            path, where = examined.environment["path"], " in the daemon's PATH"
        else:
            path, where = os.environ.get("PATH"), ""
        program = shutil.which(name, path=path)
        if program:
            yield Finding(name, OK, f"{program}{where}")
        else:
            yield Finding(name, WARNING, f"not found{where}: {purpose}", "Install the OpenSSH client.")


def agent(examined: Examined) -> Iterator[Finding]:
    """Examine the SSH agent that the daemon asks for keys, or without a daemon the one of doctor."""
    own = os.environ.get("SSH_AUTH_SOCK")
    if examined.environment is None:
        if own and not _answers(own):
            advice = "Start an agent, or unset SSH_AUTH_SOCK where the daemon starts."
            yield Finding("ssh agent", WARNING, f"SSH_AUTH_SOCK names {own}, where no agent answers", advice)
        return
    advice = "Restart the daemon where an agent answers, or run `connmgr service install --ssh-agent` there."
    agent_socket = examined.environment.get("agentSocket")
    if agent_socket and _answers(agent_socket):
        yield Finding("ssh agent", OK, f"the daemon's answers at {agent_socket}")
    elif agent_socket:
        yield Finding(
            "ssh agent", WARNING, f"the daemon's SSH_AUTH_SOCK names {agent_socket}, where no agent answers", advice
        )
    elif own and _answers(own):
        yield Finding(
            "ssh agent", WARNING, "the daemon has no SSH_AUTH_SOCK, so it cannot use the agent's keys", advice
        )


def _answers(agent: str) -> bool:
    """Whether something listens on a Unix socket; a dead agent leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(AGENT_SECONDS)
        try:
            probe.connect(agent)
        except (OSError, ValueError):
            return False
    return True


VERSION_SECONDS = 3.0
REPLACED = "The next `connmgr serve` replaces it."


def _daemon(examined: Examined) -> Iterator[Finding]:
    """Examine the address, the vault's lock, the file with the daemon's address, and the auth file."""
    settings = examined.settings
    answer, holder = _who_answers(examined.url), _holder(settings.data_dir / "lock")
    if answer == "connmgr" and not holder:
        message = f"a daemon of another vault answers at {examined.url}, and none has {settings.data_dir} open"
        advice = "`connmgr serve --port` with another port starts one; `connmgr doctor --data-dir` examines the other."
        yield Finding("port", WARNING, message, advice)
    elif answer == "connmgr":
        yield Finding("port", OK, f"connmgr answers at {examined.url}")
    elif answer:
        message = f"another program answers at {examined.url}"
        yield Finding("port", PROBLEM, message, "Stop it, or choose another --port.")
    else:
        yield Finding("port", OK, f"nothing answers at {examined.url}")
    if holder:
        yield Finding("daemon", OK, holder)
    yield from _told_whereabouts(daemon_file_of(settings.auth_file))
    if os.path.lexists(settings.auth_file):
        yield _private("auth file", settings.auth_file, 0o600)
        if not holder and not answer:
            yield _other_auth_file(settings.auth_file)
    elif holder:
        advice = "Restart the daemon: until then only clients with the API key are let in."
        yield Finding("auth file", PROBLEM, f"a daemon runs, and {settings.auth_file} is missing", advice)


def _told_whereabouts(path: Path) -> Iterator[Finding]:
    try:
        running = read_daemon_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding(path.name, WARNING, f"{path} is not used: {error.strerror}", REPLACED)
    else:
        yield Finding(path.name, OK, f"tells clients of process {running.pid}, which listens on {running.url}")


def _holder(lock: Path) -> str:
    """Return who has the vault open and where that daemon listens, or ``""``; testing the lock would take it."""
    with suppress(OSError, ValueError):
        pid, *url = lock.read_text().split()
        os.kill(int(pid), 0)
        return f"process {pid} has the vault open" + "".join(f" and listens on {address}" for address in url[:1])
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
        # A daemon locks the file while it runs, and the kernel drops the lock however the daemon ends.
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
    # A daemon refuses a request without a token by this code, which says enough.
    return "connmgr" if b"not_authenticated" in body or b"connmgr" in body else "other"


def _orphans(examined: Examined) -> Iterator[Finding]:
    """Ask the machines that the daemon has shells on."""
    if examined.status is None:
        return
    numbers, reached, passed_over = orphans_of_open(examined.url, examined.settings.auth_file)
    for path, number in numbers.items():
        message = f"{path} keeps {plural(number, 'job')} that the vault does not know"
        name = shlex.quote(path)
        advice = (
            f"`connmgr job orphans {name}` lists them; `connmgr job orphans {name} --remove` clears what has ended."
        )
        yield Finding("jobs", WARNING, message, advice)
    if passed_over:
        yield Finding("jobs", OK, f"{plural(passed_over, 'connection')} could not be asked for leftovers")
    if reached and not numbers:
        yield Finding("jobs", OK, f"no leftovers on {plural(reached, 'connection')} with a running shell")


CHECKS: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    _data_directory,
    _config,
    _vault,
    _plugins,
    _programs,
    agent,
    clock,
    _daemon,
    _orphans,
)
