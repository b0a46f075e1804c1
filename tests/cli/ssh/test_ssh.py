"""``connmgr ssh`` for programs that start it: streams, exit codes, signals, names."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.cli.ssh.conftest import SSH, Far
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.processes import await_ends

pytestmark = pytest.mark.needs("sshd", "bash")

EVERY_BYTE = bytes(range(256)) * 1000
KIB = 1024


@pytest.mark.parametrize("name", ["web", "local"])
def test_streams_are_apart_and_byte_by_byte(far: Far, name: str) -> None:
    done = far.ssh(name, "{ cat; cat >&2 <&3; printf end; }", "3<<<\"$(printf 'a\\377')\"", stdin=EVERY_BYTE)
    assert done.stdout == EVERY_BYTE + b"end"
    assert done.stderr == b"a\xff\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("no-such-program", 127)],
)
def test_the_exit_code_is_the_command_s(far: Far, command: str, code: int) -> None:
    assert far.ssh("web", command, code=code).stdout == b""


def test_words_are_joined_by_blanks_as_ssh_does(far: Far) -> None:
    assert far.ssh("web", "printf", "'%s|'", "a b", "'c d'").stdout == b"a|b|c d|"
    assert far.ssh("-T", "web", "-q", "--", "echo", "-n", "x").stdout == b"x"


def test_the_connection_s_shell_does_not_affect_ssh(far: Far) -> None:
    far.connmgr("exec", "web", "--", "cd /; export KEPT=1")
    assert far.ssh("web", 'pwd; echo "[$KEPT]"').stdout.split()[1:] == [b"[]"]
    assert far.ssh("web", "cd /etc").stdout == b""
    assert far.connmgr("exec", "web", "--", "pwd").output == "/\n"


def test_a_shell_without_a_command_reads_what_it_is_to_do(far: Far) -> None:
    done = far.ssh("web", stdin=b"echo $((40 + 2)); tty; exit 5\n", code=5)
    assert done.stdout == b"42\nnot a tty\n"


def test_the_end_of_input_is_told_and_the_remote_host_goes_on(far: Far) -> None:
    with far.popen("web", "while read line; do echo got $line; done; echo over; exit 4") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got one\n"
        process.stdin.close()
        assert process.stdout.read() == b"over\n"
        assert process.wait(DEADLINE_SECONDS) == 4


def test_input_is_not_read_where_it_is_not_wanted(far: Far) -> None:
    with far.popen("-n", "web", "cat; echo over") as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"over\n"
    script = f"{SSH} -n web true; cat"
    assert far.run("bash", "-c", script, stdin=b"the next one's").stdout == b"the next one's"


def test_output_that_nobody_reads_ends_it_as_it_ends_any_program(far: Far) -> None:
    done = far.run("bash", "-c", f"{SSH} web yes | head -n 1; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == b"y\n141\n"
    assert done.stderr == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_far_command(far: Far, number: signal.Signals) -> None:
    with far.popen("web", "echo $$; sleep 1000; echo never") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) == -number
        assert process.stdout.read() == b""
    await_ends(pid)


def test_a_reader_that_is_slow_is_waited_for_and_nothing_grows(far: Far) -> None:
    with far.popen("web", "head -c 30000000 /dev/zero; echo over >&2") as process:
        assert process.stdout is not None
        process.stdout.read(KIB)
        time.sleep(0.3)
        memory = psutil.Process(process.pid).memory_info().rss
        assert memory < 60_000_000
        assert len(process.stdout.read()) == 30_000_000 - KIB
        assert process.wait(DEADLINE_SECONDS) == 0


def test_megabytes_go_both_ways_at_once(far: Far) -> None:
    content = os.urandom(20_000_000)
    assert far.ssh("web", "cat", stdin=content).stdout == content


def test_files_and_devices_are_read_and_written(far: Far, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(EVERY_BYTE)
    for source in (tmp_path / "in", Path(os.devnull)):
        with source.open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
            argv = [SSH, "web", "cat"]
            subprocess.run(argv, stdin=stdin, stdout=stdout, env=far.environment, timeout=DEADLINE_SECONDS, check=True)
        assert (tmp_path / "out").read_bytes() == source.read_bytes()
    with Path(os.devnull).open("wb") as nowhere:
        argv = [SSH, "web", "head -c 1000000 /dev/zero"]
        subprocess.run(argv, stdout=nowhere, env=far.environment, timeout=DEADLINE_SECONDS, check=True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere", "true"], "No connection is called 'nowhere'."),
        (["-J", "gate", "web", "true"], "-J is not possible: store a connection with a gateway"),
        (["-Z", "web"], "ssh has no option -Z."),
        ([], "Name a connection"),
        (["-s", "web", "netconf"], "sftp alone"),
        (["-L", "0.0.0.0:1:a:2", "web"], "Cannot listen on '0.0.0.0': forwarded ports listen on loopback only"),
        (["-L", "/a:/b", "web"], "is not a port and host"),
        (["-W", "nonsense", "web"], "not of the form HOST:PORT"),
        (["-O", "forward", "web"], "the daemon keeps the link"),
        (["-p", "1", "web", "true"], "web is a stored connection to port"),
        (["-l", "somebody", "web", "true"], "not as somebody"),
        (["somebody@web", "true"], "not as somebody"),
        (["-W", "127.0.0.1:1", "web"], "127.0.0.1"),
    ],
)
def test_its_own_failures_are_one_line_and_255(far: Far, words: list[str], why: str) -> None:
    done = far.ssh(*words, code=255)
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("connmgr ssh: ")
    assert why in line


def test_without_a_daemon_it_fails_as_ssh_does(far: Far, closed_port: int) -> None:
    done = far.ssh("web", "true", code=255, env=far.environment | {"CONNMGR_PORT": str(closed_port)})
    assert done.stderr.startswith(b"connmgr ssh: No daemon answers at ")


def test_user_and_port_of_a_stored_connection_may_be_said(far: Far) -> None:
    user, port = far.server.user, str(far.server.port)
    for words in (
        ["-l", user, "web"],
        [f"{user}@web"],
        ["-p", port, "web"],
        [f"-oUser={user}", f"-oPort={port}", "web"],
    ):
        assert far.ssh(*words, "echo there").stdout == b"there\n"


def test_verbose_lists_ignored_options(far: Far) -> None:
    done = far.ssh("-v", "-C", "-i", "key", "-oControlMaster=auto", "web", "true")
    assert done.stderr == b"connmgr ssh: ignored: -C -i ControlMaster\n"
    assert far.ssh("-C", "web", "true").stderr == b""


def test_tools_that_ask_what_it_is_are_answered(far: Far) -> None:
    told = far.ssh("-G", "web").stdout.decode().splitlines()
    assert told == ["host web", "hostname 127.0.0.1", f"user {far.server.user}", f"port {far.server.port}"]
    assert far.ssh("-V").stderr.startswith(b"connmgr ")
    assert b"Master running" in far.ssh("-O", "check", "web").stderr


def test_ssh_f_goes_to_the_background(far: Far, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    log = (tmp_path / "log").open("wb")
    with log:
        argv = [SSH, "-f", "web", f"read line <{tmp_path}/go; echo $line >{tmp_path}/done"]
        subprocess.run(argv, stdout=log, stderr=log, env=far.environment, timeout=DEADLINE_SECONDS, check=True)
    (tmp_path / "go").write_text("went on\n")
    eventually(lambda: (tmp_path / "done").exists() and (tmp_path / "done").read_text(), "the command did not go on")
    assert (tmp_path / "done").read_text() == "went on\n"
    assert (tmp_path / "log").read_bytes() == b""


def test_a_host_whose_key_is_not_known_is_asked_about_on_a_terminal_alone(
    clean_connmgr: CommandLine, start_sshd: StartSshd
) -> None:
    server = start_sshd()
    data = [f"port={server.port}", f"user={server.user}", f"identity.file={server.client_key}"]
    clean_connmgr("add", "ssh", "web", "host=127.0.0.1", *data)
    assert b"is not known" in Far(clean_connmgr, server).ssh("web", "true", code=255).stderr
    for words, code in ((["-oBatchMode=yes", "web", "exit 3"], 255), (["web", "exit 3"], 3)):
        terminal = clean_connmgr.on_terminal("ssh", *words)
        if code == 3:
            terminal.expect_exact("Trust this host?")
            terminal.sendline("yes")
        assert finish(terminal)[0] == code
    assert Far(clean_connmgr, server).ssh("web", "echo known").stdout == b"known\n"
