"""``connmgr doctor``: finds what is wrong on this machine, and says what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr import paths
from connmgr.cli.exits import FAILED
from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.output import counted, json_option, print_json, print_table, visible
from connmgr.errors import ConnmgrError

if TYPE_CHECKING:
    from connmgr.settings import Settings

OK, WARNING, PROBLEM = "ok", "warning", "problem"
MIN_FREE_BYTES = 100 * 1024 * 1024
MAX_CLOCK_SKEW_SECONDS = 300.0
PROGRAMS = {
    "ssh": "a ProxyCommand in ~/.ssh/config may call it; connmgr itself does not need it",
    "ssh-keygen": "to make keys and to look at known_hosts",
}


@dataclass(frozen=True)
class Finding:
    """What was found about ``subject``, and ``advice`` if something is to be done."""

    subject: str
    result: str
    message: str
    advice: str = ""


@click.command()
@json_option
@setting_options("host", "port", "data_dir", "auth_file", "database_url", "key_store")
def doctor(*, as_json: bool, **given: Any) -> None:
    """Check files, key, vault, plugins, programs, clock, port and leftovers of jobs, and say what to do.

    It changes nothing, and a daemon may run meanwhile. It exits with 1 if something is wrong. Warnings are no fault.
    """
    findings = list(_findings(given))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([(one.result.upper() if one.result != OK else OK, one.subject, one.message) for one in findings])
        for one in findings:
            if one.advice:
                click.echo(f"\n{visible(f'{one.subject}: {one.advice}')}")
    if any(finding.result == PROBLEM for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _findings(given: dict[str, Any]) -> Iterator[Finding]:
    try:
        settings = read_settings(given)
    except ConnmgrError as error:
        yield Finding("settings", PROBLEM, error.message, "Correct it there; docs/OPERATIONS.md lists all settings.")
        return
    yield Finding("settings", OK, "can be read")
    for check in CHECKS:
        yield from check(settings)


def _files(settings: Settings) -> Iterator[Finding]:
    directory = settings.data_dir
    if not directory.exists():
        yield Finding("data directory", OK, f"{directory} is made at the first start")
        return
    yield _private("data directory", directory, 0o700)
    wrong = [found for path in sorted(directory.iterdir()) if (found := _private_entry(path)).result != OK]
    yield from wrong
    if not wrong:
        yield Finding("files", OK, "all in the data directory are closed to others")
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        yield Finding("disk", WARNING, f"{free >> 20} MiB are free at {directory}", "Make room, or move --data-dir.")
    else:
        yield Finding("disk", OK, f"{free >> 20} MiB are free")


def _private_entry(path: Path) -> Finding:
    return _private(path.name, path, 0o700 if path.is_dir() else 0o600)


def _private(subject: str, path: Path, mode: int) -> Finding:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Finding(subject, PROBLEM, f"{path} is a symbolic link", "Put the file itself there.")
    if status.st_uid != os.geteuid():
        return Finding(subject, PROBLEM, f"{path} belongs to another user", "Run connmgr as that user, or chown it.")
    if status.st_mode & 0o077:
        return Finding(subject, PROBLEM, f"{path} is open to others", f"chmod {mode:o} {path}")
    return Finding(subject, OK, f"{path} is closed to others")


def _config(settings: Settings) -> Iterator[Finding]:
    path = paths.config_file(os.environ)
    if not path.exists():
        yield Finding("config.toml", OK, "there is none")
    elif path.stat().st_mode & 0o022:
        yield Finding("config.toml", PROBLEM, f"others may write {path}", f"chmod 600 {path}")
    elif path.stat().st_mode & 0o044 and settings.database_url:
        message = f"others may read {path}, and the database's password if it holds one"
        yield Finding("config.toml", WARNING, message, f"chmod 600 {path}")
    else:
        yield Finding("config.toml", OK, str(path))


def _vault(settings: Settings) -> Iterator[Finding]:
    from connmgr.daemon.storage import database_url, key_store
    from connmgr.vault import integrity, open_database

    try:
        database = open_database(database_url(settings))
    except ConnmgrError as error:
        advice = "" if settings.database_url else "`connmgr vault restore` brings a backup back."
        yield Finding("vault", PROBLEM, error.message, advice)
        return
    try:
        store = key_store(settings)
        if database.empty:
            yield Finding("vault", OK, "is made at the first start")
            return
        keys = [key for key in (store.read(), store.read_next()) if key and key.matches(database.key_verifier or b"")]
        if not keys:
            yield Finding("key", PROBLEM, "the vault's key is missing or another vault's", "Put back the right key.")
            return
        yield Finding("key", OK, "is the vault's")
        found = integrity.faults(database, keys[0])
        advice = "It was changed outside of connmgr, or the disk is bad: restore a backup, or remove what is damaged."
        yield from (Finding("vault", PROBLEM, message, advice) for message in found)
        if not found:
            yield Finding("vault", OK, "every record is authentic")
    except ConnmgrError as error:
        yield Finding("vault", PROBLEM, error.message)
    finally:
        database.close()


def _plugins(_: Settings) -> Iterator[Finding]:
    from connmgr.registry import Registry

    registry = Registry.load()
    for problem in registry.problems:
        message = f"{problem.plugin} of {problem.distribution} is not used: {problem.reason}"
        yield Finding("plugins", PROBLEM, message, f"Update or uninstall {problem.distribution}.")
    names = ", ".join(entry.type.name for entry in registry)
    yield Finding("plugins", OK if names else PROBLEM, f"connection types: {names or 'none'}")


def _programs(_: Settings) -> Iterator[Finding]:
    for name, purpose in PROGRAMS.items():
        found = shutil.which(name)
        if found:
            yield Finding(name, OK, found)
        else:
            yield Finding(name, WARNING, f"is not installed: {purpose}", "Install the OpenSSH client.")
    agent = os.environ.get("SSH_AUTH_SOCK")
    if agent and not Path(agent).is_socket():
        advice = "Start an agent, or unset SSH_AUTH_SOCK where the daemon starts."
        yield Finding("ssh agent", WARNING, f"SSH_AUTH_SOCK names {agent}, where no agent is", advice)


def _clock(settings: Settings) -> Iterator[Finding]:
    files = list(settings.data_dir.glob("*")) if settings.data_dir.exists() else []
    ahead = max((path.lstat().st_mtime for path in files), default=0.0) - time.time()
    if ahead > MAX_CLOCK_SKEW_SECONDS:
        advice = "Set the clock: times in the vault, the log and certificates depend on it."
        yield Finding("clock", PROBLEM, f"files of the vault are from {ahead:.0f} s in the future", advice)
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _daemon(settings: Settings) -> Iterator[Finding]:
    answer = _who_answers(settings.host, settings.port)
    where = f"{settings.host}, port {settings.port}"
    if answer == "connmgr":
        yield Finding("port", OK, f"connmgr answers at {where}")
    elif answer:
        yield Finding("port", PROBLEM, f"{where} is taken by another program", "Stop it, or choose another --port.")
    else:
        yield Finding("port", OK, f"{where} is free")
    running = _holder_runs(settings.data_dir / "lock")
    if settings.auth_file.exists() or settings.auth_file.is_symlink():
        yield _private("auth file", settings.auth_file, 0o600)
        if not running and not answer:
            yield _other_auth_file(settings.auth_file)
    elif running:
        advice = "Restart the daemon: until then only clients with the API key are let in."
        yield Finding("auth file", PROBLEM, f"a daemon runs, and {settings.auth_file} is missing", advice)


def _other_auth_file(auth_file: Path) -> Finding:
    """Judge an auth file of no daemon on this vault or port: another daemon's, or a dead one's."""
    if _is_held(auth_file):
        advice = "Give doctor that daemon's --data-dir and --port; a second daemon needs an --auth-file of its own."
        return Finding("auth file", WARNING, f"{auth_file} is that of a running daemon with other settings", advice)
    message = f"{auth_file} is left from a daemon that was killed"
    return Finding("auth file", WARNING, message, "The next `connmgr serve` replaces it.")


def _is_held(auth_file: Path) -> bool:
    """Whether a running daemon holds the lock of its auth file; it locks the file before it writes."""
    try:
        descriptor = os.open(auth_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not os.fstat(descriptor).st_size:
            # A daemon is making the file; taking even a shared lock could make it fail.
            return True
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def _who_answers(host: str, port: int) -> str:
    """Return who answers at an address: ``connmgr``, ``other``, or the empty string for nobody."""
    import http.client

    connection = http.client.HTTPConnection(host, port, timeout=3)
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


def _holder_runs(lock: Path) -> bool:
    """Whether the process that a lock file names exists; testing the lock itself would take it."""
    try:
        os.kill(int(lock.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def _orphans(settings: Settings) -> Iterator[Finding]:
    from connmgr.cli.orphans import orphans_of_open

    if not settings.auth_file.exists():
        return
    numbers, asked, passed_over = orphans_of_open(settings)
    for path, number in numbers.items():
        message = f"{path} keeps {counted(number, 'job')} that the vault does not know"
        name = shlex.quote(path)
        advice = (
            f"`connmgr job orphans {name}` lists them; `connmgr job orphans {name} --remove` clears what has ended."
        )
        yield Finding("jobs", WARNING, message, advice)
    if passed_over:
        yield Finding("jobs", OK, f"{counted(passed_over, 'connection')} could not be asked what is left there")
    if asked and not numbers:
        yield Finding("jobs", OK, f"none is left behind on {counted(asked, 'connection')} with a running shell")


CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _files,
    _config,
    _vault,
    _plugins,
    _programs,
    _clock,
    _daemon,
    _orphans,
)
