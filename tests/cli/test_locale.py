"""The client's LANG and LC_*, and what SendEnv and SetEnv name, in everything that a client runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine
from tests.cli.terminal.conftest import sitting
from tests.daemon import Daemon
from tests.plugins.sshd import Sshd

LOCALE = "C.UTF-8"
"""What every system has."""

CHARMAP = "locale charmap"
OTHERS = {"LANG": "", "LC_ALL": ""}


@pytest.fixture
def bare(own_daemon_without_locale: Daemon) -> CommandLine:
    """The command line beside a daemon whose own environment has no locale."""
    return CommandLine(own_daemon_without_locale)


@pytest.fixture
def own_daemon_without_locale(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, environment={"SHELL": "/bin/bash", "LANG": "POSIX"})
    yield daemon
    daemon.stop()


def in_locale(connmgr: CommandLine, **variables: str) -> CommandLine:
    person = CommandLine(connmgr.daemon)
    person.environment |= {"LANG": LOCALE, **variables}
    return person


@contextmanager
def reached(connmgr: CommandLine, start_sshd: StartSshd, *, accepts: bool) -> Iterator[Sshd]:
    server = start_sshd(options={"AcceptEnv": "LANG LC_*", "SetEnv": "X=x"} if accepts else {"SetEnv": "LANG=POSIX"})
    connmgr.add_ssh("far", server)
    connmgr("add", "shellEnvironment", "inside", "host=far")
    yield server


@pytest.mark.needs("sshd", "ssh")
@pytest.mark.parametrize("accepts", [True, False], ids=["AcceptEnv", "no AcceptEnv"])
def test_the_locale_of_the_client_is_that_of_all_that_it_runs_over_ssh(
    bare: CommandLine, start_sshd: StartSshd, accepts: bool
) -> None:
    with reached(bare, start_sshd, accepts=accepts):
        person = in_locale(bare)
        for name in ("far", "inside"):
            assert person("exec", name, "--", CHARMAP).output == "UTF-8\n"
            assert person("exec", "--fresh", name, "--", CHARMAP).output == "UTF-8\n"
            assert person("exec", "--argv", name, "--", "locale", "charmap").output == "UTF-8\n"
            assert person("ssh", name, CHARMAP).output == "UTF-8\n"
            assert '"UTF-8"' in person("exec", "--all", f"**{name}", "--json", "--", CHARMAP).output
            assert person("shell", name, stdin=f"{CHARMAP}\n").output == "UTF-8\n"
            job = person("exec", "--detach", name, "--", CHARMAP).output.strip()
            assert person("job", "wait", job).code == 0
            assert "UTF-8" in person("job", "logs", job).output


def test_the_locale_of_the_daemon_is_not_the_client_s(bare: CommandLine) -> None:
    assert in_locale(bare, LANG="POSIX")("exec", "local", "--", CHARMAP).output == "ANSI_X3.4-1968\n"
    assert in_locale(bare)("exec", "local", "--", CHARMAP).output == "UTF-8\n"


def test_a_shell_follows_the_client_but_keeps_what_was_exported_there(bare: CommandLine) -> None:
    person, other = in_locale(bare), in_locale(bare, LANG="POSIX", LC_TIME="POSIX")
    show = 'echo "$LANG $LC_TIME"'
    assert person("exec", "local", "--", show).output == f"{LOCALE} \n"
    assert other("exec", "local", "--", show).output == "POSIX POSIX\n"
    # LC_TIME of the other client does not stay.
    assert person("exec", "local", "--", show).output == f"{LOCALE} \n"
    person("exec", "local", "--", "cd /etc; export LANG=C mine=1")
    assert person("exec", "local", "--", f"pwd; {show}; echo $mine").output == "/etc\nC \n1\n"
    # The state of the shell survives a client with another locale.
    assert other("exec", "local", "--", f"pwd; {show}; echo $mine").output == "/etc\nPOSIX POSIX\n1\n"
    # A client of the API that sends nothing changes nothing.
    client = bare.daemon.client
    assert client.shell.exec(LOCAL_MACHINE, show).stdout == "POSIX POSIX"


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("session", [False, True], ids=["login", "session"])
def test_a_terminal_shows_what_programs_print_by_their_locale(bare: CommandLine, session: bool) -> None:
    person = in_locale(bare)
    words = ""
    if session:
        person("exec", "local", "--session", "work", "--", "true")
        words = " --session work"
    with sitting(person) as sit:
        terminal = sit(f"connmgr shell local{words}")
        terminal.sees(r"[$#>] ?$")
        terminal.type(
            "locale charmap; printf 'caf\\303\\251\\n' | LESSCHARSET= less -FX; printf 'caf\\303\\251' | wc -m"
        )
        terminal.sees(r"^UTF-8\ncaf\N{LATIN SMALL LETTER E WITH ACUTE}\n4$")
        terminal.type("exit")
        terminal.sees_it_end()


@pytest.mark.needs("sshd", "ssh")
def test_send_env_and_set_env_of_the_configuration_are_heeded(bare: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    key = " ".join(server.host_keys[0].with_suffix(".pub").read_text().split()[:2])
    configuration = bare.daemon.home / ".ssh" / "config"
    configuration.parent.mkdir(mode=0o700, exist_ok=True)
    configuration.write_text(
        f"Host far\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n IdentityFile {server.client_key}\n"
        ' SendEnv WORK_*\n SendEnv OTHER OUT -OUT\n SetEnv FIXED=set QUOTED="two words"\n SetEnv FIXED=later LATER=x\n'
    )
    configuration.chmod(0o600)
    bare("add", "ssh", "far", "host=far", f"hostKey={key}", "setEnv=OWN=here", "sendEnv=-OTHER", "sendEnv=-LC_*")
    bare("add", "shellEnvironment", "inside", "host=far")
    variables = {"WORK_A": "a b", "OTHER": "o", "OUT": "o", "LC_TIME": LOCALE, "ELSE": "no"}
    show = 'echo "$WORK_A,$OTHER$OUT,$LC_TIME,$ELSE,$FIXED,$QUOTED,$LATER,$OWN"'
    person = in_locale(bare, **variables)
    for name in ("far", "inside"):
        for words in (["exec", name, "--", show], ["ssh", name, show]):
            assert person(*words).output == "a b,,,,set,two words,,here\n", words
    assert person("exec", "local", "--", show).output == f",,{LOCALE},,,,,\n"
    done = person("exec", "--all", "--brief", "far", "local", "--", show).output
    printed = sorted(line.rpartition(" s  ")[2] for line in done.splitlines())
    assert printed == [f",,{LOCALE},,,,,", "a b,,,,set,two words,,here"]


def test_connmgr_ssh_sends_and_sets_what_its_options_name(bare: CommandLine) -> None:
    person = in_locale(bare, GIT_PROTOCOL="version=2", GIT_DIR="x")
    options = ["-o", "SendEnv=GIT_*", "-o", "SendEnv=-GIT_DIR", "-o", 'SetEnv=A=1 B="2 3"', "-o", "SetEnv=A=4"]
    told = person("ssh", *options, "local", 'echo "$GIT_PROTOCOL,$A,$B"').output
    assert told == "version=2,1,2 3\n"


def test_the_setting_send_env_says_what_is_sent(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--send-env", "LC_TIME,WORK_?", environment={"SHELL": "/bin/bash", "LANG": "POSIX"})
    try:
        person = in_locale(CommandLine(daemon), LC_TIME="POSIX", WORK_A="a", WORK_AB="ab")
        show = 'echo "$LANG,$LC_TIME,$WORK_A,$WORK_AB"'
        assert person("exec", "local", "--", show).output == "POSIX,POSIX,a,\n"
        # What the client sends beyond that is not set either.
        sent = {"LANG": LOCALE, "WORK_A": "b", "PATH": "/nowhere"}
        assert daemon.client.shell.exec(LOCAL_MACHINE, show, send_env=sent).stdout == "POSIX,,b,"
    finally:
        daemon.stop()


@pytest.mark.parametrize("shell", ["dash", "zsh", "fish", "tcsh"])
def test_shells_of_every_language_take_the_locale(bare: CommandLine, shell: str) -> None:
    import shutil

    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    bare("add", "shellEnvironment", f"in-{shell}", "host=local", f"shell={path}")
    person = in_locale(bare, LC_TIME="it's $(not) `run` \\ \"")
    told = person("exec", f"in-{shell}", "--", "env").output
    assert re.search(rf"^LANG={re.escape(LOCALE)}$", told, re.MULTILINE)
    assert "LC_TIME=it's $(not) `run` \\ \"\n" in told


@pytest.mark.needs("sshd", "ssh", "tmux")
@pytest.mark.parametrize("accepts", [True, False], ids=["AcceptEnv", "no AcceptEnv"])
def test_a_terminal_over_ssh_has_the_locale_of_its_client(
    bare: CommandLine, start_sshd: StartSshd, accepts: bool
) -> None:
    with reached(bare, start_sshd, accepts=accepts):
        person = in_locale(bare)
        with sitting(person) as sit:
            for words in ("connmgr shell far", "connmgr shell inside", "connmgr ssh -t far"):
                terminal = sit(words)
                terminal.sees(r"[$#>] ?$")
                terminal.type("clear; locale charmap; printf 'caf\\303\\251\\n' | LESSCHARSET= less -FX")
                terminal.sees(r"^UTF-8\ncaf\N{LATIN SMALL LETTER E WITH ACUTE}$")
                terminal.type("exit")
                terminal.sees_it_end()


@pytest.mark.needs("root", "sudo")
def test_the_locale_passes_sudo(bare: CommandLine, tmp_path: Path) -> None:
    bare("add", "shellEnvironment", "root", "host=local", "elevated=true", "setEnv=no", code=2)
    bare("add", "shellEnvironment", "root", "host=local", "elevated=true")
    # sudo removes what is not a locale; LC_ALL of another client does not stay.
    person = in_locale(bare, LC_TIME="POSIX")
    show = 'echo "$LANG $LC_TIME"; locale charmap'
    for words in (["exec", "root", "--", show], ["ssh", "root", show]):
        assert person(*words).output == f"{LOCALE} POSIX\nUTF-8\n"
