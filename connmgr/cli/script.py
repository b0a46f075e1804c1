"""``connmgr exec --script``: a script of this machine, run on others."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import click

from connmgr.cli.exits import NOT_RUN, Failure
from connmgr.cli.sessions import BUSY_SECONDS, own_session
from connmgr.client import Client, ClientError, RawOutcome, RawResult
from connmgr.printable import visible

STREAM = "-"
"""Standard input in place of a file."""

INTERPRETER = "/bin/sh"
"""Runs a script without a ``#!`` line, as shells do."""


class Script(NamedTuple):
    """A script, and the arguments for it."""

    content: bytes
    arguments: Sequence[str]

    @classmethod
    def read(cls, path: str, arguments: Sequence[str]) -> Script:
        """Read the script at ``path``, or on standard input.

        :raises Failure: its first line cannot name an interpreter.
        """
        content = sys.stdin.buffer.read() if path == STREAM else Path(path).expanduser().read_bytes()
        script = cls(content, tuple(arguments))
        if not script.interpreter:
            raise Failure(f"{path}: nothing was run: the line #! names no interpreter.", NOT_RUN)
        return script

    @property
    def interpreter(self) -> list[str]:
        """The program of the ``#!`` line, with at most one argument, as the kernel reads it (execve(2))."""
        first = self.content.partition(b"\n")[0]
        if not first.startswith(b"#!"):
            return [INTERPRETER]
        return first[2:].strip().decode(errors="surrogateescape").split(None, 1)

    @contextmanager
    def placed(self, client: Client, connection: str, session: str | None) -> Iterator[list[str]]:
        """Put the script on a connection's machine, yield the words that run it, and remove it.

        The connection's shell must run. The file is executable by its owner alone.
        """
        path = client.fs.script(connection, client.fs.blob(self.content), session=session)
        try:
            # A file system may forbid execution, so the interpreter is named.
            yield [*self.interpreter, path, *self.arguments]
        finally:
            directory = PurePosixPath(path).parent
            try:
                client.fs.remove(connection, str(directory), recursive=True, session=session)
            except ClientError as error:
                # A shell that stops removes its scripts.
                if error.code not in ("no_shell", "no_such_file"):
                    click.echo(f"connmgr: {visible(str(directory))} is left: {visible(error.message)}", err=True)


def outcomes(
    client: Client, script: Script, ids: Sequence[str], options: dict[str, Any], jobs: int
) -> Iterator[RawOutcome]:
    """Run ``script`` on the connections ``ids``, at most ``jobs`` at a time, and yield the outcome on each."""
    with ThreadPoolExecutor(jobs) as threads:
        running = [threads.submit(_outcome, client, script, id, options) for id in ids]
        try:
            for done in as_completed(running):
                yield done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _outcome(client: Client, script: Script, id: str, options: dict[str, Any]) -> RawOutcome:
    start = time.monotonic()
    result: RawResult | ClientError
    # A client is for one thread.
    with client.clone() as own:
        while True:
            try:
                result = _result(own, script, id, dict(options))
            except ClientError as error:
                if error.code == "busy" and time.monotonic() - start < BUSY_SECONDS:
                    time.sleep(error.retry_after or 1)
                    continue
                result = error
            return RawOutcome(id, (), time.monotonic() - start, result)


def _result(client: Client, script: Script, id: str, options: dict[str, Any]) -> RawResult:
    if elevate := options.pop("elevate", None):
        id = client.connection.elevate(id, elevate["user"])
    if options.pop("fresh", False):
        with own_session(client, id) as session:
            return _result(client, script, id, {**options, "session": session})
    restarted = client.shell.ensure(id, session=options["session"])
    with script.placed(client, id, options["session"]) as argv:
        result = client.shell.exec_bytes(id, argv=argv, **options)
    return result._replace(restarted=restarted or result.restarted)
