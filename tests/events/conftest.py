"""A daemon that the tests of events have for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.client import Client
from tests.api.wire import client_of
from tests.daemon import Daemon


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose events no other test causes."""
    running = Daemon(tmp_path_factory.mktemp("watched"))
    yield running
    running.stop()


@pytest.fixture
def client(watched: Daemon) -> Iterator[Client]:
    with client_of(watched) as client:
        yield client
