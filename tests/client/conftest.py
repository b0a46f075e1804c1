"""Fixtures of the tests of the Python client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.client import LOCAL_MACHINE, Client
from tests.api.wire import client_of
from tests.daemon import Daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of the shared daemon, with a shell on this machine."""
    with client_of(daemon) as client:
        client.shell.start(LOCAL_MACHINE)
        yield client
