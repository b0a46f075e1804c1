"""The engine's cases wherever a session can run: over ssh, elevated, on a terminal, and all of it at once.

The tests are those of the local shells, collected again with sessions of other places.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.engine.session import Session
from connmgr.errors import CommandTimeout
from connmgr.plugin import Transport
from tests.engine.shells import ALL, assert_usable, out, run
from tests.engine.test_cases import (  # noqa: F401 - collected here too
    POSIX_CASES,
    check,
    test_a_late_background_job_does_not_print_into_the_next_result,
    test_aliases_and_functions_do_not_last,
    test_errexit_stops_the_command,
    test_interpreted_shell,
    test_killing_the_supervisor_loses_the_session_and_says_so,
    test_killing_the_supervisor_under_a_job_that_holds_the_streams,
    test_output_that_imitates_the_markers,
    test_return_outside_a_function_ends_the_command,
    test_stdin_is_the_commands_own,
    test_stdin_of_interpreted_shells,
    test_xtrace_shows_the_command_alone,
)
from tests.engine.test_state import (  # noqa: F401 - collected here too
    test_a_command_that_leaves_keeps_the_state_before_it,
    test_directory_deleted_before_it_is_entered,
    test_directory_deleted_underneath,
    test_directory_lasts_in_interpreted_shells,
    test_odd_directories_last,
    test_odd_values_last,
    test_odd_values_last_in_fish,
    test_options_hold_for_one_command,
    test_path_may_be_emptied_and_set_again,
    test_unknown_cwd_is_refused_and_nothing_runs,
    test_values_last_in_csh,
)
from tests.engine.test_time_and_size import (  # noqa: F401 - collected here too
    test_a_shell_that_does_not_come_back_is_killed,
    test_a_shell_that_takes_no_command_is_killed,
    test_command_of_a_client_that_left_is_killed,
    test_stop_ends_the_running_and_the_waiting,
    test_stop_kills_a_shell_that_does_not_exit,
    test_ten_megabytes_on_both_streams_at_once,
    test_timeout_finds_what_left_the_tree,
    test_timeout_kills_and_the_session_goes_on,
    test_timeout_spares_the_jobs_of_earlier_commands,
)
from tests.plugins.machine import ROOT_PASSWORD, Machine
from tests.plugins.places import LOCAL, SSH, Places, elevate, session_on

pytestmark = pytest.mark.needs("machine", "sshd", "sudo", "su", "doas")

# Where the login happens, and by which program; a terminal is what su asks on.
WAYS = {
    "ssh": (SSH, None),
    "sudo": (LOCAL, "sudo"),
    "sudo over ssh": (SSH, "sudo"),
    "terminal": (LOCAL, "su"),
    "terminal over ssh": (SSH, "su"),
}
SHELLS = {param.id: param for param in ALL if param.id in {"sh", "bash", "dash", "zsh", "ash", "fish", "tcsh"}}
KEPT_STATE = "pwd; env | grep -v -e ^CONNMGR_ -e ^_= -e ^OLDPWD="


class Kept:
    """Sessions that are opened when first asked for, and anew after a test that has left one in another state."""

    def __init__(self, machine: Machine, places: Places, links: ExitStack) -> None:
        self._machine = machine
        self._places = places
        self._links = links
        self._user = machine.add_user()
        self._transports: dict[str, Transport] = {}
        self._sessions: dict[tuple[str, str], tuple[Session, ExitStack, str]] = {}

    def get(self, way: str, shell: str) -> Session:
        if (way, shell) not in self._sessions:
            self._machine.allow(f"{self._user.name} ALL=(ALL) ALL")
            stack = ExitStack()
            session = stack.enter_context(session_on(self._transport(way), shell))
            self._sessions[way, shell] = session, stack, out(session, KEPT_STATE)
        return self._sessions[way, shell][0]

    def _transport(self, way: str) -> Transport:
        if way not in self._transports:
            place, method = WAYS[way]
            inner = self._links.enter_context(self._places.reach(place, self._user, {"LANG": "C.UTF-8"}))
            password = ROOT_PASSWORD if method == "su" else self._user.password
            self._transports[way] = elevate(inner, method=method, password=password) if method else inner
        return self._transports[way]

    def put_back(self, way: str, shell: str) -> None:
        session, stack, state = self._sessions[way, shell]
        if not session.alive or out(session, KEPT_STATE) != state:
            del self._sessions[way, shell]
            stack.close()

    def close(self) -> None:
        for _, stack, _ in self._sessions.values():
            stack.close()


@pytest.fixture(scope="module")
def kept(running_machine: Machine, places: Places) -> Iterator[Kept]:
    """The sessions of all ways and shells, as a user who may become root."""
    with ExitStack() as links:
        sessions = Kept(running_machine, places, links)
        links.callback(sessions.close)
        yield sessions


def everywhere(*names: str) -> list[Any]:
    """Return the parameters of a session fixture: the named shells by each of the ways."""
    return [
        pytest.param((way, SHELLS[name].values[0]), id=f"{way}-{name}", marks=SHELLS[name].marks)
        for way in WAYS
        for name in names
    ]


def kept_session(request: pytest.FixtureRequest, kept: Kept) -> Iterator[Session]:
    yield kept.get(*request.param)
    kept.put_back(*request.param)


posix = pytest.fixture(params=everywhere("sh", "bash", "dash", "zsh", "ash"))(kept_session)
any_shell = pytest.fixture(params=everywhere("sh", "bash", "zsh", "fish", "tcsh"))(kept_session)
interpreted = pytest.fixture(params=everywhere("fish", "tcsh"))(kept_session)
fish = pytest.fixture(params=everywhere("fish"))(kept_session)
tcsh = pytest.fixture(params=everywhere("tcsh"))(kept_session)
bash = pytest.fixture(params=everywhere("bash"))(kept_session)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that every user may write to."""
    path = Path(tempfile.mkdtemp(prefix="connmgr-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


# sudo and su stop themselves when their shell is stopped, and nobody wakes them: it is the last case of its session.
STOPS = "stopped by itself is woken"


@pytest.mark.parametrize("case", [case for case in POSIX_CASES if case != STOPS])
def test_posix_shell(posix: Session, case: str) -> None:
    check(posix, *POSIX_CASES[case])


def test_stopped_by_itself_is_woken(bash: Session) -> None:
    check(bash, *POSIX_CASES[STOPS])
    bash.stop(0.5)


def test_terminals_are_told(kept: Kept) -> None:
    for way in WAYS:
        assert kept.get(way, "bash").info.tty_state == ("merged" if "terminal" in way else "none")


ON_TERMINAL = [pytest.param((way, "bash"), id=way) for way in WAYS if "terminal" in way]
ON_TERMINAL += [pytest.param(("terminal", SHELLS[name].values[0]), id=name) for name in ("sh", "zsh", "ash", "tcsh")]


@pytest.mark.parametrize("way_and_shell", ON_TERMINAL)
def test_a_command_may_set_the_terminal_as_it_likes(kept: Kept, way_and_shell: tuple[str, str], tmp_path: Path) -> None:
    session = kept.get(*way_and_shell)
    setter = tmp_path / "setter"
    setter.write_text("#!/bin/sh\nexec stty sane <&1\n")
    setter.chmod(0o755)
    text = "x" * 6000
    for command in (f"{setter}", f"{setter}; true", f"cd /; {setter}", f"{setter} && sleep 100"):
        if "sleep" in command:
            with pytest.raises(CommandTimeout):
                run(session, command, timeout=0.3)
        else:
            assert run(session, command).exit_code == 0
        assert out(session, "echo a; echo b") == "a\nb\n", f"echoed or translated after: {command}"
        assert out(session, f"cd /; echo {text}") == f"{text}\n"


HARD_TO_KILL = {
    "ignores TERM": "trap '' TERM; sleep 100",
    "pipeline of three": "sleep 100 | cat | cat",
    "loop of forks": "while :; do /bin/true; done",
    "endless output": "yes",
}


@pytest.mark.parametrize("case", HARD_TO_KILL)
def test_hard_to_kill(bash: Session, case: str) -> None:
    with pytest.raises(CommandTimeout):
        run(bash, HARD_TO_KILL[case], timeout=0.3)
    assert_usable(bash)
    assert psutil.Process(bash.pid).children(recursive=True) == []


def test_every_byte_both_ways(bash: Session) -> None:
    data = bytes(range(256)) * 256
    assert bytes(run(bash, "cat", stdin=data).stdout) == data


def test_ten_megabytes(bash: Session) -> None:
    result = run(bash, "yes 0123456789abcde | head -c 10000000", timeout=60)
    assert bytes(result.stdout) == b"0123456789abcde\n" * 625_000


def test_a_long_command(bash: Session) -> None:
    text = "x" * 200_000
    assert out(bash, f"printf %s {text}") == text
