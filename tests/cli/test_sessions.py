"""Separate shells: ``--session``, ``CONNMGR_SESSION`` and ``--fresh``."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from connmgr.processes import current_session, posix_session_of
from tests.api.wire import LOCAL
from tests.cli.program import CommandLine, finish
from tests.cli.test_disconnect import killing
from tests.conftest import ROOT, StartDaemon
from tests.deadlines import eventually

pytestmark = pytest.mark.needs("bash")


def sessions(connmgr: CommandLine) -> list[str | None]:
    return [one.status.session for one in connmgr.daemon.client.shell.list()]


def test_two_sessions_have_two_directories(clean_connmgr: CommandLine) -> None:
    connmgr = clean_connmgr
    one, two = {"CONNMGR_SESSION": "one"}, {"CONNMGR_SESSION": "two"}
    connmgr("exec", "local", "--", "cd /usr; export ODD=1", environment=one)
    connmgr("exec", "local", "--", "cd /etc", environment=two)
    assert connmgr("exec", "local", "--", 'pwd; echo "$ODD"', environment=one).output == "/usr\n1\n"
    assert connmgr("exec", "local", "--", 'pwd; echo "$ODD"', environment=two).output == "/etc\n\n"
    assert connmgr("cp", "local:passwd", "-", environment=two).output.startswith("root:")
    assert connmgr("shell", "local", stdin="pwd\n", environment=one).output == "/usr\n"
    assert connmgr("exec", "--session", "two", "local", "--", "pwd", environment=one).output == "/etc\n"
    assert sorted(map(str, sessions(connmgr))) == ["one", "two"], "a shell without a name was started"


def test_a_fresh_shell_leaves_nothing(clean_connmgr: CommandLine) -> None:
    connmgr, home = clean_connmgr, str(clean_connmgr.daemon.home)
    connmgr("exec", "local", "--", "cd /usr")
    by_variable = {"CONNMGR_SESSION": "one"}
    for environment in ({}, by_variable):
        done = connmgr("exec", "--fresh", "local", "--", "pwd; cd /etc; exit 3", code=3, environment=environment)
        assert done.output == f"{home}\n"
    assert connmgr("exec", "--fresh", "--json", "local", "--", "pwd").json["stdout"] == home
    assert connmgr("exec", "--fresh", "--all", "local*", "--json", "--", "pwd").json["stdout"] == home
    assert connmgr("shell", "--fresh", "local", stdin="pwd\ncd /etc\npwd\n").output == f"{home}\n/etc\n"
    connmgr("shell", "--fresh", "local", stdin="kill -9 $$\n", code=1)
    job = connmgr("exec", "--fresh", "--detach", "local", "--", "pwd").output.strip()
    assert sessions(connmgr) == [None]
    assert connmgr("job", "logs", "-f", job).output == f"{home}\n"
    assert connmgr("exec", "local", "--", "pwd").output == "/usr\n"


def test_session_and_fresh_exclude_each_other(clean_connmgr: CommandLine) -> None:
    for command, code in (
        (("exec", "--fresh", "--session", "one", "local", "--", "true"), 125),
        (("shell", "--fresh", "--session", "one", "local"), 2),
    ):
        assert "Give --session or --fresh." in clean_connmgr(*command, code=code).errors


OWN = {"CONNMGR_SESSION": ""}
"""The environment of a person who names no session; each run of the fixture is then a POSIX session of its own."""


def test_strangers_share_no_directory(clean_connmgr: CommandLine) -> None:
    connmgr, home = clean_connmgr, str(clean_connmgr.daemon.home)
    connmgr("exec", "local", "--", "cd /usr; export ODD=1", environment=OWN)
    assert connmgr("exec", "local", "--", 'pwd; echo "$ODD"', environment=OWN).output == f"{home}\n\n"
    connmgr("cp", "-", "local:note", stdin="hello", environment=OWN)
    assert (connmgr.daemon.home / "note").read_text() == "hello"
    assert connmgr("shell", "local", stdin="pwd\n", environment=OWN).output == f"{home}\n"
    assert connmgr("exec", "--all", "--json", "local*", "--", "pwd", environment=OWN).json["stdout"] == home
    job = connmgr("exec", "--detach", "local", "--", "pwd", environment=OWN).output.strip()
    assert connmgr("job", "logs", "-f", job).output == f"{home}\n"
    assert connmgr.daemon.client.shell.exec(sessions_connection(connmgr), "pwd", start=True).stdout == home
    assert connmgr("exec", "--session", "-", "local", "--", "cd /etc", environment=OWN).code == 0
    assert connmgr.daemon.client.shell.exec(sessions_connection(connmgr), "pwd").stdout == "/etc"


def sessions_connection(connmgr: CommandLine) -> str:
    return connmgr.daemon.client.connection.query()[0]


def test_the_commands_of_one_terminal_share_a_shell_which_people_can_name(clean_connmgr: CommandLine) -> None:
    connmgr = clean_connmgr
    script = "connmgr exec local -- cd /etc; connmgr exec local -- pwd; connmgr cp local:passwd - | head -c 5; tty; "
    script += "connmgr status; connmgr info local; read line; connmgr disconnect --session ${line} local"
    terminal = connmgr.on_terminal("-c", f"unset CONNMGR_SESSION; {script}", program="bash")
    terminal.expect("/etc\r\n")
    terminal.expect("root:")
    terminal.expect(r"/dev/(pts/\d+)\r\n")
    name = terminal.match[1]
    label = rf"terminal {name} of \S+"
    terminal.expect(rf"local machine \[{label}\]  idle for")
    terminal.expect(rf"shell {label}\s+idle for .*, in /etc")
    (own,) = connmgr.daemon.client.shell.list()
    found = posix_session_of(own.status.session)
    assert found is not None
    assert (found.pid, found.terminal, found.is_over) == (terminal.pid, name, False)
    terminal.sendline(name)
    code, rest = finish(terminal)
    assert code == 0
    assert re.search(rf"local machine: 1 shell ended: {label}\r\n", rest), rest
    assert found.is_over
    assert sessions(connmgr) == []


def test_a_name_says_whose_the_shell_is() -> None:
    own = current_session()
    assert posix_session_of(own.name) == own
    # In a container the leader of the tests' own session may be out of sight.
    looks = "own = current_session(); print(own.is_over, own._replace(start=own.start + 1).is_over)"
    asked = [sys.executable, "-c", f"from connmgr.processes import current_session; {looks}"]
    told = subprocess.run(asked, cwd=ROOT, start_new_session=True, capture_output=True, text=True, check=True)
    assert told.stdout == "False True\n"
    # That of another machine, or a leader that could not be seen.
    assert (own._replace(place="00000000").is_over, own._replace(start=0).is_over) == (None, None)
    for name in (None, "build", "sid-x", own.name + "-", f"{own.name}/.."):
        assert posix_session_of(name) is None
    on_terminal = own._replace(terminal="pts/3")
    assert posix_session_of(on_terminal.name) == on_terminal
    assert re.fullmatch("[A-Za-z0-9_.-]{1,64}", on_terminal._replace(pid=2**22, start=10**12, uid=2**32 - 2).name)


def test_a_shell_ends_with_its_terminal_unless_it_holds_the_link(start_daemon: StartDaemon) -> None:
    # It looks every two seconds.
    client = start_daemon("--idle-timeout", "8").client
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as leader, killing(leader):
        start = current_session()._replace(pid=leader.pid)
        gone = start._replace(start=_start_of(leader.pid)).name
        alone, connection = LOCAL, client.connection.add("other", {"type": "shellEnvironment", "host": LOCAL})
        for id in (connection, alone):
            client.shell.start(id, session=gone)
        client.shell.start(connection, session=current_session().name)

    def sessions() -> set[str | None]:
        client.shell.exec(connection, "true", session=current_session().name)
        # In use, it never becomes idle for too long.
        client.shell.exec(alone, "true", session=gone)
        return {one.status.session for one in client.shell.list(connection)}

    eventually(sessions, "its shell still runs", holds=lambda seen: gone not in seen)
    assert [one.status.session for one in client.shell.list(alone)] == [gone]


def _start_of(pid: int) -> int:
    from connmgr.processes import _facts

    return _facts(pid)[0]


def test_at_the_limit_the_idlest_shell_of_the_command_line_gives_way(clean_connmgr: CommandLine) -> None:
    client, id = clean_connmgr.daemon.client, sessions_connection(clean_connmgr)
    own = [current_session()._replace(terminal=f"pts/{number}").name for number in range(15)]
    client.shell.start(id, session="build")
    for name in own:
        client.shell.exec(id, "cd /usr", session=name, start=True)
    client.shell.exec(id, "true", session=own[0])
    clean_connmgr("exec", "local", "--", "true", environment=OWN)
    running = sessions(clean_connmgr)
    assert len(running) == 16
    assert {"build", own[0], *own[2:]} <= set(running)
    # Its person is told. The shell of the run above, which has ended, gives way before all others.
    result = client.shell.exec(id, "pwd", session=own[1], start=True)
    assert (result.restarted, result.stdout) == (True, str(clean_connmgr.daemon.home))
    assert set(sessions(clean_connmgr)) == {"build", *own}
    assert client.shell.exec(id, "pwd", session=own[3], start=True).restarted is False


def test_shells_with_names_do_not_give_way(clean_connmgr: CommandLine) -> None:
    client, id = clean_connmgr.daemon.client, sessions_connection(clean_connmgr)
    for number in range(16):
        client.shell.start(id, session=f"sid-{number}")
    assert "16 shells" in clean_connmgr("exec", "local", "--", "true", environment=OWN, code=125).errors
