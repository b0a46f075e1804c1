"""A command on a terminal that finds no daemon offers to start one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.cli.program import DIRECTORY, finish
from tests.daemon import Daemon, clean_environment
from tests.deadlines import DEADLINE_SECONDS

QUESTION = "No daemon runs. Start one in the background"
PROGRAM = str(DIRECTORY / "connmgr")


class Person:
    """A user at a terminal, whose daemon takes a free port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = clean_environment(home) | {"CONNMGR_PORT": "0", "TERM": "xterm"}
        self.log = home / "state" / "connmgr" / "daemon.log"

    def types(self, *words: str, **environment: str) -> pexpect.spawn:
        variables = self.environment | environment
        return pexpect.spawn(PROGRAM, list(words), env=variables, cwd="/", timeout=DEADLINE_SECONDS, encoding="utf-8")

    def pid(self) -> int:
        told: int = json.loads((self.home / "run" / "connmgr" / "daemon.json").read_text())["pid"]
        return told


@pytest.fixture
def person() -> Iterator[Person]:
    with tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True) as directory:
        one = Person(Path(directory))
        yield one
        if (one.home / "run" / "connmgr" / "daemon.json").exists():
            subprocess.run(
                [PROGRAM, "stop"], env=one.environment, capture_output=True, timeout=DEADLINE_SECONDS, check=True
            )


def test_none_is_offered_where_one_has_its_files_elsewhere(person: Person) -> None:
    """As in a terminal with XDG_RUNTIME_DIR, when cron or su has started the daemon without it."""
    elsewhere = person.home / "state" / "connmgr" / "auth"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    code, shown = finish(person.types("ls"))
    assert code == 3, shown
    assert f"has {elsewhere}: CONNMGR_AUTH_FILE={elsewhere} names it." in shown
    assert QUESTION not in shown


def test_yes_starts_a_daemon_of_its_own_session_and_the_command_goes_on(person: Person) -> None:
    terminal = person.types("exec", "local", "--", "echo", "done")
    terminal.expect_exact(QUESTION)
    terminal.sendline("")
    code, shown = finish(terminal)
    assert code == 0, shown
    assert f"its log is {person.log}" in shown
    assert shown.rstrip().endswith("done"), shown
    pid = person.pid()
    assert os.getsid(pid) == pid, "the daemon would get the signals of the terminal"
    assert stat.S_IMODE(person.log.stat().st_mode) == 0o600
    assert "/shell/exec" in person.log.read_text()
    assert finish(person.types("ls"))[0] == 0, "the next command asks again"


def test_no_leaves_it_and_exits_with_3(person: Person) -> None:
    terminal = person.types("ls")
    terminal.expect_exact(QUESTION)
    terminal.sendline("n")
    code, shown = finish(terminal)
    assert code == 3
    assert "`connmgr serve`" in shown
    assert not person.log.exists()


@pytest.mark.parametrize("words", [("ls", "--json"), ("--json", "ls"), ("status",), ("stop",)])
def test_nobody_is_asked_by_these(person: Person, words: tuple[str, ...]) -> None:
    code, shown = finish(person.types(*words))
    assert code == 3, shown
    assert QUESTION not in shown
    assert "`connmgr serve`" in shown


def test_nobody_is_asked_where_an_address_is_given(person: Person) -> None:
    code, shown = finish(person.types("--url", "http://127.0.0.1:1", "ls"))
    assert (code, QUESTION in shown) == (3, False)


def test_a_daemon_that_does_not_start_is_told_with_its_reason(person: Person) -> None:
    terminal = person.types("ls", CONNMGR_THREADS="many")
    terminal.expect_exact(QUESTION)
    terminal.sendline("y")
    code, shown = finish(terminal)
    assert code == 3
    assert "CONNMGR_THREADS" in shown


def test_the_started_daemon_reads_the_configuration(person: Person) -> None:
    config = person.home / "config" / "connmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'data-dir = "{person.home}/elsewhere"\n')
    terminal = person.types("ls")
    terminal.expect_exact(QUESTION)
    terminal.sendline("y")
    assert finish(terminal)[0] == 0
    assert (person.home / "elsewhere" / "vault.db").exists()


def test_starting_is_offered_after_a_daemon_was_killed(person: Person) -> None:
    Daemon(person.home).kill()
    terminal = person.types("ls")
    terminal.expect_exact(QUESTION)
    terminal.sendline("y")
    assert finish(terminal)[0] == 0
    assert os.getsid(person.pid()) == person.pid()


def test_a_long_log_is_begun_anew(person: Person) -> None:
    from connmgr.cli.connect import MAX_LOG_BYTES

    person.log.parent.mkdir(mode=0o700)
    with person.log.open("wb") as log:
        log.truncate(MAX_LOG_BYTES)
    terminal = person.types("ls")
    terminal.expect_exact(QUESTION)
    terminal.sendline("y")
    assert finish(terminal)[0] == 0
    assert person.log.stat().st_size < MAX_LOG_BYTES
    assert person.log.with_name("daemon.log.1").stat().st_size == MAX_LOG_BYTES
