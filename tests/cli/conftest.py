"""Fixtures of the tests of the command line: the program beside a daemon, and SSH servers behind it."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cleaning import CleanDaemon
from tests.cli.program import CommandLine
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation

StartSshd = Callable[..., Sshd]


def lose_links(connmgr: CommandLine, server: Sshd) -> None:
    """Kill the processes that serve ``server``'s connections, and wait until the daemon shows shells as lost."""
    server.kill_sessions()
    eventually(
        lambda: [one.status.state for one in connmgr.daemon.client.shell.list()],
        "a shell whose link broke is not shown as lost",
        holds=lambda states: "lost" in states,
    )


@pytest.fixture(scope="session")
def module_lender() -> Iterator[CleanDaemon]:
    """The owner of :func:`connmgr`'s daemon."""
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        lender = CleanDaemon(Path(directory), {"SHELL": "/bin/bash"})
        yield lender
        lender.close()


@pytest.fixture(scope="module")
def connmgr(module_lender: CleanDaemon) -> Iterator[CommandLine]:
    """The command line of a user with a running daemon, shared by a module's tests and cleaned after them."""
    with module_lender.lent() as daemon:
        yield CommandLine(daemon)


@pytest.fixture
def own_connmgr(own_daemon: Daemon) -> CommandLine:
    """The command line of a user with a daemon for this test alone."""
    return CommandLine(own_daemon)


@pytest.fixture
def clean_connmgr(clean_daemon: Daemon) -> CommandLine:
    """The command line of a user with a new vault and home."""
    return CommandLine(clean_daemon)


@pytest.fixture(scope="session")
def login() -> Iterator[str]:
    """The user of SSH logins: a temporary one if the tests run as root."""
    if os.geteuid() != 0:
        yield getpass.getuser()
        return
    user = users.create()
    yield user.name
    users.remove(user)


@pytest.fixture
def start_sshd(login: str) -> Iterator[StartSshd]:
    """A function that starts an sshd for the test."""
    started: list[Sshd] = []

    def start(**more: Any) -> Sshd:
        started.append(Sshd(user=login, **more))
        return started[-1]

    with privilege_separation():
        yield start
        for server in started:
            server.close()
