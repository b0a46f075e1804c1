"""Elevation between the shells of any two users, in any place, and inside another elevation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from connmgr.engine.envelope import Command
from connmgr.engine.session import Session
from connmgr.errors import AuthFailed, CommandTimeout, ElevationFailed
from connmgr.plugin import Transport
from tests.engine.shells import assert_usable, out, run
from tests.plugins.machine import ROOT_PASSWORD, Inhabitant, Machine, shell_path
from tests.plugins.places import GATEWAY, LOCAL, SSH, Places, elevate, session_on

pytestmark = pytest.mark.needs("machine", "sudo", "su", "doas", "sshd", "bash", "dash", "zsh", "fish", "tcsh")

OWN = "correct horse battery"
SHELLS = {"bash": 1, "dash": 2, "zsh": 4, "fish": 6, "tcsh": 7}
METHODS = ("sudo", "su", "doas")


@pytest.fixture(scope="module")
def users(running_machine: Machine) -> dict[str, Inhabitant]:
    """A user of each login shell."""
    return {shell: running_machine.add_user(shell_path(shell)) for shell in SHELLS}


def permit(machine: Machine, user: Inhabitant) -> None:
    machine.allow(f"{user.name} ALL=(ALL) ALL", doas=f"permit {user.name}")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shell", SHELLS)
def test_login_shell_of_the_target(
    machine: Machine, places: Places, users: dict[str, Inhabitant], shell: str, method: str
) -> None:
    permit(machine, users["bash"])
    with places.reach(LOCAL, users["bash"]) as inner:
        transport = elevate(inner, method=method, user=users[shell].name, password=OWN)
        with session_on(transport) as session:
            assert session.info.shell_dialect == SHELLS[shell]
            assert out(session, "id -un") == f"{users[shell].name}\n"
            assert run(session, "ls .").exit_code == 0, "it is left in the caller's directory, which is closed to it"
            assert_usable(session)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("place", [LOCAL, SSH])
def test_login_shell_of_the_caller(
    machine: Machine, places: Places, users: dict[str, Inhabitant], place: str, shell: str, method: str
) -> None:
    permit(machine, users[shell])
    password = ROOT_PASSWORD if method == "su" else OWN
    inner = places.keep(place, users[shell])
    with session_on(elevate(inner, method=method, password=password)) as session:
        assert out(session, "id -un") == "root\n"
        assert_usable(session)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("method", METHODS)
def test_session_shell(machine: Machine, places: Places, user: Inhabitant, method: str, shell: str) -> None:
    permit(machine, user)
    password = ROOT_PASSWORD if method == "su" else OWN
    with (
        places.reach(LOCAL, user) as inner,
        session_on(elevate(inner, method=method, password=password), shell) as session,
    ):
        assert session.info.shell_dialect == SHELLS[shell]
        assert out(session, "id -un") == "root\n"
        assert_usable(session)


@contextmanager
def nested(inner: Transport, user: Inhabitant, other: Inhabitant, steps: tuple[str, str]) -> Iterator[Session]:
    """Open a session of root over ``other`` over ``user``, whom ``inner`` reaches, by one method each."""
    first = {"method": steps[0], "user": other.name, "password": other.password if steps[0] == "su" else OWN}
    second = {"method": steps[1], "password": ROOT_PASSWORD if steps[1] == "su" else other.password}
    with session_on(elevate(elevate(inner, **first), **second)) as session:
        yield session


@pytest.mark.parametrize("second", METHODS)
@pytest.mark.parametrize("first", METHODS)
@pytest.mark.parametrize("place", [LOCAL, GATEWAY])
def test_elevated_within_elevated(
    machine: Machine, places: Places, user: Inhabitant, other: Inhabitant, place: str, first: str, second: str
) -> None:
    machine.allow(
        f"{user.name} ALL=(ALL) ALL",
        f"{other.name} ALL=(ALL) ALL",
        doas=f"permit {user.name} as {other.name}\npermit {other.name}",
    )
    inner = places.keep(place, user)
    if (first, second) == ("su", "doas"):
        # util-linux's `su -c` takes the controlling terminal away from other users, and doas asks only there.
        with pytest.raises(ElevationFailed, match="doas"), nested(inner, user, other, (first, second)):
            pass
        return
    with nested(inner, user, other, (first, second)) as session:
        assert out(session, "id -un") == "root\n"
        assert session.info.tty_state == ("none" if first == second == "sudo" else "merged")
        assert_usable(session)
    assert machine.refusals == 0


def test_the_refusal_of_an_outer_login(machine: Machine, places: Places, user: Inhabitant, other: Inhabitant) -> None:
    machine.allow(f"{user.name} ALL=(ALL) ALL", doas=f"permit {other.name}")
    with places.reach(LOCAL, user) as inner, ExitStack() as stack:
        first = elevate(inner, user=other.name, password=OWN)
        with pytest.raises(AuthFailed, match="doas refused the password"):
            stack.enter_context(session_on(elevate(first, method="doas", password="wrong")))
        wrong = elevate(inner, user=other.name, password="wrong")
        with pytest.raises(AuthFailed, match="sudo refused the password"):
            stack.enter_context(session_on(elevate(wrong, method="doas", password=other.password)))


@pytest.fixture(scope="module")
def leaver(running_machine: Machine) -> Inhabitant:
    """A user without an open link."""
    return running_machine.add_user()


@pytest.mark.parametrize("method", METHODS)
def test_sessions_one_after_the_other_leave_nothing(
    machine: Machine, places: Places, leaver: Inhabitant, method: str
) -> None:
    permit(machine, leaver)
    password = ROOT_PASSWORD if method == "su" else OWN
    with places.reach(SSH, leaver) as inner:
        for _ in range(10):
            with session_on(elevate(inner, method=method, password=password)) as session:
                assert run(session, "true").exit_code == 0
    machine.await_end_of_processes(leaver)


# What it does, and the seconds that it has.
STOPPING = {
    "woken by the killer": ("kill -STOP $$; echo on", 0.5),
    "woken by the command": ("(sleep 0.1; kill -CONT $$) & kill -STOP $$; echo on", 20),
}


@pytest.mark.parametrize("steps", [("sudo", "sudo"), ("su", "su")])
@pytest.mark.parametrize("case", STOPPING)
def test_processes_stopped_with_the_shell_end_with_it(
    machine: Machine, places: Places, leaver: Inhabitant, other: Inhabitant, case: str, steps: tuple[str, str]
) -> None:
    machine.allow(f"{leaver.name} ALL=(ALL) ALL", f"{other.name} ALL=(ALL) ALL")
    command, seconds = STOPPING[case]
    with places.reach(SSH, leaver) as inner, nested(inner, leaver, other, steps) as session:
        with suppress(CommandTimeout):
            session.exec(Command(command.encode()), seconds)
        assert out(session, "id -un") == "root\n"
        begun = time.monotonic()
        session.stop(20)
        assert time.monotonic() - begun < 5, "the shell did not exit by itself"
    assert machine.stopped(machine.root, leaver, other) == []
    machine.await_end_of_processes(leaver)
