"""Tasks over the connections of a daemon."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.plugins.connection import ConnectionBase

from connmgr.client import Client, ClientError, Unreachable
from connmgr.client.repeat import Retry
from connmgr.client.sessions import SessionFile, Slot, connect, is_slot

if TYPE_CHECKING:
    from connmgr.client.pipe import Pipe

PROGRAM = "ansible"
COMMAND_SECONDS = 86400.0
"""The daemon's limit for one command; a task's own timeout ends it sooner."""

OF_FILES = {
    *("file_exists", "file_operation_failed", "no_space", "no_such_directory", "no_such_file", "permission_denied"),
    *("source_failed", "transfer_failed", "wrong_file_type"),
}
"""Error codes that fail the task; any other makes its host UNREACHABLE."""


class Connection(ConnectionBase):
    """Runs a task in a shell of the host's connection; the shell stays open for the next tasks."""

    transport = "connmgr.connmgr.connmgr"
    has_pipelining = True

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._connected = False
        self._client: Client
        self._slot: Slot
        self._id = ""

    def _connect(self) -> Connection:
        if not self._connected:
            with _errors_as_ansible():
                self._client, self._id = self._find()
            # Otherwise Ansible would look for the home directory of a user who is not the connection's.
            self._play_context.remote_user = None
            try:
                self._slot = Slot(PROGRAM, self._id)
            except OSError as error:
                self._client.close()
                raise AnsibleConnectionFailure(f"No shell can be locked for the task: {error}") from error
            self._connected = True
        return self

    def _find(self) -> tuple[Client, str]:
        """Return a client, and the uuid of the connection that the host means."""
        token_file = self.get_option("connmgr_token_file")
        client = connect(PROGRAM, COMMAND_SECONDS + 60, Path(constants.DEFAULT_LOCAL_TMP), token_file=token_file)
        option = self.get_option("connmgr_connection")
        # An empty name is an error, and not the host of another name.
        names = filter(None, map(self.get_option, ("address", "host"))) if option is None else [option]
        return client, client.connection.find(*names)

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """Run a command; the mark that a become plugin prints before the output is removed."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        self._display.vvv(f"EXEC {cmd}", host=self._host)
        become = self.become if sudoable else None
        with _errors_as_ansible():
            if become and (become.expect_prompt() or become.require_tty):
                code, stdout, stderr = self._run_with_prompt(cmd, in_data)
            else:
                code, stdout, stderr = self._run(cmd, in_data)
        if not (become and become.success):
            return code, stdout, stderr
        if not become.check_success(stdout) and code:
            for output in (stderr, stdout):
                if become.check_incorrect_password(output):
                    raise AnsibleError(f"Incorrect {become.name} password")
                if become.check_missing_password(output):
                    raise AnsibleError(f"Missing {become.name} password")
        return code, _after(become.success.encode(), stdout), stderr

    def _run(self, command: str, stdin: bytes | None) -> tuple[int, bytes, bytes]:
        options: dict[str, Any] = {"stdin": stdin or None, "session": self._slot.session, "timeout": COMMAND_SECONDS}
        # Status 503 means that the daemon is at a limit and has not begun the command.
        retry = Retry(self._play_context.timeout, None, lambda error: error.status == 503)
        stream = retry.call(lambda: self._client.shell.stream(self._id, command, start=True, **options))
        stdout, stderr = list[bytes](), list[bytes]()
        with stream:
            for piece in stream:
                stdout.append(piece.stdout)
                stderr.append(piece.stderr)
        assert stream.exit_code is not None, "the iteration has come to its end"  # noqa: S101
        return stream.exit_code, b"".join(stdout), b"".join(stderr)

    def _run_with_prompt(self, command: str, stdin: bytes | None) -> tuple[int, bytes, bytes]:
        password = self.become.get_option("become_pass", playcontext=self._play_context) or ""
        # sudo reads the password from its input. Others need a terminal, where the input cannot be ended.
        pty = stdin is None and self.become.name != "sudo"
        with self._client.shell.pipe(self._id, command, pty=pty) as pipe:
            return _run_at_prompt(pipe, self.become, password, stdin, self._play_context.timeout, pty=pty)

    def put_file(self, in_path: str, out_path: str) -> None:
        """Write a file of this machine to the host."""
        super().put_file(in_path, out_path)
        self._display.vvv(f"PUT {in_path} TO {out_path}", host=self._host)
        try:
            source = Path(in_path).open("rb")  # noqa: SIM115
        except FileNotFoundError as error:
            raise AnsibleFileNotFound(f"file or module does not exist: {in_path}") from error
        with source, _errors_as_ansible():
            self._client.shell.ensure(self._id, session=self._slot.session)
            self._client.fs.upload(self._id, source, out_path, session=self._slot.session)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Write a file of the host to this machine."""
        super().fetch_file(in_path, out_path)
        self._display.vvv(f"FETCH {in_path} TO {out_path}", host=self._host)
        with _errors_as_ansible():
            self._client.shell.ensure(self._id, session=self._slot.session)
            mode = self._client.fs.stat(self._id, in_path, session=self._slot.session).mode
            with self._client.fs.open(self._id, in_path, session=self._slot.session) as content:
                # As with sftp, the new file here has the mode of the file there.
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                with os.fdopen(os.open(out_path, flags, mode & 0o777 | 0o200), "wb") as target:
                    target.writelines(content)

    def close(self) -> None:
        """Leave the shell to the next task."""
        if self._connected:
            self._slot.release()
            _share(self._client)
            self._client.close()
            self._connected = False

    def reset(self) -> None:
        """End the shells of tasks, so that the next task logs in, unless other shells keep the login open."""
        self.close()
        with _errors_as_ansible():
            client, id = self._find()
            with client:
                sessions = {shell.status.session for shell in client.shell.list(id) if shell.status.connection == id}
                ours = {name for name in sessions if is_slot(PROGRAM, name)}
                for name in ours:
                    _stop(client, id, name)
        if sessions - ours:
            warning = "The connection's other shells keep the login open; `connmgr disconnect` ends them."
            self._display.warning(f"{self._host}: {warning}")

    @property
    def _host(self) -> str:
        return str(self.get_option("host") or self._play_context.remote_addr)


@contextmanager
def _errors_as_ansible() -> Iterator[None]:
    """Raise the client's errors as Ansible's: one of :data:`OF_FILES` fails the task, others the host."""
    try:
        yield
    except ClientError as error:
        message = error.message
        if isinstance(error, Unreachable) and not error.sent:
            message += " `connmgr serve` starts a daemon."
        elif error.code in ("secret_locked", "vault_locked"):
            message += " `connmgr vault unlock USER` unlocks the vault."
        raise (AnsibleError if error.code in OF_FILES else AnsibleConnectionFailure)(message) from error


def _share(client: Client) -> None:
    """Store the client's session token, so that the other processes of this run of Ansible need no handshake."""
    run = SessionFile(Path(constants.DEFAULT_LOCAL_TMP), client.base_url, client.credential)
    if client.session_token is not None and run.token() != client.session_token:
        run.keep(client.session_token)


def _stop(client: Client, connection: str, session: str | None) -> None:
    try:
        client.shell.stop(connection, session=session)
    except ClientError as error:
        if error.code != "no_shell":
            raise


def _run_at_prompt(
    pipe: Pipe, become: Any, password: str, stdin: bytes | None, seconds: float, *, pty: bool
) -> tuple[int, bytes, bytes]:
    """Send ``password`` at the prompt, then ``stdin`` to the command; return exit code, stdout and stderr.

    :raises AnsibleError: the become plugin asked for the password again.
    :raises AnsibleConnectionFailure: the command did not begin within ``seconds``.
    """
    # Few tasks need a prompt, and each task's process would wait for the import.
    from connmgr.streams.frames import DATA, STDERR

    stdout, stderr, answered_at = bytearray(), bytearray(), (-1, -1)
    deadline = time.monotonic() + seconds
    while pipe.exit_status is None and not become.check_success(bytes(stdout)):
        _await_output(pipe, deadline, become.name)
        for kind, content in pipe.events():
            pipe.acknowledge(len(content) if kind in (DATA, STDERR) else 0)
            (stderr if kind == STDERR else stdout).extend(content if kind in (DATA, STDERR) else b"")
        since = [bytes(output[max(0, at) :]) for output, at in zip((stdout, stderr), answered_at, strict=True)]
        if any(map(become.check_password_prompt, since)):
            if answered_at != (-1, -1):
                raise AnsibleError(f"Incorrect {become.name} password")
            pipe.send(password.encode(errors="surrogateescape") + b"\n")
            answered_at = len(stdout), len(stderr)
    if pipe.exit_status is None:
        pipe.send(stdin or b"")
        if not pty:
            pipe.end_input()
    for piece in pipe:
        stdout += piece.stdout
        stderr += piece.stderr
    assert pipe.exit_status is not None, "the iteration has come to its end"  # noqa: S101
    return pipe.exit_status, bytes(stdout), bytes(stderr[max(0, answered_at[1]) :])


def _await_output(pipe: Pipe, deadline: float, name: str) -> None:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    if not pipe.has_received and not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise AnsibleConnectionFailure(f"{name} did not ask for its password or run the command in time.")


def _after(mark: bytes, output: bytes) -> bytes:
    """Return the output after the line with ``mark``."""
    return re.sub(rb"\A.*?" + re.escape(mark) + rb"\r?\n?", b"", output, count=1, flags=re.DOTALL)
