"""The bridge that the tests of the Model Context Protocol share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.mcp import official
from tests.mcp.bridge import HttpBridge


@pytest.fixture(scope="session")
def bridge(daemon: Daemon) -> Iterator[HttpBridge]:
    """One bridge beside the shared daemon for all tests that do not stop it; it must end cleanly."""
    with HttpBridge(daemon) as running:
        yield running


@pytest.fixture(scope="session")
def official_clients() -> None:
    """The clients of :mod:`tests.mcp.official`; a test that needs them is skipped where npm cannot install them."""
    try:
        official.installed()
    except official.InstallationError as error:
        pytest.skip(str(error))
