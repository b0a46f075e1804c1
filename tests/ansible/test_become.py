"""Become plugins that ask for a password, over a connection to an ordinary user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ansible.ways import FORKED
from tests.conftest import StartDaemon
from tests.daemon import Daemon, spawner
from tests.fleet import hosts_of, run_with
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.places import Places, ssh_fields

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.needs("machine", "sshd", "sudo", "su")]


@pytest.fixture
def user(running_machine: Machine) -> Iterator[Inhabitant]:
    """A user of the machine who becomes root by sudo with a password."""
    user = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    yield user
    running_machine.allow()


@pytest.fixture
def daemon_of_user(places: Places, user: Inhabitant, start_daemon: StartDaemon) -> Daemon:
    """A daemon with a connection ``web`` to that user."""
    daemon = start_daemon()
    daemon.client.connection.add("web", {"type": "ssh", **ssh_fields(places.sshd, user.name)})
    return daemon


def _ansible(daemon: Daemon, password: str, *arguments: str, code: int = 0, **variables: object) -> str:
    inventory = daemon.home / "hosts"
    python = {"ansible_python_interpreter": "/usr/bin/python3"}
    over = {"ansible_connection": "connmgr.connmgr.connmgr", "ansible_become_password": f"'{password}'"}
    inventory.write_text(hosts_of(["web"], **over, **python, **variables))
    done = run_with(
        daemon, "ansible", "-i", str(inventory), "web", "-b", *arguments, code=code, forks=spawner(main=FORKED)
    )
    return done.stdout + done.stderr


def test_sudo_is_given_its_password_and_the_module_its_input(daemon_of_user: Daemon, user: Inhabitant) -> None:
    assert "\nroot" in _ansible(daemon_of_user, user.password, "-m", "command", "-a", "id -un")
    shown = _ansible(daemon_of_user, user.password, "-m", "raw", "-a", "id -un; echo err >&2; exit 3", code=2)
    assert "rc=3" in shown
    assert "BECOME-SUCCESS" not in shown
    assert user.password not in shown


def test_a_wrong_or_missing_password_is_reported(daemon_of_user: Daemon, running_machine: Machine) -> None:
    assert "Incorrect sudo password" in _ansible(daemon_of_user, "wrong", "-m", "raw", "-a", "id", code=2)
    assert running_machine.refusals == 1, "a wrong password is not given twice"
    assert "Missing sudo password" in _ansible(daemon_of_user, "", "-m", "raw", "-a", "id", code=2)


def test_su_has_the_terminal_that_it_wants(daemon_of_user: Daemon, running_machine: Machine) -> None:
    password = running_machine.root.password
    shown = _ansible(daemon_of_user, password, "-m", "command", "-a", "id -un", ansible_become_method="su")
    assert "\nroot" in shown
    assert password not in shown
