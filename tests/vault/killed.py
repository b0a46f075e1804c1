"""Work on a vault, for processes that tests kill."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import alembic.migration
import alembic.runtime.environment  # noqa: F401 - loaded by the server that children are forked from

from connmgr.vault import Vault, open_database
from tests.vault.conftest import KEY, Add

WRITERS = 3


def write(url: str, pipe: Pipe) -> None:
    """Add connections from several threads without end, and send each acknowledged id."""
    vault = Vault(open_database(url), KEY)
    known = len(vault.connections.query())
    sending = threading.Lock()

    def run(writer: int) -> None:
        for number in range(1_000_000):
            id = Add(vault)(f"host {known} {writer} {number}")
            with sending:
                pipe.send(id)

    for writer in range(WRITERS):
        threading.Thread(target=run, args=[writer], daemon=True).start()
    threading.Event().wait()


def migrate(url: str, pipe: Pipe) -> None:
    """Report the begin of a vault's migration, migrate, and report the end."""
    pipe.send("begins")
    Vault(open_database(url), KEY).close()
    pipe.send("done")


@contextmanager
def process(target: Callable[[str, Pipe], Any], url: str) -> Iterator[tuple[multiprocessing.process.BaseProcess, Pipe]]:
    """Run ``target`` in a process forked from a server that has loaded everything; kill it at the end."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload([__name__])
    receiver, sender = forking.Pipe(duplex=False)
    with receiver:
        child = forking.Process(target=target, args=(url, sender))
        child.start()
        sender.close()
        try:
            yield child, receiver
        finally:
            child.kill()
            child.join(30)
            child.close()
