"""Hosts behind control sockets, as ssh and others call them by a configuration with their ControlPath."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pexpect

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS
from tests.rights.wire import Holder

Done = subprocess.CompletedProcess[bytes]


class Hosts:
    """The control sockets of a daemon's owner, or of the ``holder`` of a token, and programs over them."""

    def __init__(self, connmgr: CommandLine, holder: Holder | None = None) -> None:
        self.connmgr = connmgr
        self.post: Callable[..., Any] = connmgr.daemon.client.post if holder is None else holder.ok
        self.home = connmgr.daemon.home
        self.environment = {**connmgr.environment}
        self.config = self.home / ("ssh_config" if holder is None else f"ssh_config.{holder.id}")
        self.paths: dict[str, str] = {}
        self._terminals: list[pexpect.spawn] = []
        self.open()

    def open(self, *connections: str) -> list[dict[str, Any]]:
        """Open the control sockets, and write the configuration that finds them."""
        wanted = {"connections": list(connections)} if connections else {}
        sockets: list[dict[str, Any]] = self.post("/multiplex/open", **wanted)["sockets"]
        self.paths |= {host: one["path"] for one in sockets for host in one["hosts"]}
        # Nothing but the control socket leads anywhere.
        lines = ["ControlMaster no", "ProxyCommand false", "SendEnv LANG LC_*"]
        hosts = [f"Host {host}\n    ControlPath {path}\n" for host, path in self.paths.items()]
        self.config.write_text("".join(hosts) + "Host *\n" + "".join(f"    {line}\n" for line in lines))
        return sockets

    def run(self, *argv: str, code: int | None = 0, stdin: bytes | None = b"", **more: Any) -> Done:
        """Run a program to its end; its exit code must be ``code``, unless that is None."""
        more = {"env": self.environment, "cwd": self.home, "capture_output": True, "timeout": DEADLINE_SECONDS, **more}
        if stdin is not None:
            more["input"] = stdin
        # Without a terminal, even if the tests have one.
        done: Done = subprocess.run(argv, check=False, start_new_session=True, **more)
        assert code in (None, done.returncode), f"{argv} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def ssh(self, *words: str, **more: Any) -> Done:
        """Run ssh to its end."""
        return self.run("ssh", "-F", str(self.config), *words, **more)

    @contextmanager
    def running(self, *words: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start ssh; it is killed at the end of the block, and its streams are closed."""
        pipe = subprocess.PIPE
        more = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": self.environment, "cwd": self.home, **more}
        argv = ["ssh", "-F", str(self.config), *words]
        with subprocess.Popen(argv, start_new_session=True, **more) as process:
            try:
                yield process
            finally:
                process.kill()

    def on_terminal(self, *words: str, columns: int = 80, rows: int = 24) -> pexpect.spawn:
        """Start ssh on a new terminal, where it runs until :meth:`close_terminals` at the latest."""
        return self.terminal_of("ssh", "-F", str(self.config), *words, columns=columns, rows=rows)

    def terminal_of(self, program: str, *words: str, columns: int = 80, rows: int = 24) -> pexpect.spawn:
        """Start a program on a new terminal, as :meth:`on_terminal` starts ssh."""
        terminal = pexpect.spawn(
            program,
            list(words),
            env=self.environment | {"TERM": "xterm"},
            cwd=str(self.home),
            timeout=DEADLINE_SECONDS,
            encoding="utf-8",
            dimensions=(rows, columns),
        )
        self._terminals.append(terminal)
        return terminal

    def close_terminals(self) -> None:
        """End the programs on terminals that still run, so that no later test meets their sessions."""
        while self._terminals:
            self._terminals.pop().close(force=True)


def said(done: Done) -> list[str]:
    """Return the lines of standard error."""
    return done.stderr.decode().splitlines()
