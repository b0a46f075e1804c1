"""su and doas, which ask on a terminal."""

from __future__ import annotations

import time

import pytest

from connmgr.errors import AuthFailed, ConnmgrError, ElevationFailed
from tests.engine.shells import assert_usable, out
from tests.plugins.machine import ROOT_PASSWORD, Inhabitant, Machine
from tests.plugins.places import LOCAL, PLACES, Places, attempt, elevate, here_and_afar, session_on

pytestmark = pytest.mark.needs("machine", "su", "doas", "sshd", "bash")

OWN = "correct horse battery"

GRANTED = {
    "su": ("", {"method": "su", "password": ROOT_PASSWORD}, "root"),
    "su to another user": ("", {"method": "su", "user": "{other}", "password": "another one's"}, "other"),
    "doas": ("permit {user}", {"method": "doas", "password": OWN}, "root"),
    "doas to another user": (
        "permit {user} as {other}",
        {"method": "doas", "user": "{other}", "password": OWN},
        "other",
    ),
    "doas without a password": ("permit nopass {user}", {"method": "doas"}, "root"),
    "doas, no password needed, though stored": ("permit nopass {user}", {"method": "doas", "password": OWN}, "root"),
    "doas that keeps the environment": ("permit keepenv {user}", {"method": "doas", "password": OWN}, "root"),
}


@here_and_afar(GRANTED)
def test_granted(machine: Machine, places: Places, user: Inhabitant, other: Inhabitant, place: str, case: str) -> None:
    rules, fields, identity = GRANTED[case]
    fields = {name: value.format(other=other.name) for name, value in fields.items()}
    machine.allow(doas=rules.format(user=user.name, other=other.name))
    with session_on(elevate(places.keep(place, user), **fields)) as session:
        name, home = (other.name, other.home) if identity == "other" else ("root", "/root")
        assert out(session, 'id -un; echo "$HOME"') == f"{name}\n{home}\n"
        assert session.info.tty_state == ("merged" if "password" in fields else "none")
        assert_usable(session)
    assert machine.refusals == 0


REFUSED = {
    "su, wrong password": ("", {"method": "su", "password": "wrong"}, AuthFailed, "su refused the password"),
    "su, password missing": ("", {"method": "su"}, AuthFailed, "wants a password, and the connection has none"),
    "su, unknown user": ("", {"method": "su", "user": "nobody-of-that-name", "password": OWN}, ElevationFailed, "user"),
    "doas, wrong password": (
        "permit {user}",
        {"method": "doas", "password": "wrong"},
        AuthFailed,
        "doas refused the password",
    ),
    "doas, password missing": ("permit {user}", {"method": "doas"}, AuthFailed, "wants a password"),
    "doas, not permitted": ("", {"method": "doas", "password": OWN}, ElevationFailed, "not permitted"),
    "doas, not permitted, no password": ("", {"method": "doas"}, ElevationFailed, "not permitted"),
    "doas, unknown user": (
        "permit {user}",
        {"method": "doas", "user": "nobody-of-that-name", "password": OWN},
        ElevationFailed,
        "unknown user",
    ),
    "doas, broken configuration": ("permit permit", {"method": "doas", "password": OWN}, ElevationFailed, "doas"),
}


@here_and_afar(REFUSED)
def test_refused(machine: Machine, places: Places, user: Inhabitant, place: str, case: str) -> None:
    rules, fields, error, words = REFUSED[case]
    machine.allow(doas=rules.format(user=user.name))
    started = time.monotonic()
    with pytest.raises(error, match=words) as caught:
        attempt(elevate(places.keep(place, user), **fields))
    assert time.monotonic() - started < 10, "a person waited longer than promised"
    assert OWN not in caught.value.message
    # Without a password, su may count the end of its terminal as a refusal.
    if "password" in fields:
        assert machine.refusals == ("wrong password" in case), "the password was offered more or less than once"


@pytest.mark.parametrize("method", ["sudo", "su", "doas"])
def test_root_needs_no_password(machine: Machine, places: Places, other: Inhabitant, method: str) -> None:
    machine.allow(doas="permit nopass root")
    with (
        places.reach(LOCAL, machine.root) as inner,
        session_on(elevate(inner, method=method, user=other.name)) as session,
    ):
        assert out(session, "id -un") == f"{other.name}\n"
        assert session.info.tty_state == "none"


@pytest.mark.parametrize("method", ["su", "doas"])
@pytest.mark.parametrize("place", PLACES)
def test_missing(machine: Machine, places: Places, user: Inhabitant, place: str, method: str) -> None:
    with (
        machine.without(method),
        places.reach(place, user) as inner,
        pytest.raises(ElevationFailed, match=f"{method} is not installed there"),
    ):
        attempt(elevate(inner, method=method, password=OWN))


ACCOUNTS = {
    "account expired": (["chage", "-E", "1"], ElevationFailed, "expired"),
    "password to be changed": (["chage", "-d", "0"], ElevationFailed, "expired"),
    "password locked": (["usermod", "-L"], AuthFailed, "refused"),
}


@pytest.mark.parametrize("case", ACCOUNTS)
def test_accounts(machine: Machine, places: Places, user: Inhabitant, case: str) -> None:
    change, error, words = ACCOUNTS[case]
    target = machine.add_user()
    machine.run(*change, target.name)
    started = time.monotonic()
    with places.reach(LOCAL, user) as inner, pytest.raises(error, match=words):
        attempt(elevate(inner, method="su", user=target.name, password=target.password))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("method", ["su", "doas"])
@pytest.mark.parametrize("locale", [{"LC_ALL": "C.UTF-8"}, {"LANG": "de_DE.UTF-8"}], ids=["all", "lang"])
def test_other_languages(
    machine: Machine, places: Places, user: Inhabitant, locale: dict[str, str], method: str
) -> None:
    machine.allow(doas=f"permit keepenv {user.name}")
    password = ROOT_PASSWORD if method == "su" else OWN
    with places.reach(LOCAL, user, {"LANGUAGE": "de:fr", **locale}) as inner:
        for data, error in (({"password": "wrong"}, "refused"), ({}, "has none")):
            with pytest.raises(AuthFailed, match=error):
                attempt(elevate(inner, method=method, **data))
        with session_on(elevate(inner, method=method, password=password)) as session:
            (name, value), *_ = locale.items()
            assert out(session, f'echo "${name}/${{LC_ALL-unset}}/${{LC_CONNMGR-unset}}"') == (
                f"{value}/{locale.get('LC_ALL', 'unset')}/unset\n"
            )


@pytest.mark.parametrize("method", ["sudo", "su", "doas"])
@pytest.mark.parametrize("place", [LOCAL, "ssh"])
def test_a_refusal_that_the_machine_delays(
    machine: Machine, places: Places, user: Inhabitant, place: str, method: str
) -> None:
    machine.allow(f"{user.name} ALL=(ALL) ALL", doas=f"permit {user.name}")
    with machine.delaying(method), places.reach(place, user) as inner:
        started = time.monotonic()
        with pytest.raises(AuthFailed):
            attempt(elevate(inner, method=method, password="wrong"))
        assert time.monotonic() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["su", "doas", "sudo"])
def test_a_program_that_asks_with_echo_gives_no_secret_away(
    machine: Machine, places: Places, user: Inhabitant, method: str
) -> None:
    fake = f'#!/bin/sh\necho "{method} from elsewhere"\nprintf "Password: "\nread -r answer\necho "You said: $answer"\n'
    machine.write(f"{user.home}/bin/{method}", fake, 0o755, user)
    environment = {"PATH": f"{user.home}/bin:/usr/bin:/bin"}
    with places.reach(LOCAL, user, environment) as inner, pytest.raises(ConnmgrError) as caught:
        attempt(elevate(inner, method=method, password="a password to keep"))
    assert "keep" not in caught.value.message
