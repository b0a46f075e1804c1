"""Commands, shells and streams by ssh at a control socket: bytes, ends, exit statuses, signals and environments."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal, settled
from tests.multiplex.behind import Hosts, said

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")

LARGE = 5_000_000
NAMES = ["web", "far", "local"]


@pytest.mark.parametrize("host", NAMES)
def test_a_command_has_its_streams_and_its_exit_status(hosts: Hosts, host: str) -> None:
    done = hosts.ssh(host, "cat; echo problem >&2; exit 3", stdin=b"typed\n", code=3)
    assert (done.stdout, done.stderr) == (b"typed\n", b"problem\n")


@pytest.mark.parametrize("status", [0, 1, 44, 254, 255])
def test_exit_statuses_are_the_commands(hosts: Hosts, status: int) -> None:
    hosts.ssh("web", f"exit {status}", code=status)


def test_a_signal_that_ends_the_command_is_its_exit_status(hosts: Hosts) -> None:
    hosts.ssh("web", "kill -KILL $$", code=128 + signal.SIGKILL)


def test_without_a_command_it_is_the_login_shell(hosts: Hosts) -> None:
    assert hosts.ssh("-T", "web", stdin=b"echo in $0; exit 5\n", code=5).stdout.startswith(b"in ")


@pytest.mark.parametrize("host", NAMES)
def test_much_data_goes_both_ways_unchanged(hosts: Hosts, host: str) -> None:
    content = os.urandom(LARGE)
    assert hosts.ssh(host, "cat", stdin=content).stdout == content


@pytest.mark.parametrize("host", NAMES)
def test_files_are_standard_streams(hosts: Hosts, tmp_path: Path, host: str) -> None:
    content = os.urandom(LARGE)
    (tmp_path / "in").write_bytes(content)
    hosts.run(
        "sh",
        "-c",
        f"cd {tmp_path} && ssh -F {hosts.config} {host} tee /dev/stderr <in >out 2>err",
        capture_output=False,
    )
    assert (tmp_path / "out").read_bytes() == content == (tmp_path / "err").read_bytes()


def test_sockets_are_standard_streams(hosts: Hosts) -> None:
    content = os.urandom(LARGE)
    ours, theirs = socket.socketpair()
    with ours, theirs, hosts.running("web", "cat", stdin=theirs, stdout=theirs) as running:
        theirs.close()
        ours.setblocking(False)
        received, sent = bytearray(), 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(received) < len(content):
            assert time.monotonic() < deadline
            with suppress(BlockingIOError):
                sent += ours.send(content[sent : sent + 65536]) if sent < len(content) else 0
            with suppress(BlockingIOError):
                received += ours.recv(65536)
        assert bytes(received) == content
        ours.shutdown(socket.SHUT_WR)
        assert running.wait(DEADLINE_SECONDS) == 0


def test_descriptors_of_others_stay_as_they_are(hosts: Hosts) -> None:
    """A program that shares a pipe with ssh finds it blocking, as it left it."""
    reading, writing = os.pipe()
    with hosts.running("web", "echo here; read line; echo $line", stdout=writing) as running:
        assert os.read(reading, 5) == b"here\n"
        assert running.stdin is not None
        assert [os.get_blocking(one) for one in (reading, writing, running.stdin.fileno())] == [True] * 3
        running.stdin.write(b"there\n")
        running.stdin.flush()
        assert running.wait(DEADLINE_SECONDS) == 0
        assert os.read(reading, 100) == b"there\n"
    os.close(reading)
    os.close(writing)


def test_a_reader_that_stops_holds_the_command_back(hosts: Hosts, tmp_path: Path) -> None:
    """Back-pressure: what nobody reads is not collected in the daemon."""
    count = tmp_path / "count"
    (tmp_path / "print.sh").write_text(
        f"n=0; while [ $n -lt 4000 ]; do head -c 65536 /dev/zero; n=$((n + 1)); echo $n >{count}; done"
    )
    with hosts.running("web", f"sh {tmp_path}/print.sh", stdin=subprocess.DEVNULL):
        written = _still(lambda: int("0" + (count.read_text().strip() if count.exists() else "")))
    assert 0 < written < 400, "more than 25 MB went on without a reader"


def test_a_writer_waits_for_a_command_that_does_not_read(hosts: Hosts) -> None:
    sent = 0
    with hosts.running("web", "read line; sleep 100") as running:
        assert running.stdin is not None
        into = running.stdin.fileno()
        os.set_blocking(into, False)

        def write() -> int:
            nonlocal sent
            with suppress(BlockingIOError):
                while sent < 50_000_000:
                    sent += os.write(into, b"x\n" * 32768)
            return sent

        assert 0 < _still(write) < 25_000_000


@pytest.mark.parametrize("host", NAMES)
def test_a_client_that_leaves_ends_its_command(hosts: Hosts, tmp_path: Path, host: str) -> None:
    """Also one that its shell runs itself, and one that only the processes of its shell are."""
    ended = tmp_path / "ended"
    hosts.ssh(host, "true")
    for script in (
        f"trap 'echo HUP > {ended}; exit' HUP; echo ready; while :; do sleep 0.1; done",
        f"sh -c \"trap 'echo HUP > {ended}; exit' HUP; echo ready; while :; do sleep 0.1; done\" & trap '' HUP; wait",
        f"exec sh -c \"trap 'echo HUP > {ended}; exit' HUP; echo ready; while :; do sleep 0.1; done\"",
    ):
        ended.unlink(missing_ok=True)
        with hosts.running(host, script) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
        eventually_equal(lambda: ended.exists() and ended.read_text(), "HUP\n", "the command got no HUP")


@pytest.mark.parametrize("host", NAMES)
def test_what_has_left_for_a_session_of_its_own_runs_on(hosts: Hosts, tmp_path: Path, host: str) -> None:
    """Such as the server of tmux, whose client was the command."""
    ended, daemon = tmp_path / "ended", tmp_path / "daemon"
    # A shell runs its traps in the order of the signals' numbers: HUP before USR1.
    traps = f"trap 'echo HUP >> {daemon}' HUP; trap 'echo USR1 >> {daemon}; exit' USR1"
    loop = "while :; do sleep 0.1; done"
    own_session = f'(setsid sh -c "{traps}; echo \\$\\$ > {daemon}; {loop}" </dev/null >/dev/null 2>&1 &)'
    hosts.ssh(host, "true")
    script = f"{own_session}; trap 'echo HUP > {ended}; exit' HUP; echo ready; {loop}"
    with hosts.running(host, script) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        pid = int(eventually(lambda: daemon.exists() and daemon.read_text(), "it does not start"))
    eventually_equal(lambda: ended.exists() and ended.read_text(), "HUP\n", "the command got no HUP")
    os.kill(pid, signal.SIGUSR1)
    eventually_equal(lambda: daemon.read_text().split()[1:], ["USR1"], "what runs on was signalled")


def test_a_shell_counts_the_lines_of_its_command(hosts: Hosts) -> None:
    for _ in range(3):
        assert "line 2: syntax error" in said(hosts.ssh("web", "true\n)", code=None))[0]
        shown = hosts.ssh("web", "echo $#; # it's a comment\ncat <<x\n$LINENO\nx\n").stdout
        assert shown == b"0\n2\n"


def test_a_reader_that_leaves_ends_the_command(hosts: Hosts) -> None:
    done = hosts.run("sh", "-c", f"ssh -F {hosts.config} web yes | head -n 1")
    assert done.stdout == b"y\n"


def test_the_end_of_the_output_does_not_wait_for_the_input(hosts: Hosts) -> None:
    with hosts.running("web", "exec <&-; echo over; exit 7") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"over\n"
        assert running.wait(DEADLINE_SECONDS) == 7


def test_an_output_that_closes_early_does_not_lose_the_status(hosts: Hosts) -> None:
    hosts.ssh("-n", "web", "exec sh -c 'exec >/dev/null 2>&1; sleep 0.3; exit 44'", code=44, stdin=None)


def test_variables_that_ssh_is_told_to_send_arrive(hosts: Hosts) -> None:
    environment = hosts.environment | {"_XXX_TEST": "blah", "LC_ALL": "C.UTF-8"}
    sent = hosts.ssh("-o", "SendEnv=_XXX_TEST", "web", "echo $_XXX_TEST $LC_ALL", env=environment)
    assert sent.stdout == b"blah C.UTF-8\n"
    assert hosts.ssh("-o", "SetEnv=_XXX_TEST=foo", "web", "echo $_XXX_TEST").stdout == b"foo\n"


@pytest.mark.parametrize("name", ["LANG", "LC_CTYPE", "LC_TIME"])
def test_a_locale_that_the_host_lacks_arrives_without_a_word(hosts: Hosts, name: str) -> None:
    hosts.ssh("web", "true")
    environment = {one: value for one, value in hosts.environment.items() if not one.startswith(("LANG", "LC_"))}
    done = hosts.ssh("web", f"printenv {name}", env=environment | {name: "xx_XX.UTF-8"})
    assert (done.stdout, done.stderr) == (b"xx_XX.UTF-8\n", b"")


def test_the_agents_socket_is_for_the_daemon_alone(hosts: Hosts) -> None:
    environment = hosts.environment | {"SSH_AUTH_SOCK": "/nowhere/agent"}
    done = hosts.ssh("-o", "SendEnv=SSH_AUTH_SOCK", "web", "echo [$SSH_AUTH_SOCK]", env=environment)
    assert done.stdout == b"[]\n"


def test_what_is_not_forwarded_is_said_and_the_command_runs(hosts: Hosts) -> None:
    done = hosts.ssh("-X", "web", "echo there", env=hosts.environment | {"DISPLAY": ":9"})
    assert (done.stdout, said(done)) == (b"there\n", ["connmgr: X11 is not forwarded."])
    done = hosts.ssh("-A", "web", "echo there", env=hosts.environment | {"SSH_AUTH_SOCK": "/nowhere/agent"})
    assert done.stdout == b"there\n"
    assert said(done) == [
        "connmgr: No ssh-agent is forwarded: `connmgr edit web forwardAgent=true` allows it (type ssh)."
    ]


@pytest.mark.parametrize("host", ["web", "local"])
def test_a_stream_leads_to_a_port_of_the_remote_host(hosts: Hosts, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(DEADLINE_SECONDS)
        with hosts.running("-W", f"127.0.0.1:{service.getsockname()[1]}", host) as running:
            connected, _ = service.accept()
            with connected:
                assert running.stdin is not None
                running.stdin.write(b"asked")
                running.stdin.close()
                running.stdin = None
                assert b"".join(iter(lambda: connected.recv(100), b"")) == b"asked"
                connected.sendall(b"answered")
            out, err = running.communicate(timeout=DEADLINE_SECONDS)
    assert (running.returncode, out, err) == (0, b"answered", b"")


def test_a_stream_that_cannot_be_opened_says_why(hosts: Hosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = hosts.ssh("-W", f"127.0.0.1:{port}", "web", code=255)
    assert "Stdio forwarding request failed" in said(done)[0]
    assert "refused" in said(done)[0]


def test_control_commands_are_answered(hosts: Hosts) -> None:
    assert said(hosts.ssh("-O", "check", "web")) == [f"Master running (pid={hosts.connmgr.daemon.pid})"]
    hosts.ssh("-O", "stop", "web")
    assert hosts.ssh("web", "echo again").stdout == b"again\n"
    [refusal] = said(hosts.ssh("-O", "proxy", "web", "true", code=255))
    assert "Proxy mode (-O proxy) is not supported" in refusal


def test_exit_ends_the_sessions_of_the_socket_and_others_go_on(hosts: Hosts) -> None:
    script = "echo ready; read line; exit 0"
    with hosts.running("web", script) as ending, hosts.running("far", script) as staying:
        for running in (ending, staying):
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
        hosts.ssh("-O", "exit", "web")
        assert ending.wait(DEADLINE_SECONDS) == 255
        staying.communicate(b"go\n", timeout=DEADLINE_SECONDS)
        assert staying.returncode == 0
    assert hosts.ssh("web", "echo again").stdout == b"again\n"


def test_a_failure_is_told_in_lines_and_nothing_else_is_tried(hosts: Hosts) -> None:
    data = {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": "me"}
    hosts.post("/connection/add", name="nowhere", data=data, validate=False)
    hosts.open()
    done = hosts.ssh("nowhere", "true", code=255)
    assert said(done)[0].startswith("connmgr: ")
    assert len(said(done)) <= 2


def test_an_unknown_subsystem_is_refused(hosts: Hosts) -> None:
    assert said(hosts.ssh("-s", "web", "netconf", code=255)) == [
        "connmgr: The subsystem netconf is not served; sftp is."
    ]


def test_forty_at_once_all_get_their_own(hosts: Hosts) -> None:
    with ExitStack() as all_of_them:
        running = [all_of_them.enter_context(hosts.running("web", f"cat; exit {number}")) for number in range(40)]
        for number, one in enumerate(running):
            out, err = one.communicate(b"%d" % number, timeout=DEADLINE_SECONDS)
            assert (out, err, one.returncode) == (b"%d" % number, b"", number)


def test_more_at_once_than_may_wait_for_machines_take_turns(hosts: Hosts) -> None:
    # Not many more than there are slots (`threads`): each waits 20 seconds for one, and a busy machine is slow.
    numbers = range(80)
    with ExitStack() as all_of_them:
        running = [all_of_them.enter_context(hosts.running("local", f"exit {number}")) for number in numbers]
        told = [one.communicate(timeout=DEADLINE_SECONDS)[1] for one in running]
    assert [(one.returncode, err) for one, err in zip(running, told, strict=True)] == [(n, b"") for n in numbers]


def _still(look: Callable[[], int]) -> int:
    """Return the number that ``look`` shows once it has begun, and then not changed for a while."""
    eventually(look, "it does not begin")
    return settled(look, 1.0, "it does not stop")
