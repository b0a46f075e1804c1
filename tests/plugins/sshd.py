"""OpenSSH's sshd on a free loopback port, with keys and a configuration of its own; and ssh-agent."""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil

from tests.components import program
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.ports import ReservedPort

PRIVILEGE_SEPARATION = Path("/run/sshd")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "", *options: str) -> Path:
    """Write a key pair and return the private key's path; the public one has ``.pub`` added.

    All RSA keys of a process are the same one.
    """
    if kind != "rsa":
        _ssh_keygen("-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path), *options)
        return path
    private, public = _rsa_key()
    path.write_text(private)
    path.chmod(0o600)
    path.with_name(f"{path.name}.pub").write_text(f"{public} {path.name}\n")
    if passphrase or options:
        _ssh_keygen("-p", *options, "-P", "", "-N", passphrase, "-f", str(path))
    return path


@cache
def _rsa_key() -> tuple[str, str]:
    """Return a private key and its public one without a comment; finding the primes takes a fifth of a second."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "key")
        _ssh_keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", str(path))
        public = " ".join(path.with_name("key.pub").read_text().split()[:2])
        return path.read_text(), public


def certify(authority: Path, public: Path, principals: str, *options: str) -> Path:
    """Sign ``public`` (a ``.pub`` file) with ``authority`` and return the certificate's path."""
    _ssh_keygen("-s", str(authority), "-I", "test", "-n", principals, *options, str(public))
    return public.with_name(public.name.removesuffix(".pub") + "-cert.pub")


def _ssh_keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, timeout=60, stdin=subprocess.DEVNULL)


@cache
def _without_penalties() -> dict[str, str]:
    """Return the options that stop sshd from penalizing clients with failed logins, as OpenSSH does since 9.8."""
    path = program("sshd")
    assert path
    done = subprocess.run([path, "-V"], check=False, timeout=60, capture_output=True, text=True)
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", done.stdout + done.stderr)
    assert version, done.stderr
    return {"PerSourcePenalties": "no"} if tuple(map(int, version.groups())) >= (9, 8) else {}


class Sshd:
    """A running sshd.

    ``options`` are lines of sshd_config by keyword, which outrank the defaults below. ``client_key`` is admitted for
    every user; ``user`` is whom tests log in as, this process's own by default. The directory is readable by all, as
    sshd needs it.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        host_keys: tuple[str, ...] = ("ed25519",),
        user: str | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        self.inside = inside
        self.directory = Path(tempfile.mkdtemp(prefix="connmgr-sshd-"))
        self.directory.chmod(0o755)
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self.user = user or getpass.getuser()
        self.host_keys = [keygen(self.directory / f"host_{kind}", kind) for kind in host_keys]
        self.client_key = keygen(self.directory / "client")
        self.authorized_keys = self.directory / "authorized_keys"
        self.authorized_keys.write_text(self.client_key.with_suffix(".pub").read_text())
        self.authorized_keys.chmod(0o644)
        self.options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The listening process."""
        assert self._process
        return self._process.pid

    def configuration(self) -> str:
        """Return the text of its sshd_config."""
        lines = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.authorized_keys),
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "MaxStartups": "200",
            "MaxSessions": "200",
            "LogLevel": "VERBOSE",
            **_without_penalties(),
            **self.options,
        }
        keys = [f"HostKey {key}" for key in self.host_keys]
        return "\n".join([f"{keyword} {value}" for keyword, value in lines.items()] + keys) + "\n"

    def start(self) -> None:
        """Start it, on the port that it had, and wait until it listens."""
        config = self.directory / "sshd_config"
        config.write_text(self.configuration())
        path = program("sshd")
        assert path
        log = self.directory / "log"
        with log.open("ab") as stderr:
            start = len(self.log())
            argv = [*self.inside, path, "-D", "-e", "-f", str(config)]
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=stderr)
        self._wait_until_listening(start)

    def _wait_until_listening(self, start: int) -> None:
        assert self._process
        log = eventually(
            lambda: self.log()[start:],
            "sshd does not listen",
            holds=lambda log: "Server listening" in log or self._process.poll() is not None,
        )
        assert self._process.poll() is None, f"sshd ended: {log}"

    def log(self) -> str:
        """Return what it has logged."""
        return (self.directory / "log").read_text(errors="replace")

    def sessions(self) -> list[psutil.Process]:
        """Return the processes that serve connections, and their children."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def freeze(self) -> None:
        """Stop every process with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue after :meth:`freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in [psutil.Process(self.pid), *self.sessions()]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill_sessions(self) -> None:
        """Kill the processes that serve connections, so that the kernel closes their sockets; the listener stays."""
        for process in self.sessions():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def drop_sessions(self) -> None:
        """Kill the processes that serve connections, but not their children; the listener stays."""
        for process in self.sessions():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    process.kill()

    def crash(self) -> None:
        """Kill the server and the processes that serve connections, but not their children."""
        if self._process is not None:
            self.drop_sessions()
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def stop(self) -> None:
        """Kill the server, the processes that serve connections, and their children."""
        if self._process is None:
            return
        doomed = self.sessions()
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process = None

    def close(self) -> None:
        """Stop it and remove its directory."""
        self.stop()
        self._reserved.close()
        shutil.rmtree(self.directory)

    def known_hosts(self, name: str | None = None) -> str:
        """Return its host keys as lines of a known_hosts file."""
        name = name or f"[127.0.0.1]:{self.port}"
        return "".join(f"{name} {key.with_suffix('.pub').read_text()}" for key in self.host_keys)


@contextmanager
def privilege_separation() -> Iterator[None]:
    """Create the empty directory that sshd needs as root; the last test process removes it if one created it."""
    if os.geteuid() != 0:
        yield
        return
    # Beside that directory, because other test processes may have a private /tmp; and users hold a lock instead of
    # leaving their pid, which another process may have in another namespace.
    made = PRIVILEGE_SEPARATION.with_name("connmgr-tests-made-sshd")
    with _locked(PRIVILEGE_SEPARATION.parent):
        if not PRIVILEGE_SEPARATION.exists():
            PRIVILEGE_SEPARATION.mkdir(mode=0o755)
            made.touch()
        used = os.open(PRIVILEGE_SEPARATION, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(used, fcntl.LOCK_SH)
    try:
        yield
    finally:
        with _locked(PRIVILEGE_SEPARATION.parent), suppress(BlockingIOError):
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if made.exists():
                PRIVILEGE_SEPARATION.rmdir()
                made.unlink()
        os.close(used)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # The directory itself: a lock file that the last process removes would be another one for whoever waits for it.
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


class SshAgent:
    """A running ssh-agent, with more ``options`` and an ``environment`` of its own, if given."""

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="connmgr-agent-"))
        self.socket = self.directory / "agent"
        argv = ["ssh-agent", "-D", "-a", str(self.socket), *options]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=environment)
        eventually(self.socket.exists, "ssh-agent does not start")

    def add(self, key: Path) -> None:
        """Let it hold a private key, and the certificate beside it if there is one."""
        environment = {**os.environ, "SSH_AUTH_SOCK": str(self.socket)}
        subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, timeout=20, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)
