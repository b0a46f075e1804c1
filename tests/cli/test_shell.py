"""``connmgr shell`` line by line: on a terminal with ``--lines``, and without a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.cli.conftest import StartSshd, lose_links
from tests.cli.program import CommandLine, finish
from tests.deadlines import eventually_equal

pytestmark = pytest.mark.needs("bash")


def prompt(directory: str, name: str = "local machine") -> str:
    return re.escape(f"{name}:{directory}> ")


@pytest.fixture
def terminal(clean_connmgr: CommandLine) -> Iterator[pexpect.spawn]:
    """The shell of the local machine, at its first prompt."""
    started = clean_connmgr.on_terminal("shell", "--lines", "local")
    started.setecho(False)
    started.expect(prompt(str(clean_connmgr.daemon.home)))
    yield started
    started.close(force=True)


def run(terminal: pexpect.spawn, line: str, directory: str) -> str:
    """Enter a line, wait for the next prompt, and return the output."""
    terminal.sendline(line)
    terminal.expect(prompt(directory))
    printed = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", str(terminal.before)).replace("\r", "")
    return printed.removeprefix(line).strip("\n")


def test_lines_are_commands_and_the_prompt_shows_the_directory(terminal: pexpect.spawn) -> None:
    assert run(terminal, "cd /etc; export ODD='a b'", "/etc") == ""
    assert run(terminal, 'echo "$ODD"; printf unfinished', "/etc") == "a b\nunfinished"
    assert "nowhere" in run(terminal, "ls nowhere", "/etc")
    assert run(terminal, "cat", "/etc") == ""


def test_ctrl_c_kills_the_command_and_the_shell_stays(terminal: pexpect.spawn, tmp_path: Path) -> None:
    run(terminal, "cd /etc", "/etc")
    mark = tmp_path / "begun"
    os.mkfifo(mark)
    terminal.sendline(f"echo $BASHPID > {mark}; sleep 100; :")
    pid = int(mark.read_text())
    terminal.sendintr()
    terminal.expect(prompt("/etc"))
    assert "No such process" in run(terminal, f"kill -0 {pid}", "/etc")


def await_sleep(pid: int) -> None:
    """Wait until a process waits for input."""
    eventually_equal(psutil.Process(pid).status, psutil.STATUS_SLEEPING, "the program does not wait for a key")


def test_ctrl_c_at_the_prompt_drops_the_line(clean_connmgr: CommandLine) -> None:
    home = clean_connmgr.daemon.home
    terminal = clean_connmgr.on_terminal("shell", "--lines", "local", columns=1000)
    terminal.expect(prompt(str(home)))
    terminal.send("touch never")
    terminal.expect("never")
    # Python's readline shows a key before it waits for the next one, and notices a signal only while it waits.
    await_sleep(terminal.pid)
    terminal.sendintr()
    terminal.expect(prompt(str(home)))
    terminal.sendline("cd /")
    terminal.expect(prompt("/"))
    terminal.close(force=True)
    assert not (home / "never").exists()


def test_the_history_lasts_and_leaves_out_lines_with_a_leading_blank(
    terminal: pexpect.spawn, clean_connmgr: CommandLine
) -> None:
    run(terminal, "cd /usr", "/usr")
    run(terminal, " echo private", "/usr")
    terminal.sendeof()
    assert finish(terminal)[0] == 0
    history = clean_connmgr.daemon.home / "state" / "connmgr" / "history"
    assert history.read_text().splitlines()[-1] == "cd /usr"
    assert history.stat().st_mode & 0o777 == 0o600
    again = clean_connmgr.on_terminal("shell", "--lines", "local")
    again.expect(prompt("/usr"))
    again.send("\x1b[A")
    again.expect("cd /usr")
    await_sleep(again.pid)
    again.sendintr()
    again.expect(prompt("/usr"))
    again.sendeof()
    finish(again)


def test_ctrl_c_leaves_what_the_command_had_printed(terminal: pexpect.spawn) -> None:
    terminal.sendline("printf out; printf err >&2; sleep 100")
    for printed in ("out", "err"):
        terminal.expect_exact(printed)
    terminal.sendintr()
    terminal.expect(r"\^C\s+local machine:\S+> ")


def test_a_history_that_cannot_be_read_is_done_without(clean_connmgr: CommandLine) -> None:
    history = clean_connmgr.daemon.home / "state" / "connmgr" / "history"
    history.mkdir(parents=True)
    terminal = clean_connmgr.on_terminal("shell", "--lines", "local", columns=1000)
    terminal.expect(re.escape(f"connmgr: lines are not remembered: {history}: "))
    terminal.expect(prompt(str(clean_connmgr.daemon.home)))
    terminal.sendline("cd /")
    terminal.expect(prompt("/"))
    terminal.sendeof()
    code, printed = finish(terminal)
    assert (code, printed.strip()) == (0, "")


@pytest.mark.parametrize(
    ("line", "code"),
    [("exit", 3), ("exit 4", 4), ("exit $((1 + 4))", 5), ("exit nonsense", 2), ("logout", 3), ("logout 6", 6)],
)
def test_exit_leaves_with_the_last_exit_code_or_its_own(terminal: pexpect.spawn, line: str, code: int) -> None:
    run(terminal, "cd /; (exit 3)", "/")
    terminal.sendline(line)
    assert finish(terminal)[0] == code


def test_without_a_terminal_lines_of_standard_input_are_run(clean_connmgr: CommandLine) -> None:
    done = clean_connmgr("shell", "local", stdin="cd /etc\n\npwd\necho err >&2; printf end; (exit 6)\n", code=6)
    assert (done.stdout, done.stderr) == (b"/etc\nend", b"err\n")
    assert clean_connmgr("exec", "local", "--", "pwd").output == "/etc\n"


@pytest.mark.needs("sshd")
def test_a_shell_that_is_lost_is_started_again(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    clean_connmgr.add_ssh("web", server)
    terminal = clean_connmgr.on_terminal("shell", "--lines", "web")
    terminal.setecho(False)
    terminal.expect(r"web:\S+> ")
    terminal.sendline("cd /etc")
    terminal.expect(prompt("/etc", "web"))
    lose_links(clean_connmgr, server)
    terminal.sendline("echo ba''ck")
    terminal.expect_exact("web: the shell was started anew; its directory and variables are new")
    terminal.expect(r"back\s+web:(?!/etc)\S+> ")
    # A sent line is not repeated; the next line has a new shell.
    terminal.sendline("echo $$; sleep 100")
    terminal.expect(r"\d+")
    server.kill_sessions()
    terminal.expect("Error: ")
    terminal.expect(r"web:\S+> ")
    terminal.sendeof()
    finish(terminal)
