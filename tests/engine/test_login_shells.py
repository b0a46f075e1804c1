"""Login shells on the remote host, and the effects of their start-up files."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from connmgr.engine import start
from connmgr.errors import CommandTimeout, UnsupportedShell
from connmgr.plugin import Transport
from tests.engine.shells import assert_usable, out, run
from tests.plugins.machine import Machine, shell_path
from tests.plugins.oneself import ssh_link, ssh_server
from tests.plugins.places import SSH, Places, attempt, elevate, session_on

pytestmark = pytest.mark.needs("sshd", "bash", "zsh", "ksh93", "mksh", "dash", "busybox", "fish", "tcsh")

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
LINKS = {"ash": "busybox", "rbash": "bash"}
NUDGE_SECONDS = tuple(seconds / 5 for seconds in start.NUDGE_SECONDS)
NUDGED_SECONDS = max(NUDGE_SECONDS) + 1


@dataclass(frozen=True)
class Login:
    """A user of a remote host: an open SSH link, and the home directory as the tests see it."""

    name: str
    home: Path
    link: Transport
    password: str = ""


LoginOf = Callable[[str], Login]


def prepare(directory: Path) -> None:
    """Write login shells that no system has into a directory, unless they are there: pytest may call this twice."""
    for name, text in SCRIPTS.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    for name, shell in LINKS.items():
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(shell_path(shell))


def path_of(shell: str, prepared: str) -> str:
    if shell in SCRIPTS or shell in LINKS:
        return f"{prepared}/{shell}"
    return shell if shell.startswith("/") else shell_path(shell)


@pytest.fixture(scope="module")
def oneself(home_of_the_daemon: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginOf]:
    """A function that logs the user who runs the tests in to a shell, by a separate server."""
    directory = tmp_path_factory.mktemp("shells")
    prepare(directory)
    logins: dict[str, Login] = {}
    with ExitStack() as opened:

        def of(shell: str) -> Login:
            if shell not in logins:
                home = tmp_path_factory.mktemp("login")
                server = opened.enter_context(ssh_server(home, path_of(shell, str(directory))))
                logins[shell] = Login(getpass.getuser(), home, opened.enter_context(ssh_link(server)))
            return logins[shell]

        yield of


@pytest.fixture(scope="module")
def inhabitant(running_machine: Machine, places: Places) -> Iterator[LoginOf]:
    """A function that returns the machine's user with a given login shell."""
    logins: dict[str, Login] = {}
    prepare(running_machine.path("/run"))
    with ExitStack() as opened:

        def of(shell: str) -> Login:
            if shell not in logins:
                user = running_machine.add_user(path_of(shell, "/run"))
                link = opened.enter_context(places.reach(SSH, user))
                logins[shell] = Login(user.name, running_machine.path(user.home), link, user.password)
            return logins[shell]

        yield of


@pytest.fixture(scope="module", params=["oneself", pytest.param("inhabitant", marks=pytest.mark.needs("machine"))])
def anybody(request: pytest.FixtureRequest) -> LoginOf:
    """A login shell that replaces the tester's own, and one from the user database."""
    login_of: LoginOf = request.getfixturevalue(request.param)
    return login_of


@pytest.fixture(autouse=True)
def soon_nudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nudge silent shells sooner than a user's."""
    monkeypatch.setattr(start, "NUDGE_SECONDS", NUDGE_SECONDS)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_works_in_its_own_language(anybody: LoginOf, shell: str) -> None:
    user = anybody(shell)
    with session_on(user.link) as session:
        assert session.info.shell_dialect == LOGIN_SHELLS[shell]
        assert out(session, "id -un") == f"{user.name}\n"
        if shell in ("fish", "tcsh"):
            assert out(session, {"fish": "set -gx A b", "tcsh": "setenv A b"}[shell]) == ""
            assert out(session, "echo $A") == "b\n"
        assert_usable(session)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_another_shell_can_be_chosen(anybody: LoginOf, shell: str) -> None:
    with session_on(anybody(shell).link, "bash") as session:
        assert session.info.shell_dialect == 1
        assert_usable(session)


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_a_command_that_takes_too_long_is_killed(oneself: LoginOf, shell: str) -> None:
    with session_on(oneself(shell).link) as session:
        with pytest.raises(CommandTimeout):
            run(session, "sleep 100", timeout=0.2)
        assert_usable(session)


@pytest.mark.parametrize(
    "shell", ["rbash", "/usr/sbin/nologin", "/bin/false", "menu", "silent", "greeting", "/bin/cat"]
)
def test_no_shell_at_all(anybody: LoginOf, shell: str) -> None:
    user = anybody(shell)
    started = time.monotonic()
    with pytest.raises(UnsupportedShell) as caught:
        attempt(user.link, NUDGED_SECONDS)
    assert time.monotonic() - started < 30
    printed = {"/usr/sbin/nologin": "not available", "menu": "1) status", "greeting": "Only scp here."}
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
    "bash is slow": ("bash", "sleep 0.5"),
    "bash leaves a job": ("bash", "sleep 3 & echo started"),
    "bash asks for a password": ("bash", "printf 'Password: '"),
    "bash moves away": ("bash", "cd /; PATH=/bin; umask 077; export LANG=xx"),
    "zsh prints": ("zsh", "echo welcome; printf oops >&2"),
    "zsh reads a line": ("zsh", "read answer"),
    "zsh is strict": ("zsh", "setopt err_exit no_unset"),
    "zsh becomes bash": ("zsh", "[[ -n $BECAME ]] || BECAME=1 exec bash"),
    "csh prints": ("tcsh", "echo welcome"),
    "csh is slow": ("tcsh", "sleep 0.5; printf oops"),
    "fish prints": ("fish", "echo welcome; printf oops >&2"),
    "fish is slow": ("fish", "sleep 0.5"),
}


@contextmanager
def noisy(login_of: LoginOf, shell: str, text: str) -> Iterator[Login]:
    """Give the user of a shell a start-up file for the block."""
    user = login_of(shell)
    path = user.home / RC_FILES[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    try:
        yield user
    finally:
        path.unlink()


@pytest.mark.parametrize("case", NOISE)
def test_noise_does_no_harm(oneself: LoginOf, case: str) -> None:
    with noisy(oneself, *NOISE[case]) as user, session_on(user.link) as session:
        assert out(session, "id -un") == f"{user.name}\n"
        assert_usable(session)
        with pytest.raises(CommandTimeout):
            run(session, "sleep 100", timeout=0.2)
        assert_usable(session)


# A start-up file that waits for a line or executes another shell prevents sudo from running.
BEFORE_SUDO = [case for case in NOISE if not {"reads", "asks", "becomes", "runs"} & set(case.split())]


@pytest.mark.needs("machine", "sudo")
@pytest.mark.parametrize("case", BEFORE_SUDO)
def test_noise_does_no_harm_to_elevation(running_machine: Machine, inhabitant: LoginOf, case: str) -> None:
    with noisy(inhabitant, *NOISE[case]) as user:
        running_machine.allow(f"{user.name} ALL=(ALL) ALL")
        with session_on(elevate(user.link, password=user.password)) as session:
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
def test_hopeless_start_up_files(oneself: LoginOf, case: str) -> None:
    started = time.monotonic()
    with noisy(oneself, *HOPELESS[case]) as user, pytest.raises(UnsupportedShell):
        attempt(user.link, NUDGED_SECONDS)
    assert time.monotonic() - started < 30
