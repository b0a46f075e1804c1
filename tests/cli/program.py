"""The installed program ``connmgr``, run as the user of a daemon."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import termios
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
from ptyprocess import PtyProcess

from tests.daemon import Daemon, spawner
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.sshd import Sshd
from tests.spawner import PROGRAM, SERVER, Child, Spawner, forkable

DIRECTORY = PROGRAM.parent
SERVER_COMMANDS = frozenset({"api-key", "audit", "doctor", "import-ssh-config", "plugins", "serve", "vault"})
"""Commands that load code of the server or a plugin when they run."""


@dataclass(frozen=True)
class Done:
    """A program that has ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def output(self) -> str:
        return self.stdout.decode()

    @property
    def errors(self) -> str:
        return self.stderr.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def spawner_of(arguments: Collection[str]) -> Spawner:
    """Return the spawner that has loaded what the command of ``arguments`` needs."""
    return spawner(*SERVER) if SERVER_COMMANDS.intersection(arguments) else spawner()


def run(*arguments: str, environment: Mapping[str, str], stdin: str | bytes = b"", program: Path = PROGRAM) -> Done:
    """Run the program in the home directory of ``environment`` to its end, without a terminal.

    Where it is forked, it believes to be ``program``, which it names to others that are to start it.
    """
    content = stdin.encode() if isinstance(stdin, str) else stdin
    if forkable(environment):
        home = Path(environment["HOME"])
        done = spawner_of(arguments).run(arguments, environment, home, content, DEADLINE_SECONDS, program)
    else:
        done = subprocess.run(
            [PROGRAM, *arguments],
            input=content,
            capture_output=True,
            env=environment,
            cwd=environment["HOME"],
            timeout=DEADLINE_SECONDS,
            check=False,
            start_new_session=True,
        )
    return Done(done.returncode, done.stdout, done.stderr)


class CommandLine:
    """Runs the program in the environment of ``daemon``'s user, without a terminal."""

    program = PROGRAM

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.environment = {
            **daemon.environment,
            "PATH": f"{DIRECTORY}:{daemon.environment['PATH']}",
            "CONNMGR_PORT": daemon.url.rpartition(":")[2],
            "TERM": "xterm",
            # Each run is a POSIX session of its own, while tests mean one person at one terminal.
            "CONNMGR_SESSION": "-",
        }

    def __call__(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        code: int | None = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """Run the program to its end; its exit code must be ``code``, unless that is None."""
        given = self.environment | dict(environment or {})
        done = run(*arguments, environment=given, stdin=stdin, program=self.program)
        assert code in (None, done.code), f"connmgr {arguments} exited with {done.code}\n{done.stdout!r}\n{done.errors}"
        return done

    def begin(self, *arguments: str, stdin: int = subprocess.PIPE) -> Child:
        """Start the program in its user's home with pipes as its streams; another ``stdin`` is a descriptor."""
        return spawner_of(arguments).begin(arguments, self.environment, self.daemon.home, stdin)

    def on_terminal(self, *arguments: str, program: str = "connmgr", columns: int = 120) -> pexpect.spawn:
        """Start the program, or another ``program``, on a new terminal."""
        forked = program == "connmgr" and forkable(self.environment)
        return (_Forked if forked else pexpect.spawn)(
            str(DIRECTORY / program) if program == "connmgr" else program,
            list(arguments),
            env=self.environment,
            cwd=str(self.daemon.home),
            timeout=DEADLINE_SECONDS,
            encoding="utf-8",
            dimensions=(50, columns),
        )

    def add_ssh(self, name: str, server: Sshd, *fields: str) -> str:
        """Add a connection to ``server``, whose host key it pins, with further or other ``fields``; return its uuid."""
        key = " ".join(server.host_keys[0].with_suffix(".pub").read_text().split()[:2])
        data = [f"port={server.port}", f"user={server.user}", f"identity.file={server.client_key}", f"hostKey={key}"]
        others = {word.partition("=")[0] for word in fields}
        data = [word for word in data if word.partition("=")[0] not in others]
        return self("add", "ssh", name, "host=127.0.0.1", *data, *fields).output.strip()


class _Forked(pexpect.spawn):
    """The program on a new terminal, forked as :func:`run` does."""

    def _spawnpty(self, args: list[bytes], **options: Any) -> PtyProcess:
        arguments = [os.fsdecode(word) for word in args[1:]]
        main, other = os.openpty()
        try:
            fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", *options["dimensions"], 0, 0))
            child = spawner_of(arguments).start_on(other, arguments, options["env"], Path(options["cwd"]))
        finally:
            os.close(other)
        eventually(
            lambda: os.tcgetpgrp(main) == child.pid or child.poll() is not None,
            "Ctrl-C on the terminal would not reach the program",
        )
        return _ForkedProcess(child, main)


class _ForkedProcess(PtyProcess):
    """What pexpect asks about a process, of one that is a child of the spawner."""

    def __init__(self, child: Child, terminal: int) -> None:
        super().__init__(child.pid, terminal)
        self._child = child

    def isalive(self) -> bool:
        code = self._child.poll()
        if code is None:
            return True
        self.terminated = True
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        return False

    def wait(self) -> int | None:
        self._child.wait()
        self.isalive()
        return self.exitstatus


def finish(terminal: pexpect.spawn) -> tuple[int | None, str]:
    """Wait for the program's end, and return its exit code and its output since the last match."""
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus, str(terminal.before)
