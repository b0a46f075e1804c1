"""Fixtures: a daemon with the connection ``web`` to an SSH server, as the user who runs the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import clean_connmgr, connmgr, module_lender, own_connmgr  # noqa: F401 - fixtures
from tests.cli.program import CommandLine
from tests.multiplex.behind import Hosts
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An SSH server that the tests of a module share."""
    with ssh_server(tmp_path_factory.mktemp("far"), AllowTcpForwarding="yes") as server:
        yield server


@pytest.fixture(scope="module")
def hosts(connmgr: CommandLine, server: Sshd) -> Iterator[Hosts]:
    """The hosts ``web`` and ``local``, and ``far`` behind ``web``."""
    connmgr.add_ssh("web", server)
    connmgr.add_ssh("far", server, "gateway=web")
    yield Hosts(connmgr)
    connmgr.daemon.client.post("/multiplex/close")
