"""A user at a terminal, which tmux draws; tests read its screen."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures


class Person:
    """A terminal of 100 columns and 30 rows that runs a program."""

    def __init__(self, directory: Path, name: str, environment: Mapping[str, str], command: str) -> None:
        self._words = ["tmux", "-S", str(directory / name), "-f", "/dev/null"]
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._settings = [directory / f"{name}-before", directory / f"{name}-after"]
        before, after = self._settings
        lines = f"stty -g >{before}; {command}; code=$?; stty -g >{after}; echo ended $code; exec sleep 1000"
        self._tmux("new-session", "-d", "-x", "100", "-y", "30", "sh", "-c", lines)

    def _tmux(self, *words: str) -> str:
        argv = [*self._words, *words]
        done = subprocess.run(
            argv, env=self._environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self._tmux("send-keys", "-l", "--", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._tmux("send-keys", "--", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        """Return the screen."""
        return self._tmux("capture-pane", "-p")

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows ``pattern``, and return the match."""
        found: list[re.Match[str]] = []

        def shown(screen: str) -> bool:
            found[:] = re.finditer(pattern, screen, re.MULTILINE)
            return bool(found)

        eventually(self.screen, f"{pattern!r} is not shown", holds=shown)
        return found[0]

    def sees_no(self, pattern: str) -> None:
        """Wait until ``pattern`` has disappeared from the screen."""
        eventually(
            self.screen,
            f"{pattern!r} is still shown",
            holds=lambda screen: not re.search(pattern, screen, re.MULTILINE),
        )

    def sees_it_end(self) -> int:
        """Wait for the program's end and return its exit code; the terminal's settings must be restored."""
        code = int(self.sees(r"^ended (\d+)$")[1])
        before, after = (path.read_text() for path in self._settings)
        assert before == after, f"the terminal is not as it was: {before} {after}"
        modes = self._tmux(
            "display-message", "-p", "#{alternate_on}#{cursor_flag}#{mouse_any_flag}#{keypad_flag}"
        ).strip()
        assert modes == "0100", f"modes are left on: {modes}"
        return code

    def program(self, name: str) -> int:
        """Return the process id of the program ``name`` on the terminal."""
        import psutil

        top = psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}")))

        def find() -> list[int]:
            return [one.pid for one in top.children(recursive=True) if name in " ".join(one.cmdline())]

        return eventually(find, f"{name} does not run")[0]

    def close(self) -> None:
        """End the terminal and its programs."""
        self._tmux("kill-server")


Sit = Callable[[str], Person]


@contextmanager
def sitting(connmgr: CommandLine) -> Iterator[Sit]:
    """Yield a function that runs a command on a new terminal."""
    environment = connmgr.environment | {"PS1": "far> ", "ENV": "", "HISTFILE": "", "SHELL": "/bin/sh"}
    persons: list[Person] = []
    # A socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cm-") as directory:

        def start(command: str) -> Person:
            persons.append(Person(Path(directory), str(len(persons)), environment, command))
            return persons[-1]

        yield start
        for person in persons:
            person.close()


@pytest.fixture
def sit(clean_connmgr: CommandLine) -> Iterator[Sit]:
    """A function that runs a command of :func:`clean_connmgr` on a new terminal."""
    with sitting(clean_connmgr) as start:
        yield start
