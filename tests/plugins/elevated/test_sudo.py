"""sudo in administrators' configurations: what works, what is refused, and how often the password is typed."""

from __future__ import annotations

import time

import pytest

from connmgr.errors import AuthFailed, ElevationFailed
from tests.engine.shells import assert_usable, out
from tests.plugins.machine import ROOT_PASSWORD, Inhabitant, Machine
from tests.plugins.places import LOCAL, PLACES, Places, attempt, elevate, here_and_afar, session_on

pytestmark = pytest.mark.needs("machine", "sudo", "sshd", "bash")

OWN = "correct horse battery"
ALL = "{user} ALL=(ALL) ALL"
FREE = "{user} ALL=(ALL) NOPASSWD: ALL"

GRANTED = {
    "password": ([ALL], {"password": OWN}),
    "no password needed": ([FREE], {}),
    "no password needed, though stored": ([FREE], {"password": OWN}),
    "lecture": (["Defaults lecture=always", ALL], {"password": OWN}),
    "lecture without need of a password": (["Defaults lecture=always", FREE], {}),
    "requiretty": (["Defaults requiretty", ALL], {"password": OWN}),
    "requiretty, no password needed": (["Defaults requiretty", FREE], {}),
    "requiretty and use_pty": (["Defaults requiretty, use_pty", ALL], {"password": OWN}),
    "use_pty": (["Defaults use_pty", ALL], {"password": OWN}),
    "no use_pty": (["Defaults !use_pty", ALL], {"password": OWN}),
    "prompt of the machine": (['Defaults passprompt="Kennwort: ", passprompt_override', ALL], {"password": OWN}),
    "no prompt at all": (['Defaults passprompt=""', ALL], {"password": OWN}),
    "bullets": (["Defaults pwfeedback", ALL], {"password": OWN}),
    "bullets on a terminal": (["Defaults pwfeedback, requiretty", ALL], {"password": OWN}),
    "one try": (["Defaults passwd_tries=1", ALL], {"password": OWN}),
    "password of root": (["Defaults rootpw", ALL], {"password": ROOT_PASSWORD}),
    "password of the target": (["Defaults targetpw", ALL], {"password": ROOT_PASSWORD}),
    "another user": ([ALL], {"password": OWN, "user": "{other}"}),
    "another user by number": ([ALL], {"password": OWN, "user": "#{other_uid}"}),
    "environment kept": (["Defaults !env_reset, setenv", ALL], {"password": OWN}),
    "umask and closefrom": (["Defaults umask=0077, closefrom=4", ALL], {"password": OWN}),
}


@here_and_afar(GRANTED)
def test_granted(machine: Machine, places: Places, user: Inhabitant, other: Inhabitant, place: str, case: str) -> None:
    rules, fields = GRANTED[case]
    fields = {name: value.format(other=other.name, other_uid=other.uid) for name, value in fields.items()}
    machine.allow(*(rule.format(user=user.name) for rule in rules))
    with session_on(elevate(places.keep(place, user), **fields)) as session:
        identity = other.name if "another user" in case else "root"
        assert out(session, "id -un") == f"{identity}\n"
        assert out(session, 'echo "$HOME"') == (f"{other.home}\n" if identity != "root" else "/root\n")
        assert session.info.tty_state == ("merged" if "tty" in case.partition(" ")[0] or "terminal" in case else "none")
        assert_usable(session)
    assert machine.refusals == 0


REFUSED = {
    "wrong password": ([ALL], {"password": "wrong"}, AuthFailed, "sudo refused the password"),
    "wrong password, one try": (
        ["Defaults passwd_tries=1", ALL],
        {"password": "wrong"},
        AuthFailed,
        "sudo refused the password",
    ),
    "wrong password on a terminal": (
        ["Defaults requiretty", ALL],
        {"password": "wrong"},
        AuthFailed,
        "sudo refused the password",
    ),
    "wrong password with insults": (
        ["Defaults insults", 'Defaults badpass_message="Falsch."', ALL],
        {"password": "wrong"},
        AuthFailed,
        "sudo refused the password",
    ),
    "password missing": ([ALL], {}, AuthFailed, "wants a password, and the connection has none"),
    "password missing on a terminal": (["Defaults requiretty", ALL], {}, AuthFailed, "wants a password"),
    "not in sudoers": ([], {"password": OWN}, ElevationFailed, "not in the sudoers file"),
    "not in sudoers, no password": ([], {}, AuthFailed, "wants a password"),
    "command not allowed": (["{user} ALL=(ALL) /bin/true"], {"password": OWN}, ElevationFailed, "not allowed"),
    "target not allowed": (["{user} ALL=({other}) ALL"], {"password": OWN}, ElevationFailed, "not allowed"),
    "unknown target": ([ALL], {"password": OWN, "user": "nobody-of-that-name"}, ElevationFailed, "unknown user"),
    "password with a newline": (
        [ALL],
        {"password": "wrong\nwrong"},
        AuthFailed,
        "control characters, which cannot be typed at sudo.s prompt",
    ),
    "broken sudoers": (["{user} ALL=(("], {"password": OWN}, (ElevationFailed, AuthFailed), "sudo"),
}


@here_and_afar(REFUSED)
def test_refused(machine: Machine, places: Places, user: Inhabitant, other: Inhabitant, place: str, case: str) -> None:
    rules, fields, error, words = REFUSED[case]
    machine.allow(*(rule.format(user=user.name, other=other.name) for rule in rules))
    started = time.monotonic()
    with pytest.raises(error, match=words) as caught:
        attempt(elevate(places.keep(place, user), **fields))
    assert time.monotonic() - started < 10, "a person waited longer than promised"
    assert "password" not in fields or fields["password"] not in caught.value.message.split()
    assert OWN not in caught.value.message
    assert machine.refusals == ("wrong password" in case), "the password was offered more or less than once"


@pytest.mark.parametrize("place", PLACES)
def test_a_password_given_before_counts_on(machine: Machine, places: Places, user: Inhabitant, place: str) -> None:
    machine.allow("Defaults timestamp_type=global", ALL.format(user=user.name))
    inner = places.keep(place, user)
    with session_on(elevate(inner, password=OWN)) as session:
        assert_usable(session)
        with session_on(elevate(inner, password="wrong, but not asked for")) as session:
            assert out(session, "id -un") == "root\n"
        with session_on(elevate(inner)) as session:
            assert out(session, "id -un") == "root\n"
    assert machine.refusals == 0


ACCOUNTS = {
    "account expired": (["chage", "-E", "1"], "expired"),
    "password to be changed": (["chage", "-d", "0"], "expired"),
    "password locked": (["usermod", "-L"], "refused"),
}


@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize("case", ACCOUNTS)
def test_accounts(machine: Machine, places: Places, case: str, terminal: bool) -> None:
    change, words = ACCOUNTS[case]
    user = machine.add_user()
    machine.run(*change, user.name)
    machine.allow(*(["Defaults requiretty"] if terminal else []), ALL.format(user=user.name))
    started = time.monotonic()
    with places.reach(LOCAL, user) as inner, pytest.raises((AuthFailed, ElevationFailed), match=words) as caught:
        attempt(elevate(inner, password=user.password))
    assert time.monotonic() - started < 10
    assert OWN not in caught.value.message


@pytest.mark.parametrize("terminal", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize("locale", [{"LC_ALL": "C.UTF-8"}, {"LANG": "de_DE.UTF-8"}], ids=["all", "lang"])
def test_other_languages(
    machine: Machine, places: Places, user: Inhabitant, locale: dict[str, str], terminal: bool
) -> None:
    rules = [*(["Defaults requiretty"] if terminal else []), ALL.format(user=user.name)]
    environment = {"LANGUAGE": "de:fr", **locale}
    with places.reach(LOCAL, user, environment) as inner:
        machine.allow(*rules)
        for data, error in (({"password": "wrong"}, "refused"), ({}, "has none")):
            with pytest.raises(AuthFailed, match=error):
                attempt(elevate(inner, **data))
        with session_on(elevate(inner, password=OWN)) as session:
            (name, value), *_ = locale.items()
            assert out(session, f'echo "${name}/${{LC_ALL-unset}}/${{LC_CONNMGR-unset}}"') == (
                f"{value}/{locale.get('LC_ALL', 'unset')}/unset\n"
            )


@pytest.mark.parametrize("place", PLACES)
def test_sudo_is_missing(machine: Machine, places: Places, user: Inhabitant, place: str) -> None:
    machine.allow(ALL.format(user=user.name))
    with (
        machine.without("sudo"),
        pytest.raises(ElevationFailed, match="sudo is not installed there"),
    ):
        attempt(elevate(places.keep(place, user), password=OWN))
