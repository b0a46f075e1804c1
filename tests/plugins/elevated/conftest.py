"""Fixtures of the tests of elevation: a machine whose sudoers and doas.conf are empty, and two of its users."""

from __future__ import annotations

import pytest

from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures


@pytest.fixture
def machine(running_machine: Machine) -> Machine:
    """A machine whose sudoers and doas.conf allow nothing."""
    running_machine.allow()
    return running_machine


@pytest.fixture(scope="session")
def user(running_machine: Machine) -> Inhabitant:
    """The user who logs in and elevates."""
    return running_machine.add_user()


@pytest.fixture(scope="session")
def other(running_machine: Machine) -> Inhabitant:
    """The user to become."""
    return running_machine.add_user(password="another one's")
