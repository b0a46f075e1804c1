"""The bridge that the tests of the Model Context Protocol share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.mcp.bridge import HttpBridge


@pytest.fixture(scope="session")
def bridge(daemon: Daemon) -> Iterator[HttpBridge]:
    """One bridge beside the shared daemon for all tests that do not stop it; it must end cleanly."""
    with HttpBridge(daemon) as running:
        yield running
