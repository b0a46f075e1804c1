"""One daemon for tests that change its vault; after each test the vault is cleaned."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from connmgr.client import Client, ClientError
from tests.daemon import Daemon


class CleanDaemon:
    """Lends one daemon to tests, one after another. A daemon that cannot be cleaned is replaced.

    Logs, metrics, approvals, revoked tokens and ended terminals are not removed. Tests that look at these, add a user
    to the vault or stop the daemon need their own daemon.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = environment
        self._started = 0
        self._daemon: Daemon | None = None

    @contextmanager
    def lent(self) -> Iterator[Daemon]:
        """Yield the daemon, clean as a new one, and clean it afterwards."""
        if self._daemon is None:
            self._started += 1
            self._daemon = Daemon(self._directory / f"clean{self._started}", environment=self._environment)
            self._files = set(self._daemon.home.rglob("*"))
            self._stored = _stored(self._daemon.client)
        daemon = self._daemon
        daemon.leave_client()
        try:
            yield daemon
            with Client(daemon.url, auth_file=daemon.auth_file) as client:
                _clean(client, self._stored)
                assert _stored(client) == self._stored
        except BaseException:
            self.close()
            raise
        for path in set(daemon.home.rglob("*")) - self._files:
            if daemon.data_dir not in path.parents:
                _remove(path)

    def close(self) -> None:
        """Stop the daemon, if there is one."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.stop()


def _stored(client: Client) -> dict[str, Any]:
    """Return the vault's connections and categories by id."""
    connections, categories = client.connection.query(), client.category.query()
    return {one.id: (one.name, one.category, one.data) for one in client.connection.info(connections)} | {
        one.id: one.name for one in client.category.info(categories)
    }


def _clean(client: Client, stored: Container[str]) -> None:
    """End what runs, and remove everything but ``stored`` from the vault."""
    _end(client)
    for kind in (client.connection, client.category):
        # Most tests add none, and a request is a fifteenth of what cleaning costs.
        if added := [each for each in kind.query() if each not in stored]:
            kind.remove(added)
    for command in client.command.query():
        client.command.remove(command["name"])
    for signer in client.ca.query():
        client.ca.remove(signer.name)
    for token in client.token.query():
        if token["state"] == "valid":
            client.token.revoke(token["id"])
    assert not client.shell.list()
    assert not client.vault.status().has_users


def _end(client: Client) -> None:
    """End jobs, shells and terminals."""
    for job in client.jobs.query():
        # The machine may be gone; then the job is removed with its connection.
        with suppress(ClientError):
            client.post("/job/remove", job=job.id, force=True)
    for connection in {shell.status.connection for shell in client.shell.list()}:
        # The shell may have been lost meanwhile.
        with suppress(ClientError):
            client.shell.stop(connection, all=True)
    for terminal in client.terminal.query():
        if terminal["state"] == "running":
            client.terminal.close(terminal["terminal"])


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # An ending job may still write into the directory.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
