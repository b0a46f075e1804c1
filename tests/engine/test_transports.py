"""The engine's cases wherever a session can run: over SSH, elevated, on a terminal, and combined.

These are the tests of the local shells, collected again with sessions in other places.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import psutil
import pytest

from connmgr.engine.session import Session
from connmgr.errors import CommandTimeout
from connmgr.plugin import Transport
from tests.components import program
from tests.engine import test_argv, test_cases, test_input, test_places, test_state, test_time_and_size
from tests.engine.everywhere import cases_of, marks_of, over, session_of
from tests.engine.shells import ALL, SESSIONS, Reused, assert_usable, only, out, run
from tests.plugins.machine import ROOT_PASSWORD, Inhabitant, Machine, shell_path
from tests.plugins.oneself import ssh_link, ssh_server
from tests.plugins.places import LOCAL, SSH, Places, elevate, session_on
from tests.processes import await_ends

# Place and program of the login; su asks on a terminal.
WAYS = {
    "ssh": (SSH, None),
    "sudo": (LOCAL, "sudo"),
    "sudo over ssh": (SSH, "sudo"),
    "terminal": (LOCAL, "su"),
    "terminal over ssh": (SSH, "su"),
}
NEEDS = {
    "ssh": ("sshd",),
    "sudo": ("machine", "sudo"),
    "sudo over ssh": ("machine", "sudo", "sshd"),
    "terminal": ("machine", "su"),
    "terminal over ssh": ("machine", "su", "sshd"),
}


class Kept:
    """The sessions of all ways and shells.

    Plain SSH leads to the user who runs the tests, by a separate server; the other ways lead to a machine, with a
    user who may become root.
    """

    def __init__(self, links: ExitStack, tests: pytest.Session) -> None:
        self._links = links
        self._transports: dict[str, Transport] = {}
        self._users: list[Inhabitant] = []
        self._sessions = Reused(tests)

    def get(self, way: str, shell: str, request: pytest.FixtureRequest) -> AbstractContextManager[Session]:
        return self._sessions.get((way, shell), lambda: session_on(self._transport(way, request), shell))

    def _transport(self, way: str, request: pytest.FixtureRequest) -> Transport:
        place, method = WAYS[way]
        if method is not None:
            self._admit(request.getfixturevalue("running_machine"))
        if way not in self._transports:
            if method is None:
                server = self._links.enter_context(ssh_server(request.getfixturevalue("home_of_the_daemon")))
                self._transports[way] = self._links.enter_context(ssh_link(server))
            else:
                self._transports[way] = self._elevated(place, method, request.getfixturevalue("places"))
        return self._transports[way]

    def _admit(self, machine: Machine) -> None:
        if not self._users:
            self._users.append(machine.add_user())
        machine.allow(f"{self._users[0].name} ALL=(ALL) ALL")

    def _elevated(self, place: str, method: str, places: Places) -> Transport:
        [user] = self._users
        inner = self._links.enter_context(places.reach(place, user, {"LANG": "C.UTF-8"}))
        return elevate(inner, method=method, password=ROOT_PASSWORD if method == "su" else user.password)

    def close(self) -> None:
        self._sessions.close()


@pytest.fixture(scope="module")
def kept(home_of_the_daemon: Path, request: pytest.FixtureRequest) -> Iterator[Kept]:
    """The sessions of all ways and shells."""
    with ExitStack() as links:
        sessions = Kept(links, request.session)
        links.callback(sessions.close)
        yield sessions


def kept_session(request: pytest.FixtureRequest, kept: Kept) -> Iterator[Session]:
    with kept.get(*request.param, request) as session:
        yield session


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that every user may write to."""
    path = Path(tempfile.mkdtemp(prefix="connmgr-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


CASES = cases_of(test_argv, test_cases, test_input, test_places, test_state, test_time_and_size)
globals().update({name: pytest.fixture(kept_session) for name in SESSIONS})
RUNS = over(NEEDS, CASES)
globals().update(RUNS)


def test_a_case_that_is_added_runs_over_every_transport() -> None:
    """Every test of test_cases.py has a session fixture and is collected here, or has a reason to be local."""
    defined = {name: test for name, test in vars(test_cases).items() if name.startswith("test_")}
    local = {name for name, test in defined.items() if any(mark.name == "local" for mark in marks_of(test))}
    assert set(defined) - local - set(CASES) == set(), "these take no session of a fixture, and are not marked local"
    for name in defined.keys() - local:
        assert globals()[name].pytestmark[-1].args[0][0] == session_of(defined[name])


def test_pairs_leave_no_way_or_shell_out() -> None:
    met = set()
    for name, test in RUNS.items():
        [mark] = [mark for mark in marks_of(test) if mark.name == "parametrize"]
        ways = defaultdict(list)
        for run_ in mark.args[1]:
            way, shell = run_.values[0]
            ways[tuple(map(repr, run_.values[1:]))].append(way)
            met.add((way, shell))
        assert all(by_case == list(WAYS) for by_case in ways.values()), f"{name} misses a way"
    assert met == {(way, shell.values[0]) for way in WAYS for shell in ALL}


def by(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    """Return the mark that parametrizes a test with these ways and shells."""
    runs = []
    for way, name in pairs:
        [shell] = only(name)
        marks = [*shell.marks, pytest.mark.needs(*NEEDS[way])]
        runs.append(pytest.param((way, shell.values[0]), id=f"{way}-{name}", marks=marks))
    return pytest.mark.parametrize("any_shell", runs, indirect=True)


@by(*((way, "bash") for way in WAYS))
def test_terminals_are_told(any_shell: Session, request: pytest.FixtureRequest) -> None:
    way, _ = request.node.callspec.params["any_shell"]
    assert any_shell.info.tty_state == ("merged" if "terminal" in way else "none")


@by(("terminal over ssh", "bash"), *(("terminal", name) for name in ("sh", "bash", "zsh", "ash", "tcsh")))
def test_a_command_may_set_the_terminal_as_it_likes(any_shell: Session, tmp_path: Path) -> None:
    setter = tmp_path / "setter"
    setter.write_text("#!/bin/sh\nexec stty sane <&1\n")
    setter.chmod(0o755)
    text = "x" * 6000
    for command in (f"{setter}", f"{setter}; true", f"cd /; {setter}", f"{setter} && sleep 100"):
        if "sleep" in command:
            with pytest.raises(CommandTimeout):
                run(any_shell, command, timeout=0.3)
        else:
            assert run(any_shell, command).exit_code == 0
        assert out(any_shell, "echo a; echo b") == "a\nb\n", f"echoed or translated after: {command}"
        assert out(any_shell, f"cd /; echo {text}") == f"{text}\n"


@pytest.mark.parametrize("name", ["sh", "bash", "zsh", "ksh93", "mksh", "ash"])
@pytest.mark.needs("zsh", "ksh93", "mksh", "busybox", *NEEDS["terminal"])
def test_a_killed_command_leaves_no_terminal_as_it_has_set_it(
    kept: Kept, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """Even if the killer takes what sets the terminal behind a command for a part of the command."""
    held, stty, shell = tmp_path / "held", tmp_path / "stty", tmp_path / name
    stty.write_text(f'#!/bin/sh\n! rm {held} 2>/dev/null || exec sleep 1000\nexec {program("stty")} "$@"\n')
    words = "busybox ash" if name == "ash" else shell_path(name)
    shell.write_text(f'#!/bin/sh\nPATH={tmp_path}:$PATH\nexec {words} "$@"\n')
    for script in (stty, shell):
        script.chmod(0o755)
    with kept.get("terminal", str(shell), request) as session:
        with pytest.raises(CommandTimeout):
            run(session, f"{program('stty')} sane <&1; touch {held}; sleep 1000", timeout=0.5)
        assert not held.exists(), "nothing was killed behind the command"
        assert out(session, "echo a; echo b") == "a\nb\n", "echoed or translated"


def check_newlines(session: Session, directory: Path) -> None:
    """Newlines arrive in a command's text, directory, environment and lasting state."""
    (directory / "two\nlines").mkdir(exist_ok=True)
    lines = "".join(f"line {number} of a longer text\n" for number in range(500))
    text = "test \"$(printf x)\" = x && printf '%s' '" + lines + "'"
    assert out(session, text) == lines
    place = str(directory / "two\nlines")
    assert out(session, "/bin/pwd", directory=place.encode()) == f"{place}\n"
    assert out(session, 'printf "[%s]" "$TEXT"', environment={"TEXT": lines}) == f"[{lines}]"
    run(session, f"cd '{place}'; export TEXT='a\nb'")
    assert out(session, '/bin/pwd; printf "%s" "$TEXT"') == f"{place}\na\nb"
    run(session, "cd /; unset TEXT")
    assert_usable(session)


@by(*((way, name) for way in ("terminal", "terminal over ssh") for name in ("ksh93", "mksh", "dash", "zsh")))
def test_newlines_reach_a_shell_on_a_terminal(any_shell: Session, tmp_path: Path) -> None:
    check_newlines(any_shell, tmp_path)


@pytest.mark.needs("ksh93", *NEEDS["terminal"])
def test_an_sh_that_is_ksh93_is_told_by_what_it_is(kept: Kept, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shell_path("ksh93"))
    with kept.get("terminal", str(tmp_path / "sh"), request) as session:
        check_newlines(session, tmp_path)
        with pytest.raises(CommandTimeout):
            run(session, "while :; do :; done", timeout=0.3)
        assert_usable(session)


@pytest.mark.parametrize("case", ["ignores TERM", "pipeline of three", "loop of forks", "endless output"])
@by(*((way, "bash") for way in WAYS))
def test_hard_to_kill_elsewhere(any_shell: Session, case: str) -> None:
    with pytest.raises(CommandTimeout):
        run(any_shell, test_time_and_size.HARD_TO_KILL[case], timeout=0.08)
    assert_usable(any_shell)
    # The subshell of the last command may not have ended yet.
    for child in psutil.Process(any_shell.pid).children(recursive=True):
        await_ends(child.pid)
