"""Commands whose become plugin asks for a password or needs a terminal."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from connmgr.streams.frames import DATA, STDERR

if TYPE_CHECKING:
    from connmgr.client.pipe import Pipe


def answered(
    pipe: Pipe, become: Any, password: str, stdin: bytes | None, seconds: float, *, pty: bool
) -> tuple[int, bytes, bytes]:
    """Send ``password`` at the prompt, then ``stdin`` to the command; return exit code, stdout and stderr.

    :raises AnsibleError: the become plugin asked for the password again.
    :raises AnsibleConnectionFailure: the command did not begin within ``seconds``.
    """
    stdout, stderr, answered_at = bytearray(), bytearray(), (-1, -1)
    deadline = time.monotonic() + seconds
    while pipe.exit_status is None and not become.check_success(bytes(stdout)):
        _wait(pipe, deadline, become.name)
        for kind, content in pipe.events():
            pipe.taken(len(content) if kind in (DATA, STDERR) else 0)
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


def _wait(pipe: Pipe, deadline: float, name: str) -> None:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    if not pipe.has_received and not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise AnsibleConnectionFailure(f"{name} did not ask for its password or run the command in time.")
