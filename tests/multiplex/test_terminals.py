"""Sessions with a terminal: its size and its changes, modes, TERM, and the escape character."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pexpect
import pytest

from tests.multiplex.behind import Hosts

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


@pytest.fixture(autouse=True)
def ends_sessions(hosts: Hosts) -> Iterator[None]:
    """End the sessions of a test, which failed perhaps, so that the next one does not find them listed."""
    yield
    hosts.close_terminals()


def ended(terminal: pexpect.spawn) -> tuple[int | None, str]:
    """Return the exit status of ssh and what it has printed since the last match."""
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus, str(terminal.before)


def test_the_size_comes_and_its_changes_follow(hosts: Hosts) -> None:
    # Without a trap of its own bash goes on after an INT that its child (stty, at its end) has outlived.
    script = "trap 'stty size' WINCH; trap 'exit 130' INT; stty size; while :; do sleep 0.1; done"
    terminal = hosts.on_terminal("-t", "web", script, columns=91)
    terminal.expect("24 91\r+\n")
    terminal.setwinsize(33, 120)
    terminal.expect("33 120\r\n")
    terminal.sendcontrol("c")
    assert ended(terminal)[0] == 130


def test_term_and_modes_come_along(hosts: Hosts) -> None:
    terminal = hosts.on_terminal("-t", "web", "echo $TERM; stty -a; exit 6")
    status, shown = ended(terminal)
    assert status == 6
    # What is printed before ssh has set its terminal to raw gets a second CR from it.
    assert re.match("xterm\r+\n", shown), shown
    plain = hosts.run(
        "script",
        "-qec",
        f"stty -ixon erase ^H; ssh -F {hosts.config} -t web stty -a",
        "/dev/null",
        env=hosts.environment,
    )
    assert re.search(r"erase = \^H", plain.stdout.decode())
    assert re.search(r"\s-ixon\s", plain.stdout.decode())


def test_a_shell_is_a_login_shell_on_its_terminal(hosts: Hosts) -> None:
    terminal = hosts.on_terminal("web")
    terminal.sendline("shopt -q login_shell && tty && exit 9")
    terminal.expect("/dev/pts/[0-9]+\r\n")
    status, shown = ended(terminal)
    assert status == 9
    assert "Shared connection to web closed." in shown


def test_output_that_nobody_reads_waits(hosts: Hosts) -> None:
    terminal = hosts.on_terminal("-t", "web", "echo begin; seq 1 20000; echo end")
    # ssh makes its terminal raw once the session is open (mux.c); what comes before gets another CR from the terminal.
    terminal.expect("begin\r+\n")
    terminal.expect("20000\r\nend\r\n")
    assert ended(terminal)[0] == 0


def test_the_escape_character_is_heard_at_the_beginning_of_a_line(hosts: Hosts) -> None:
    terminal = hosts.on_terminal("-t", "web", "cat")
    terminal.send("\r~?")
    terminal.expect("Supported escape sequences:")
    terminal.expect("~[.]   - end this session")
    terminal.send("\r~#")
    # The session that an earlier ssh has just left may be listed, too.
    terminal.expect("Sessions at this control socket:\r\n(  #[0-9]+ [^\r\n]*\r\n)*  #[0-9]+ session: cat\r\n")
    terminal.send("\r~C")
    terminal.expect("~C is not available")
    terminal.send("\r~~literal\r")
    terminal.expect("~literal\r\n")
    terminal.send("a~.b\r")
    terminal.expect("a~.b\r\n")
    terminal.send("\r~.")
    assert ended(terminal)[0] == 255


def test_another_escape_character_or_none(hosts: Hosts) -> None:
    terminal = hosts.on_terminal("-t", "-e", "%", "web", "cat")
    terminal.send("~.\r")
    terminal.expect("~.\r\n")
    terminal.send("%.")
    assert ended(terminal)[0] == 255
    terminal = hosts.on_terminal("-t", "-e", "none", "web", "read line; echo got $line")
    terminal.send("~.\r")
    # Before ssh has set its terminal to raw, it adds a second CR to what is printed.
    terminal.expect("got ~.\r+\n")
    assert ended(terminal)[0] == 0


def test_a_failure_leaves_the_terminal_as_it_was(hosts: Hosts) -> None:
    data = {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": "me"}
    hosts.post("/connection/add", name="nowhere", data=data, validate=False)
    hosts.open()
    shell = f"ssh -F {hosts.config} nowhere; echo status $?; stty -a"
    terminal = hosts.terminal_of("sh", "-c", shell)
    terminal.expect("connmgr: ")
    terminal.expect("status 255\r\n")
    assert " icanon" in ended(terminal)[1]


def test_the_terminal_may_be_opened_as_dev_tty(hosts: Hosts) -> None:
    """What is read from /dev/tty is read from the client's terminal, not from one of the daemon's."""
    script = f"ssh -F {hosts.config} -t web 'read line; echo got $line; tty' </dev/tty"
    terminal = hosts.terminal_of("sh", "-c", script)
    terminal.send("typed\r")
    terminal.expect("got typed\r\n")
    terminal.expect("/dev/pts/[0-9]+")
    assert ended(terminal)[0] == 0
