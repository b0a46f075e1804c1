"""Starts a daemon for a person whose command finds none."""

from __future__ import annotations

import os
import selectors
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from connmgr import paths
from connmgr.cli.exits import UNREACHABLE, Failure
from connmgr.cli.program import program
from connmgr.paths import daemon_file_of, find_daemon, read_daemon_file
from connmgr.printable import visible

if TYPE_CHECKING:
    import subprocess

READY_SECONDS = 30.0
STOP_SECONDS = 12.0
"""Longer than a daemon takes to stop."""

MAX_LOG_BYTES = 16 * 1024 * 1024
"""At this size the next start begins a new log, and keeps one old one."""


def started_on_request(auth_file: Path) -> bool:
    """Start a daemon if none with ``auth_file`` runs and a person at the terminal agrees; return whether it started.

    :raises Failure: it does not start.
    """
    if not (_at_terminal() and _is_absent(auth_file)):
        return False
    if not click.confirm("No daemon runs. Start one in the background?", default=True, err=True):
        return False
    log = paths.state_directory(os.environ) / "daemon.log"
    _start(auth_file, log)
    click.echo(f"The daemon runs until `connmgr stop`; its log is {log}.", err=True)
    return True


def _at_terminal() -> bool:
    as_json = click.get_current_context().params.get("as_json")
    return not as_json and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _is_absent(auth_file: Path) -> bool:
    """Whether certainly no daemon with ``auth_file`` runs: it ended, or was killed."""
    try:
        read_daemon_file(daemon_file_of(auth_file))
    except ProcessLookupError:
        return True
    except OSError:
        # A daemon removes its auth file when it ends.
        return not os.path.lexists(auth_file)
    return False


def _start(auth_file: Path, log: Path) -> None:
    import subprocess

    output = _opened(log)
    began = os.fstat(output).st_size
    try:
        process = subprocess.Popen(  # noqa: S603 - this program itself
            [*program(), "serve"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=Path.home(),
            start_new_session=True,
        )
    finally:
        os.close(output)
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout:
        ready = _is_ready(process.stdout)
    # Another command may have started a daemon meanwhile.
    if ready or find_daemon(auth_file):
        return
    reason = _ended(process) or log.read_bytes()[began:].decode(errors="replace").strip()
    raise Failure(f"The daemon does not start. {visible(reason)}", UNREACHABLE)


def _opened(log: Path) -> int:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(log, flags, 0o600)
    if os.fstat(descriptor).st_size < MAX_LOG_BYTES:
        return descriptor
    os.close(descriptor)
    log.replace(log.with_name(f"{log.name}.1"))
    return os.open(log, flags, 0o600)


def _is_ready(output: IO[bytes]) -> bool:
    """Wait for the line that a ready daemon prints; return False if its output ends first."""
    deadline = time.monotonic() + READY_SECONDS
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
            received = os.read(output.fileno(), 4096)
            if not received:
                return False
            line += received
    return True


def _ended(process: subprocess.Popen[bytes]) -> str:
    """End a daemon that is not ready; return why it failed, or ``""`` if it ended by itself and its log tells."""
    import subprocess

    try:
        # Its output has ended; the process follows.
        process.wait(1)
    except subprocess.TimeoutExpired:
        process.terminate()
    else:
        return ""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return f"It was not ready within {READY_SECONDS:g} seconds and was ended."
