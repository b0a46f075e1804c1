"""Fixtures of the tests of Ansible: five hosts and a daemon."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.ways import FORKED
from tests.daemon import spawner
from tests.fleet import Fleet, running_fleet
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The hosts, and a daemon that has connections to them."""
    # Not below tmp_path: the path of a Unix socket has 107 bytes at most.
    with (
        tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory,
        running_fleet(Path(directory)) as fleet,
    ):
        fleet.forks = spawner(main=FORKED)
        yield fleet
