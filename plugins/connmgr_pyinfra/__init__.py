"""pyinfra over the connections of a daemon: ``@connmgr/NAME``, and ``@connmgr/GLOB`` for all that match."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import click
from pyinfra.api import QuoteString, StringCommand
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.api.util import get_file_io
from pyinfra.connectors.base import BaseConnector, DataMeta
from pyinfra.connectors.util import (
    CommandOutput,
    OutputLine,
    execute_command_with_sudo_retry,
    make_unix_command_for_host,
)

from connmgr.client import Client, ClientError, Stream
from connmgr.client.names import telling
from connmgr.client.sessions import Slot, connect

PROGRAM = "pyinfra"
COMMAND_SECONDS = 86400.0
"""The daemon's limit for one command; ``_timeout`` ends it sooner."""

SHELL = "shell"
"""The ``usage`` of connections that run commands."""

OTHER_USERS = ("_sudo", "_doas", "_dzdo", "_su_user")
"""The arguments that run commands as another user, and the prefixes of the arguments that go with them."""

NAMED_USERS = ("_su_user", "_sudo_user", "_doas_user", "_dzdo_user")
"""The arguments that name that user; without them it is root."""


class ConnectorData(TypedDict):
    """What pyinfra keeps of a host for its connector."""

    connmgr_connection: str


class ConnmgrConnector(BaseConnector):
    """A host that is a connection of the daemon."""

    handles_execution = True
    data_cls = ConnectorData
    data_meta = {"connmgr_connection": DataMeta("uuid of the connection")}  # noqa: RUF012 - as pyinfra declares it
    data: ConnectorData

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Yield the hosts of the connections that match ``name``, a name or a pattern; without it all hosts.

        :raises InventoryError: nothing matches, the name is ambiguous, or the daemon does not answer.
        """
        if name is not None and not name:
            raise InventoryError("@connmgr/ needs a name after the slash; @connmgr alone means all connections.")
        try:
            with connect(PROGRAM, COMMAND_SECONDS) as client:
                connections = client.connection.choose("*" if name is None else name, usage=SHELL)
        except ClientError as error:
            raise InventoryError(error.message) from error
        if not connections:
            raise InventoryError("No connection can run commands; `connmgr ls` lists all connections.")
        hosts = telling(connections)
        for connection in connections:
            groups = ["_".join(connection.category[:depth]) for depth in range(1, len(connection.category) + 1)]
            yield f"@connmgr/{hosts[connection.id]}", {"connmgr_connection": connection.id}, ["@connmgr", *groups]

    def connect(self) -> None:
        """Start a shell, unless one is open since the last run."""
        self._id = self.data["connmgr_connection"]
        try:
            self._client: Client = connect(PROGRAM, COMMAND_SECONDS + 60)
        except ClientError as error:
            raise ConnectError(error.message) from error
        self._slot = Slot(PROGRAM, self._id)
        try:
            self._client.shell.start(self._id, session=self._slot.session)
        except ClientError as error:
            self.disconnect()
            raise ConnectError(error.message) from error

    def disconnect(self) -> None:
        """Keep the shell open for the next run."""
        self._slot.release()
        self._client.close()

    def run_shell_command(
        self, command: StringCommand, print_output: bool = False, print_input: bool = False, **arguments: Any
    ) -> tuple[bool, CommandOutput]:
        """Run a command; return whether its exit code counts as success, and its output.

        :raises TimeoutError: it ran longer than its timeout.
        :raises OSError: it did not run to its end.
        """
        arguments.pop("_get_pty", None)
        timeout, stdin = arguments.pop("_timeout", None), arguments.pop("_stdin", None)
        successes = arguments.pop("_success_exit_codes", None) or [0]
        content = _input(stdin)

        def execute() -> tuple[int, CommandOutput]:
            unix = make_unix_command_for_host(self.state, self.host, command, **arguments)
            if print_input:
                self._print(f">>> {unix}")
            with self._errors_as_pyinfra(), self._stream(unix.get_raw_value(), content, timeout) as stream:
                lines = list(self._lines(stream, print_output=print_output))
            assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
            return stream.exit_code, CommandOutput(lines)

        code, output = execute_command_with_sudo_retry(self.host, arguments, execute)
        return code in successes, output

    def _stream(self, command: str, stdin: bytes | None, timeout: float | None) -> Stream:
        seconds = COMMAND_SECONDS if timeout is None else float(timeout)
        return self._client.shell.stream(
            self._id, command, stdin=stdin, timeout=seconds, session=self._slot.session, start=True
        )

    def _lines(self, stream: Stream, *, print_output: bool) -> Iterator[OutputLine]:
        """Yield each line when it is complete, and the rest at the end."""
        incomplete = {"stdout": b"", "stderr": b""}

        def output_line(name: str, line: bytes) -> OutputLine:
            text = line.decode(errors="replace")
            if print_output:
                self._print(text)
            return OutputLine(name, text)

        for piece in stream:
            for name, data in zip(incomplete, piece, strict=True):
                *lines, incomplete[name] = (incomplete[name] + data).split(b"\n")
                yield from [output_line(name, line) for line in lines]
        yield from [output_line(name, line) for name, line in incomplete.items() if line]

    def _print(self, line: str) -> None:
        # click removes the prefix's colours where the output is not a terminal.
        click.echo(f"{self.host.print_prefix}{line}", err=True)

    def put_file(
        self,
        filename_or_io: Any,
        remote_filename: str,
        remote_temp_filename: str | None = None,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> bool:
        """Write a file of this machine to the host; as another user by way of a temporary file there."""
        if not any(map(arguments.get, OTHER_USERS)):
            self._upload(filename_or_io, remote_filename)
            return True
        printing = {"print_output": print_output, "print_input": print_input}
        # The login's user may not write the file, so that it goes by a temporary one, which the other user copies.
        between = remote_temp_filename or self.host.get_temp_filename(remote_filename)
        own = {name: value for name, value in arguments.items() if not name.startswith(OTHER_USERS)}
        own.pop("_chdir", None)
        self._upload(filename_or_io, between)
        try:
            other = next((arguments[name] for name in NAMED_USERS if arguments.get(name)), None)
            if other and not self._succeeds("setfacl", "-m", f"u:{other}:r", between, **printing, **own):
                return False
            return self._succeeds("cp", between, remote_filename, **printing, **arguments)
        finally:
            self._succeeds("rm", "-f", between, **printing, **own)

    def get_file(
        self,
        remote_filename: str,
        filename_or_io: Any,
        remote_temp_filename: str | None = None,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> bool:
        """Write a file of the host to this machine; as another user by way of a temporary file there."""
        if not any(map(arguments.get, OTHER_USERS)):
            self._download(remote_filename, filename_or_io)
            return True
        printing = {"print_output": print_output, "print_input": print_input}
        between = remote_temp_filename or self.host.get_temp_filename(remote_filename)
        try:
            if not self._succeeds("cp", remote_filename, between, **printing, **arguments):
                return False
            if not self._succeeds("chmod", "+r", between, **printing, **arguments):
                return False
            self._download(between, filename_or_io)
        finally:
            self._succeeds("rm", "-f", between, **printing, **arguments)
        return True

    def _succeeds(self, *words: str, **more: Any) -> bool:
        succeeded, _ = self.run_shell_command(StringCommand(*map(QuoteString, words)), **more)
        return succeeded

    def _upload(self, source: Any, path: str) -> None:
        with get_file_io(source) as opened, self._errors_as_pyinfra():
            content = opened.read().encode() if isinstance(opened, io.TextIOBase) else opened
            self._client.fs.upload(self._id, content, path, session=self._slot.session)

    def _download(self, path: str, target: Any) -> None:
        with get_file_io(target, "wb") as opened, self._errors_as_pyinfra():
            self._client.fs.download(self._id, path, opened, session=self._slot.session)

    @contextmanager
    def _errors_as_pyinfra(self) -> Iterator[None]:
        """Raise the client's errors in the classes that pyinfra expects of a connector."""
        try:
            yield
        except ClientError as error:
            kind = TimeoutError if error.code == "command_timeout" else OSError
            raise kind(error.message) from error


def _input(stdin: Any) -> bytes | None:
    """Return an operation's ``_stdin`` (a text, lines or an open file) as bytes; each line ends with a newline."""
    if stdin is None:
        return None
    lines = stdin.readlines() if hasattr(stdin, "readlines") else stdin if isinstance(stdin, list | tuple) else [stdin]
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines).encode()
