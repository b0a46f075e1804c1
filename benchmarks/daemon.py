"""The daemon that is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon import Daemon


@contextmanager
def temporary_daemon(*options: str) -> Iterator[Daemon]:
    """A daemon on a vault of its own, stopped and removed afterwards; ``options`` are those of ``connmgr serve``."""
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), *options)
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
