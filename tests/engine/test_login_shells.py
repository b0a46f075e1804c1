"""Login shells on the far side, and what their start-up files do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connmgr.errors import CommandTimeout, UnsupportedShell
from tests.engine.shells import assert_usable, out, run
from tests.plugins.machine import Inhabitant, Machine, shell_path
from tests.plugins.places import SSH, Places, attempt, elevate, session_on

pytestmark = pytest.mark.needs("machine", "sshd", "bash", "zsh", "ksh93", "mksh", "dash", "busybox", "fish", "tcsh")

LOGIN_SHELLS = {
    "sh": 0,
    "bash": 1,
    "dash": 2,
    "ash": 3,
    "zsh": 4,
    "ksh93": 5,
    "mksh": 5,
    "fish": 6,
    "tcsh": 7,
}

UserOf = Callable[[str], Inhabitant]


@pytest.fixture(scope="module")
def user_of(running_machine: Machine) -> UserOf:
    """A function that returns the user with a login shell, a name or a path."""
    users: dict[str, Inhabitant] = {}
    running_machine.run("ln", "-s", shell_path("busybox"), "/run/ash")

    def of(shell: str) -> Inhabitant:
        if shell not in users:
            path = "/run/ash" if shell == "ash" else shell if shell.startswith("/") else shell_path(shell)
            users[shell] = running_machine.add_user(path)
        return users[shell]

    return of


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_works_in_its_own_language(places: Places, user_of: UserOf, shell: str) -> None:
    user = user_of(shell)
    with places.reach(SSH, user) as link, session_on(link) as session:
        assert session.info.shell_dialect == LOGIN_SHELLS[shell]
        assert out(session, "id -un") == f"{user.name}\n"
        if shell in ("fish", "tcsh"):
            assert out(session, {"fish": "set -gx A b", "tcsh": "setenv A b"}[shell]) == ""
            assert out(session, "echo $A") == "b\n"
        assert_usable(session)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_another_shell_can_be_chosen(places: Places, user_of: UserOf, shell: str) -> None:
    with places.reach(SSH, user_of(shell)) as link, session_on(link, "bash") as session:
        assert session.info.shell_dialect == 1
        assert_usable(session)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_a_command_that_takes_too_long_is_killed(places: Places, user_of: UserOf, shell: str) -> None:
    with places.reach(SSH, user_of(shell)) as link, session_on(link) as session:
        with pytest.raises(CommandTimeout):
            run(session, "sleep 100", timeout=0.5)
        assert_usable(session)


MENU = """#!/bin/sh
while :; do
  echo "1) status  2) log out"
  read -r choice || exit 0
  case $choice in 1) echo "all is well";; 2) exit 0;; *) echo "no such choice";; esac
done
"""
SCRIPTS = {
    "menu": MENU,
    "silent": "#!/bin/sh\nexec sleep 100\n",
    "greeting": "#!/bin/sh\necho 'Only scp here.'\nexit 1\n",
}


@pytest.fixture(scope="module")
def scripts(running_machine: Machine) -> None:
    for name, text in SCRIPTS.items():
        running_machine.write(f"/run/{name}", text, 0o755)
    running_machine.run("ln", "-s", shell_path("bash"), "/run/rbash")


@pytest.mark.parametrize(
    "shell", ["/run/rbash", "/usr/sbin/nologin", "/bin/false", "/run/menu", "/run/silent", "/run/greeting", "/bin/cat"]
)
def test_no_shell_at_all(places: Places, user_of: UserOf, scripts: None, shell: str) -> None:
    user = user_of(shell)
    started = time.monotonic()
    with places.reach(SSH, user) as link, pytest.raises(UnsupportedShell) as caught:
        attempt(link)
    assert time.monotonic() - started < 10
    printed = {"/usr/sbin/nologin": "not available", "/run/menu": "1) status", "/run/greeting": "Only scp here."}
    assert printed.get(shell, "") in caught.value.message


RC_FILES = {
    "bash": ".bashrc",
    "zsh": ".zshenv",
    "tcsh": ".cshrc",
    "fish": ".config/fish/config.fish",
}

NOISE = {
    "bash prints": ("bash", "echo welcome; echo oops >&2"),
    "bash prints no newline": ("bash", "printf welcome; printf oops >&2"),
    "bash prints a lot": ("bash", "head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2"),
    "bash reads a line": ("bash", "read -r answer"),
    "bash asks twice": ("bash", "read -rp 'Name? ' a; read -rp 'Age? ' b"),
    "bash becomes zsh": ("bash", "exec zsh"),
    "bash becomes dash": ("bash", "exec dash"),
    "bash becomes bash": ("bash", '[ "$BECAME" ] || BECAME=1 exec bash --norc'),
    "bash runs another shell": ("bash", "ksh93"),
    "bash sets traps": ("bash", "trap 'echo bye' EXIT; trap '' HUP; trap 'echo debug' DEBUG"),
    "bash has aliases": ("bash", "shopt -s expand_aliases; alias exec=false echo=false printf=false cd=false"),
    "bash has functions": ("bash", "exec(){ echo no; }; cd(){ echo no; }; export -f cd; command(){ echo no; }"),
    "bash is strict": ("bash", "set -euo pipefail"),
    "bash ends with a failure": ("bash", "false"),
    "bash is traced": ("bash", "set -x"),
    "bash is slow": ("bash", "sleep 2"),
    "bash leaves a job": ("bash", "sleep 3 & echo started"),
    "bash asks for a password": ("bash", "printf 'Password: '"),
    "bash moves away": ("bash", "cd /; PATH=/bin; umask 077; export LANG=xx"),
    "zsh prints": ("zsh", "echo welcome; printf oops >&2"),
    "zsh reads a line": ("zsh", "read answer"),
    "zsh is strict": ("zsh", "setopt err_exit no_unset"),
    "zsh becomes bash": ("zsh", "[[ -n $BECAME ]] || BECAME=1 exec bash"),
    "csh prints": ("tcsh", "echo welcome"),
    "csh is slow": ("tcsh", "sleep 2; printf oops"),
    "fish prints": ("fish", "echo welcome; printf oops >&2"),
    "fish is slow": ("fish", "sleep 2"),
}


@pytest.fixture
def noisy(running_machine: Machine, user_of: UserOf) -> Iterator[Callable[[str, str], Inhabitant]]:
    """A function that gives the user of a shell a start-up file."""
    written: list[Path] = []

    def write(shell: str, text: str) -> Inhabitant:
        user = user_of(shell)
        path = f"{user.home}/{RC_FILES[shell]}"
        running_machine.write(path, text + "\n", 0o644, user)
        written.append(running_machine.path(path))
        return user

    yield write
    for path in written:
        path.unlink()


@pytest.mark.parametrize("case", NOISE)
def test_noise_does_no_harm(places: Places, noisy: Callable[[str, str], Inhabitant], case: str) -> None:
    user = noisy(*NOISE[case])
    with places.reach(SSH, user) as link, session_on(link) as session:
        assert out(session, "id -un") == f"{user.name}\n"
        assert_usable(session)
        with pytest.raises(CommandTimeout):
            run(session, "sleep 100", timeout=0.5)
        assert_usable(session)


# What waits for a line, or becomes another shell, keeps sudo from being run at all.
BEFORE_SUDO = [case for case in NOISE if not {"reads", "asks", "becomes", "runs"} & set(case.split())]


@pytest.mark.parametrize("case", BEFORE_SUDO)
def test_noise_does_no_harm_to_elevation(
    running_machine: Machine, places: Places, noisy: Callable[[str, str], Inhabitant], case: str
) -> None:
    user = noisy(*NOISE[case])
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    with places.reach(SSH, user) as link, session_on(elevate(link, password=user.password)) as session:
        assert out(session, "id -un") == "root\n"
        assert_usable(session)


HOPELESS = {
    "ends": ("bash", "exit 1"),
    "waits for the end of its input": ("bash", "cat >/dev/null"),
    "becomes fish, which reads to the end before it starts": ("bash", "exec fish"),
    "sleeps": ("bash", "sleep 30"),
    "throws its errors away": ("bash", "exec 2>/dev/null"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_hopeless_start_up_files(places: Places, noisy: Callable[[str, str], Inhabitant], case: str) -> None:
    user = noisy(*HOPELESS[case])
    started = time.monotonic()
    with places.reach(SSH, user) as link, pytest.raises(UnsupportedShell):
        attempt(link)
    assert time.monotonic() - started < 10
