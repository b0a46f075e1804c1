"""``connmgr shell`` on a terminal."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.cli.terminal.conftest import Sit, sitting
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields

pytestmark = pytest.mark.needs("tmux", "bash")

PROMPT = r"[$#>] ?$"
MIB = 1024 * 1024


def test_a_login_shell_has_a_terminal_of_this_one_s_size_and_its_exit_code_is_told(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("tput colors; stty size; [ -t 0 ] && [ -t 2 ] && echo both")
    person.sees(r"^256\n30 100\nboth\n")
    person.resize(120, 40)
    person.type("stty size")
    person.sees(r"^40 120\n")
    person.type("exit 7")
    assert person.sees_it_end() == 7


@pytest.mark.needs("vim")
def test_vim_edits_and_saves(sit: Sit, clean_connmgr: CommandLine) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("cd; vim -u NONE -N page")
    person.sees(r'"page" \[New\]')
    person.type("ihello from")
    person.press("far\N{LATIN SMALL LETTER U WITH DIAERESIS}", "Escape")
    person.sees("^far\N{LATIN SMALL LETTER U WITH DIAERESIS}\n~")
    person.type(":wq")
    person.sees_no("^~$")
    assert (
        clean_connmgr.daemon.home / "page"
    ).read_text() == "hello from\nfar\N{LATIN SMALL LETTER U WITH DIAERESIS}\n"
    person.type("exit")
    assert person.sees_it_end() == 0


@pytest.mark.needs("less", "top")
def test_less_pages_and_top_refreshes(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("seq 1 1000 | less")
    person.sees(r"^29\n:")
    person.press("Space")
    person.sees(r"^58\n:")
    person.press("q")
    person.type("top -d 0.3")
    first = person.sees(r"^top - \S+ up.*\n(?:.*\n)+ +PID USER")[0]
    person.sees_no(re.escape(first))
    person.press("q")
    # top discards keys typed before its end.
    person.sees(PROMPT)
    person.type("exit")
    person.sees_it_end()


def test_ctrl_c_ends_what_floods_the_screen(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("yes flood")
    person.sees("^flood\nflood\nflood")
    person.press("C-c")
    person.type("clear; echo on''ward")
    person.sees("^onward")
    person.type("exit")
    person.sees_it_end()


def test_detaching_prints_how_to_attach_and_attaching_shows_the_same_screen(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("HERE=kept; echo se''en")
    person.sees("^seen")
    person.type("~?")
    person.sees("~d  detach; the terminal goes on\n(.*\n)* ~~  send ~")
    person.press("Enter")
    person.press("~", "d")
    back = person.sees(r"detached; `(connmgr shell --attach [0-9a-f-]{36})` comes back\.")[1]
    assert person.sees_it_end() == 0
    again = sit(back)
    again.sees("^seen")
    again.type("echo is $HERE")
    again.sees("^is kept")
    again.press("Enter")
    again.press("~", ".")
    assert again.sees_it_end() == 0
    gone = sit(back)
    gone.sees("No such terminal runs")
    assert gone.sees_it_end() == 5


def test_two_see_the_same_and_one_may_only_watch(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("echo sh''own")
    person.sees("^shown")
    watcher = sit("connmgr shell --attach local --watch")
    watcher.sees("^shown")
    watcher.type("echo not typ''ed")
    person.type("echo mo''re")
    for each in (watcher, person):
        each.sees("^more")
    assert "typed" not in person.screen()
    watcher.press("Enter")
    watcher.press("~", ".")
    assert watcher.sees_it_end() == 0
    second = sit("connmgr shell --attach")
    second.sees("^more")
    second.type("exit 3")
    assert (second.sees_it_end(), person.sees_it_end()) == (3, 3)


@pytest.mark.needs("vim")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was_and_the_far_one_going(sit: Sit, number: signal.Signals) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("vim -u NONE -N page")
    person.sees(r'"page" \[New\]')
    os.kill(person.program("connmgr shell"), number)
    person.sees(rf"ended by {number.name}; the terminal goes on")
    assert person.sees_it_end() == 128 + number
    again = sit("connmgr shell --attach")
    again.sees(r"^~\n~")
    again.type(":q")
    again.sees(PROMPT)
    again.type("exit")
    again.sees_it_end()


def test_a_killed_client_can_attach_again(sit: Sit) -> None:
    person = sit("connmgr shell local")
    person.sees(PROMPT)
    person.type("echo be''fore")
    person.sees("^before")
    os.kill(person.program("connmgr shell"), signal.SIGKILL)
    person.sees("ended 137")
    again = sit("connmgr shell --attach local")
    again.sees("^before")
    again.type("exit")
    assert again.sees_it_end() == 0


@pytest.mark.needs("vim")
def test_the_daemon_s_stop_leaves_the_terminal_as_it_was(own_connmgr: CommandLine) -> None:
    with sitting(own_connmgr) as sit:
        person = sit("connmgr shell local")
        person.sees(PROMPT)
        person.type("vim -u NONE -N page")
        person.sees(r'"page" \[New\]')
        own_connmgr("stop")
        person.sees("^Error: The daemon is stopping")
        assert person.sees_it_end() == 1


@pytest.mark.needs("sshd", "vim")
def test_a_lost_link_leaves_the_terminal_as_it_was(sit: Sit, clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    clean_connmgr.add_ssh("web", server)
    person = sit("connmgr shell web")
    person.sees(PROMPT)
    person.type("vim -u NONE -N page")
    person.sees(r'"page" \[New\]')
    server.kill_sessions()
    person.sees("^Error: ")
    assert person.sees_it_end() == 1


@pytest.mark.needs("machine", "sudo", "sshd")
def test_sudo_asks_and_is_answered(
    sit: Sit, clean_connmgr: CommandLine, places: Places, running_machine: Machine
) -> None:
    user = running_machine.add_user()
    running_machine.allow(f"{user.name} ALL=(ALL) ALL")
    clean_connmgr.daemon.client.connection.add("web", {"type": "ssh", **ssh_fields(places.sshd, user.name)})
    person = sit("connmgr shell web")
    person.sees(PROMPT)
    person.type("sudo id -un")
    person.sees(r"(?i)password.*: ?$")
    person.type(user.password)
    person.sees("^root\n")
    assert user.password not in person.screen()
    person.type("exit")
    assert person.sees_it_end() == 0


def test_a_megabyte_is_pasted(clean_connmgr: CommandLine) -> None:
    pasted = bytes(97 + number % 26 for number in range(MIB))
    terminal = clean_connmgr.on_terminal("shell", "local")
    terminal.delaybeforesend = None
    terminal.sendline(f"stty raw -echo; echo rea''dy; head -c {MIB} | md5sum; stty sane; exit")
    terminal.expect_exact("ready")
    # The terminal's own buffer is small, so pasting waits for the reader.
    paste = threading.Thread(target=terminal.send, args=[pasted.decode()])
    paste.start()
    terminal.expect_exact(hashlib.md5(pasted).hexdigest())
    paste.join(DEADLINE_SECONDS)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_a_shell_can_be_suspended_as_ssh_can(clean_connmgr: CommandLine) -> None:
    terminal = clean_connmgr.on_terminal("--norc", program="bash")
    terminal.sendline("PS1='here> '; connmgr shell local")
    terminal.expect_exact("\x1b[2J")
    terminal.sendline("echo fa''r")
    terminal.expect_exact("far\r\n")
    terminal.send("\r~\x1a")
    terminal.expect_exact("Stopped")
    terminal.sendline("echo ba''ck; stty -a")
    terminal.expect_exact("back")
    terminal.expect(r"\bisig icanon")
    terminal.sendline("fg")
    terminal.sendline("echo fa''r; exit 4")
    terminal.expect_exact("far\r\n")
    terminal.sendline("echo left $?")
    terminal.expect_exact("left 4")
    terminal.close(force=True)


def test_a_client_stopped_from_outside_continues_in_raw_mode(sit: Sit) -> None:
    person = sit("bash --norc")
    person.type("set -m; connmgr shell local")
    person.sees(r"^root@|\$ connmgr shell local\n.*" + PROMPT)
    person.type("echo fa''r")
    person.sees("^far")
    os.kill(person.program("connmgr shell"), signal.SIGSTOP)
    person.sees("Stopped")
    person.type("fg")
    person.type("sh -c 'echo ba''ck; exec sleep 100'")
    person.sees("^back")
    person.press("C-c")
    person.type("echo st''ill; exit")
    person.sees("^still")
    person.type("exit 0")
    assert person.sees_it_end() == 0


def test_without_a_terminal_there_is_nothing_to_attach(clean_connmgr: CommandLine) -> None:
    assert "--attach needs a terminal" in clean_connmgr("shell", "--attach", code=2).errors
    assert "--watch needs --attach" in clean_connmgr("shell", "local", "--watch", code=2).errors
    assert "Missing argument" in clean_connmgr("shell", code=2).errors


def test_a_recording_that_cannot_be_made_is_refused(clean_connmgr: CommandLine) -> None:
    assert "--record needs a terminal" in clean_connmgr("shell", "local", "--record", code=2, stdin="pwd\n").errors
    for option in (["--record"], ["--fresh"], ["--session", "one"]):
        terminal = clean_connmgr.on_terminal("shell", "--attach", "local", *option)
        terminal.expect_exact(f"{option[0]} is for a new terminal")
        assert finish(terminal)[0] == 2


def test_a_recording_that_ended_early_is_reported(start_daemon: StartDaemon) -> None:
    connmgr = CommandLine(start_daemon("--max-recording", "1024"))
    terminal = connmgr.on_terminal("shell", "--record", "local")
    terminal.sendline("echo rea''dy; seq 1000; exit 3")
    terminal.expect_exact("the recording has ended at `max-recording`")
    assert finish(terminal)[0] == 3


def test_ssh_on_a_terminal_ends_with_its_program_and_as_ssh_does(sit: Sit, tmp_path: Path) -> None:
    person = sit("connmgr ssh local")
    person.sees(PROMPT)
    person.type("stty size; echo $$ >" + str(tmp_path / "pid"))
    person.sees("^30 100")
    person.resize(90, 20)
    person.type("stty size")
    person.sees("^20 90")
    person.press("Enter")
    person.press("~", ".")
    assert person.sees_it_end() == 255
    pid = int((tmp_path / "pid").read_text())
    assert psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], DEADLINE_SECONDS)[1] == []
    asked = sit("connmgr ssh -t local 'read -p name? name; echo hello $name; exit 9'")
    asked.sees(r"name\?")
    asked.type("me")
    asked.sees("^hello me")
    assert asked.sees_it_end() == 9
