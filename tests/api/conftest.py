"""Fixtures of the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.client import Client
from tests.api.wire import LOCAL, client_of
from tests.daemon import Daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of the shared daemon, with a shell on this machine."""
    with client_of(daemon) as client:
        client.shell.start(LOCAL)
        yield client
