"""Channels against a real sshd: the streams, the exit status, and how they end."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from connmgr.engine.start import start_supervisor
from connmgr.errors import ChannelRefused, UnsupportedShell
from connmgr.links.login import WrappedTransport
from connmgr.plugin import Channel, Pty, Schema, Wrapper
from connmgr_ssh.channels import NARROW_WINDOW_BYTES, STDERR, WINDOW_BYTES, LineChannel, SessionChannel
from connmgr_ssh.transport import SshTransport
from tests.components import program
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.plugins import users
from tests.plugins.ssh.conftest import Connect, StartSshd
from tests.plugins.sshd import Sshd
from tests.plugins.users import User

pytestmark = pytest.mark.needs("sshd", "ssh")

MANY = 10_000_000
Result = TypeVar("Result")


@pytest.fixture
def link(sshd: Sshd, connect: Connect) -> SshTransport:
    return connect(sshd)


def read(channel: Channel) -> tuple[bytes, bytes]:
    """Read both streams to their end."""
    out: list[bytes] = []
    err: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while True:
            assert time.monotonic() < deadline, "the streams do not end"
            more_out, more_err = channel.recv(DEADLINE_SECONDS)
            out.append(more_out)
            err.append(more_err)
    except EOFError:
        return b"".join(out), b"".join(err)


def run(link: SshTransport, script: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    channel = link.open_channel(["sh", "-c", script], timeout=DEADLINE_SECONDS)
    try:
        channel.sendall(stdin, DEADLINE_SECONDS)
        channel.shutdown_write()
        out, err = read(channel)
        return channel.exit_status(DEADLINE_SECONDS), out, err
    finally:
        channel.close()


def test_a_command_runs_with_both_streams_apart(link: SshTransport) -> None:
    assert run(link, "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")


def test_an_argv_arrives_word_by_word(link: SshTransport) -> None:
    words = ["", "a b", "it's", '"', "$HOME", "*", "\\", "new\nline", "ä\udce4"]
    channel = link.open_channel(["printf", "%s\\0", *words], timeout=DEADLINE_SECONDS)
    assert read(channel)[0] == b"".join(os.fsencode(word) + b"\0" for word in words)


@pytest.mark.parametrize("status", [0, 1, 127, 255])
def test_exit_codes(link: SshTransport, status: int) -> None:
    assert run(link, f"exit {status}")[0] == status


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "USR1"])
def test_a_signal_is_128_and_its_number(link: SshTransport, name: str) -> None:
    assert run(link, f"kill -{name} $$")[0] == 128 + signal.Signals[f"SIG{name}"]


def test_stdin_arrives_whole(link: SshTransport) -> None:
    data = os.urandom(WINDOW_BYTES * 3)
    channel = link.open_channel(["cat"], timeout=DEADLINE_SECONDS)

    def write() -> None:
        channel.sendall(data, DEADLINE_SECONDS)
        channel.shutdown_write()

    writer = threading.Thread(target=write)
    writer.start()
    out, _ = read(channel)
    writer.join(DEADLINE_SECONDS)
    assert out == data


def test_ten_megabytes_on_both_streams_at_once(link: SshTransport) -> None:
    script = f"head -c {MANY} /dev/zero & head -c {MANY} /dev/zero | tr '\\0' e >&2; wait"
    status, out, err = run(link, script)
    assert status == 0
    assert out == bytes(MANY)
    assert err == b"e" * MANY


def test_an_unread_channel_holds_no_more_than_its_window_and_hinders_no_other(link: SshTransport) -> None:
    lazy = link.open_channel(["sh", "-c", f"head -c {MANY} /dev/zero; echo done >&2"], timeout=DEADLINE_SECONDS)
    assert run(link, "echo lively") == (0, b"lively\n", b"")
    out, err = lazy.recv(DEADLINE_SECONDS)
    assert len(out) <= NARROW_WINDOW_BYTES
    rest, rest_err = read(lazy)
    assert len(out) + len(rest) == MANY
    assert err + rest_err == b"done\n"


def test_a_channel_takes_more_than_its_window_only_when_bulk_is_expected(link: SshTransport) -> None:
    size = WINDOW_BYTES - len("sent\n")
    channel = link.open_channel(["sh", "-c", f"head -c {size} /dev/zero; echo sent >&2"], timeout=DEADLINE_SECONDS)
    assert channel._room_in <= NARROW_WINDOW_BYTES
    channel.expect_bulk()
    # All output arrives although nobody reads it.
    assert channel._wait(lambda: channel._arrived[STDERR], DEADLINE_SECONDS)
    assert [len(stream) for stream in read(channel)] == [size, len("sent\n")]


def test_recv_returns_nothing_after_its_timeout(link: SshTransport) -> None:
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    assert channel.recv(0.01) == (b"", b"")
    assert channel.recv(0) == (b"", b"")
    assert channel.recv(-1) == (b"", b"")


def test_eof_is_repeated(link: SshTransport) -> None:
    channel = link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    assert read(channel) == (b"", b"")
    for _ in range(2):
        with pytest.raises(EOFError):
            channel.recv(DEADLINE_SECONDS)


def test_exit_status_times_out_while_the_process_runs(link: SshTransport) -> None:
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    with pytest.raises(TimeoutError):
        channel.exit_status(0.01)


def test_the_exit_status_comes_although_a_background_job_holds_the_streams(link: SshTransport) -> None:
    channel = link.open_channel(["sh", "-c", "sleep 60 & exit 4"], timeout=DEADLINE_SECONDS)
    assert channel.exit_status(DEADLINE_SECONDS) == 4
    assert channel.recv(0.01) == (b"", b"")


def test_writing_times_out_when_the_process_does_not_read(link: SshTransport) -> None:
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    with pytest.raises(TimeoutError):
        channel.sendall(bytes(WINDOW_BYTES * 4), 0.5)


def test_writing_to_a_process_that_has_ended_is_an_error(link: SshTransport) -> None:
    channel = link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    read(channel)
    channel.exit_status(DEADLINE_SECONDS)
    with pytest.raises(OSError, match="closed"):
        channel.sendall(bytes(WINDOW_BYTES * 4), DEADLINE_SECONDS)


@pytest.mark.parametrize(
    "wait",
    [
        lambda channel: channel.recv(DEADLINE_SECONDS),
        lambda channel: channel.sendall(bytes(WINDOW_BYTES * 4), DEADLINE_SECONDS),
        lambda channel: channel.exit_status(DEADLINE_SECONDS),
    ],
    ids=["recv", "sendall", "exit_status"],
)
@pytest.mark.parametrize("closed", ["channel", "transport"])
def test_closing_from_another_thread_ends_a_wait_at_once(
    sshd: Sshd, connect: Connect, wait: Callable[[Channel], object], closed: str
) -> None:
    link = connect(sshd)
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    outcome: list[BaseException] = []
    waiting = threading.Event()

    def block() -> None:
        waiting.set()
        try:
            wait(channel)
        except (EOFError, OSError) as error:
            outcome.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    waiting.wait(DEADLINE_SECONDS)
    start = time.monotonic()
    (channel if closed == "channel" else link).close()
    thread.join(DEADLINE_SECONDS)
    assert outcome
    assert not isinstance(outcome[0], TimeoutError)
    assert time.monotonic() - start < DEADLINE_SECONDS / 2


def test_closing_a_channel_hangs_up_its_process(link: SshTransport) -> None:
    channel = link.open_channel(["sh", "-c", "echo $$; exec sleep 60"], timeout=DEADLINE_SECONDS)
    pid = int(channel.recv(DEADLINE_SECONDS)[0])
    channel.close()
    channel.close()
    assert run(link, f"while kill -0 {pid} 2>/dev/null; do sleep 0.01; done")[0] == 0


def test_a_terminal_merges_the_streams_and_neither_echoes_nor_translates(link: SshTransport) -> None:
    channel = link.open_channel(["sh", "-c", "tty; cat; echo err >&2"], pty=Pty(raw=True), timeout=DEADLINE_SECONDS)
    assert channel.recv(DEADLINE_SECONDS)[0].startswith(b"/dev/")
    channel.sendall(b"typed\n\x04", DEADLINE_SECONDS)
    out, err = read(channel)
    assert (out, err) == (b"typed\nerr\n", b"")
    assert channel.exit_status(DEADLINE_SECONDS) == 0


def test_fifty_channels_share_a_link(link: SshTransport) -> None:
    channels = [
        link.open_channel(["sh", "-c", f"cat; exit {number}"], timeout=DEADLINE_SECONDS) for number in range(50)
    ]
    for number, channel in enumerate(channels):
        channel.sendall(b"%d" % number, DEADLINE_SECONDS)
        channel.shutdown_write()
    for number, channel in enumerate(channels):
        assert read(channel)[0] == b"%d" % number
        assert channel.exit_status(DEADLINE_SECONDS) == number


def test_threads_share_a_link(link: SshTransport) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        for _ in range(5):
            outcome = run(link, f"head -c 300000 /dev/zero; exit {number}")
            if outcome != (number, bytes(300_000), b""):
                failures.append(outcome[0])

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not failures


def test_a_host_that_opens_no_further_session_says_so_and_the_others_go_on(
    start_sshd: StartSshd, connect: Connect
) -> None:
    link = connect(start_sshd({"MaxSessions": "1"}))
    first = link.open_channel(["cat"], timeout=DEADLINE_SECONDS)
    with pytest.raises(ChannelRefused, match="MaxSessions"):
        link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    first.sendall(b"still here", DEADLINE_SECONDS)
    assert first.recv(DEADLINE_SECONDS)[0] == b"still here"
    first.close()
    # The server frees the session slightly later, when the process has ended.
    said = eventually(lambda: run(link, "echo again"), "no session becomes free", ignoring=ChannelRefused)
    assert said == (0, b"again\n", b"")


def test_a_forced_command_runs_instead(start_sshd: StartSshd, connect: Connect) -> None:
    link = connect(start_sshd({"ForceCommand": "echo forced"}))
    assert run(link, "echo wanted")[1] == b"forced\n"


@pytest.fixture(params=["bash", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh"])
def login_shell(request: pytest.FixtureRequest) -> Iterator[User]:
    path = program(request.param)
    assert path
    created = users.create(shell=path)
    yield created
    users.remove(created)


@pytest.mark.needs("root", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh")
def test_an_argv_arrives_whatever_the_login_shell(sshd: Sshd, connect: Connect, login_shell: User) -> None:
    link = connect(sshd, user=login_shell.name)
    words = ["", "a b", "it's", '"', "$HOME", "*", "\\n", "{a,b}", "~", "(x)", "#", "ä"]
    channel = link.open_channel(["printf", "%s\\0", *words], timeout=DEADLINE_SECONDS)
    assert read(channel)[0].decode() == "".join(word + "\0" for word in words)
    assert run(link, "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")


@pytest.mark.needs("root", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh")
def test_a_line_is_started_by_a_login_shell_that_reads_it_alone(
    sshd: Sshd, connect: Connect, login_shell: User, request: pytest.FixtureRequest
) -> None:
    link = connect(sshd, user=login_shell.name)
    line = "export A='it'\\''s'; unset B; cat; echo \"$A $0\"; echo err >&2; exit 3"
    assert link.can_learn_language
    assert link.open_line(line, timeout=DEADLINE_SECONDS) is None, "the language is not known yet"
    link.learn_language(DEADLINE_SECONDS)
    assert not link.can_learn_language
    channel = link.open_line(line, timeout=DEADLINE_SECONDS)
    shell = request.node.callspec.params["login_shell"]
    assert (channel is None) == (shell in ("fish", "tcsh", "ksh93"))
    if channel is None:
        return
    channel.sendall(b"typed\n", DEADLINE_SECONDS)
    channel.shutdown_write()
    name = os.path.realpath(program(shell) or "").rpartition("/")[2]
    out, err = read(channel)
    assert out in {f"typed\nit's {one}\n".encode() for one in (shell, name, (program(shell) or "").rpartition("/")[2])}
    assert (err, channel.exit_status(DEADLINE_SECONDS)) == (b"err\n", 3)
    channel.close()


class _Setting(Wrapper):
    """Sets variables, and nothing else."""

    name = "setting"
    description = "Programs with two variables."
    schema = Schema

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return ["/bin/sh", "-c", 'OWN=${NONE-it} OTHER=${HOME-} LAST=x exec "$@"', "sh", *argv]


@pytest.mark.needs("root", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh")
def test_a_wrapping_program_is_started_by_a_line_where_that_can_be(
    sshd: Sshd, connect: Connect, login_shell: User, request: pytest.FixtureRequest
) -> None:
    link = connect(sshd, user=login_shell.name)
    wrapped = WrappedTransport(_Setting(), {}, link)
    words = ["", "a b", "it's", '"', "$HOME", "*", "\\n", "{a,b}", "~", "#", "ä"]
    script = 'printf "%s\\0" "$OWN" "$OTHER" "$LAST" "$@"; cat'
    expected = "".join(f"{word}\0" for word in ("it", str(login_shell.home), "x", *words))
    kinds = []
    for _ in range(2):
        channel = wrapped.open_channel(["/bin/sh", "-c", script, "sh", *words], timeout=DEADLINE_SECONDS)
        channel.sendall(b"typed", DEADLINE_SECONDS)
        channel.shutdown_write()
        assert read(channel)[0].decode() == f"{expected}typed"
        kinds.append(type(channel))
        channel.close()
        wrapped.learn_language(DEADLINE_SECONDS)
    reads_posix = request.node.callspec.params["login_shell"] not in ("fish", "tcsh", "ksh93")
    assert kinds == [SessionChannel, LineChannel if reads_posix else SessionChannel]


def test_no_line_is_started_behind_a_forced_command(start_sshd: StartSshd, connect: Connect) -> None:
    for command in ("echo forced", 'eval "$SSH_ORIGINAL_COMMAND"', "cat", "exec sleep 60"):
        link = connect(start_sshd({"ForceCommand": command}))
        link.learn_language(2.0)
        assert link.open_line("echo wanted", timeout=DEADLINE_SECONDS) is None


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("start_up", "starts"),
    [("echo noise", True), ("SHELL=/bin/dash", False), ("exec dash", False), ("exit 3", False), ("cd /; set -u", True)],
)
def test_start_up_files_decide_whether_a_line_is_started(
    sshd: Sshd, connect: Connect, start_up: str, starts: bool
) -> None:
    user = users.create()
    try:
        (user.home / ".bashrc").write_text(f"{start_up}\n")
        link = connect(sshd, user=user.name)
        link.learn_language(DEADLINE_SECONDS)
        channel = link.open_line("echo line", timeout=DEADLINE_SECONDS)
        assert (channel is not None) == starts
        if channel is not None:
            assert read(channel)[0].endswith(b"line\n")
            channel.close()
    finally:
        users.remove(user)


@pytest.mark.parametrize("sessions", [1, 2, 3, 10])
def test_the_session_that_is_kept_for_the_next_line_makes_room(
    start_sshd: StartSshd, connect: Connect, sessions: int
) -> None:
    link = connect(start_sshd({"MaxSessions": str(sessions)}))
    link.learn_language(DEADLINE_SECONDS)
    # The session in which the language was asked for ends a moment later.
    eventually(lambda: run(link, "true"), "no session becomes free", ignoring=ChannelRefused)
    line = eventually(
        lambda: link.open_line("read word; echo $word", timeout=DEADLINE_SECONDS),
        "no session becomes free",
        ignoring=ChannelRefused,
    )
    assert line is not None
    others = [link.open_channel(["cat"], timeout=DEADLINE_SECONDS) for _ in range(sessions - 1)]
    with pytest.raises(ChannelRefused, match="MaxSessions"):
        link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    line.sendall(b"said\n", DEADLINE_SECONDS)
    assert read(line) == (b"said\n", b"")
    for one in (line, *others):
        one.close()
    again = eventually(
        lambda: link.open_line("echo again", timeout=DEADLINE_SECONDS),
        "no session becomes free",
        ignoring=ChannelRefused,
    )
    assert again is not None
    assert read(again) == (b"again\n", b"")


def test_lines_that_are_started_at_once_all_run(sshd: Sshd, connect: Connect) -> None:
    link = connect(sshd)
    link.learn_language(DEADLINE_SECONDS)
    for _ in range(20):
        lines = [link.open_line(f"echo {number}", timeout=DEADLINE_SECONDS) for number in range(4)]
        for number, line in enumerate(lines):
            assert line is not None
            assert read(line) == (b"%d\n" % number, b"")
            line.close()


def test_the_language_is_asked_for_again_after_a_refused_session(start_sshd: StartSshd, connect: Connect) -> None:
    link = connect(start_sshd({"MaxSessions": "1"}))
    only = link.open_channel(["cat"], timeout=DEADLINE_SECONDS)
    link.learn_language(DEADLINE_SECONDS)
    assert link.can_learn_language
    only.close()

    def learnt() -> bool:
        link.learn_language(DEADLINE_SECONDS)
        return not link.can_learn_language

    eventually(learnt, "the language is not learnt")


@pytest.mark.needs("root")
def test_a_login_shell_that_admits_nobody_ends_at_once(sshd: Sshd, connect: Connect) -> None:
    barred = users.create(shell="/usr/sbin/nologin")
    try:
        status, out, _ = run(connect(sshd, user=barred.name), "echo in")
    finally:
        users.remove(barred)
    assert status != 0
    assert b"not available" in out


def test_output_of_a_forced_command_is_quoted_without_control_characters(
    start_sshd: StartSshd, connect: Connect
) -> None:
    link = connect(start_sshd({"ForceCommand": r"printf 'why\033]0;owned\007\302\233 not\n'"}))
    with pytest.raises(UnsupportedShell, match=re.escape("It printed: why ]0;owned not")):
        start_supervisor(link, None, 20)
