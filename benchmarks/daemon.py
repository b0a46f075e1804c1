"""The daemon that is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.daemon import Daemon
from tests.spawner import PROGRAM

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The id of the connection that every vault has."""


@contextmanager
def temporary_daemon(
    *options: str, program: Sequence[str] = (str(PROGRAM),), environment: Mapping[str, str] | None = None
) -> Iterator[Daemon]:
    """A daemon with its own vault, which is stopped and removed afterwards.

    ``options`` are those of ``connmgr serve``; ``program`` is the command that has ``serve``, if not the installed one,
    and ``environment`` is added to its variables.
    """
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), *options, program=program, environment=environment)
        try:
            yield daemon
        finally:
            daemon.stop()


def local_connection(daemon: Daemon, shell: str) -> str:
    """Add a connection to this machine with the given shell, start the shell, and return the connection's uuid."""
    data = {"type": "local", "shell": shell}
    added = daemon.client.post("/connection/add", name=f"benchmark {shell}", data=data, validate=False)
    daemon.client.post("/shell/start", connection=added["connection"])
    return str(added["connection"])
