"""Whatever a client does at a control socket: one line for it, nothing leaks, and others are unmoved."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from connmgr.client import LOCAL_MACHINE, ClientError
from connmgr.multiplex.clients import REQUEST_SECONDS, MultiplexClient
from connmgr.streams.loop import Timer
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.multiplex.wire import (
    ALIVE_CHECK,
    EXIT_MESSAGE,
    FAILURE,
    GREETING,
    HELLO,
    NEW_SESSION,
    SESSION_OPENED,
    Wire,
    nothing,
    packet,
    session,
)
from tests.processes import descriptors
from tests.rights.wire import create

pytestmark = pytest.mark.needs("bash")


@pytest.fixture
def path(clean_daemon: Daemon) -> Iterator[str]:
    """The control socket of the daemon's machine."""
    yield clean_daemon.client.post("/multiplex/open", connections=[LOCAL_MACHINE])["sockets"][0]["path"]
    clean_daemon.client.post("/multiplex/close")


@contextmanager
def nothing_leaks(daemon: Daemon) -> Iterator[None]:
    """The daemon has as many descriptors after the block as before it.

    Those of the vault do not count: a busy daemon answers with more threads, and opens it once more for them.
    """
    vault = str(daemon.data_dir / "vault.db")

    def held() -> Counter[str]:
        kinds = descriptors(daemon.pid).items()
        return Counter({kind: count for kind, count in kinds if not kind.startswith(vault)})

    daemon.client.post("/multiplex/query")
    before = held()
    yield
    eventually(lambda: held() - before, "descriptors leak", holds=lambda more: more.total() <= 2)


def works(path: str) -> None:
    """A client that keeps to the protocol is served."""
    reading, writing = os.pipe()
    null = nothing()
    with Wire(path) as wire:
        wire.greet()
        wire.send(session(b"echo works; exit 3"))
        wire.pass_on(null, writing, null)
        os.close(writing)
        opened = wire.receive()
        assert opened is not None
        assert opened[:2] == (SESSION_OPENED, 1)
        assert wire.rest() == [(EXIT_MESSAGE, opened[2], 3)]
    assert os.read(reading, 100) == b"works\n"
    os.close(reading)
    os.close(null)


BROKEN = {
    "noise": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "four gigabytes": b"\xff\xff\xff\xff" + b"x" * 100,
    "no hello first": packet(ALIVE_CHECK, 1),
    "a hello of another version": packet(HELLO, 5),
    "an empty packet": packet(),
    "a hello that ends early": packet(HELLO),
    "extensions that end early": packet(HELLO, 4, 77),
    "a session that ends early": GREETING + packet(NEW_SESSION, 1, b"", 0, 0),
    "a string beyond its packet": GREETING + packet(NEW_SESSION, 1, 9999),
    "a NUL in a command": GREETING + session(b"a\0b"),
    "too many variables": GREETING + session(b"true", environment=[b"A%d=1" % number for number in range(5000)]),
    "bytes in place of descriptors": GREETING + session(b"true") + b"abc",
    "empty bytes in place of descriptors": GREETING + session(b"true") + b"\0\0\0",
    "more packets than anybody sends at once": GREETING + packet(ALIVE_CHECK, 1) * 5000,
    "a port beyond all": GREETING + packet(0x10000006, 1, 1, b"", 70000, b"h", 1),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_client_is_told_and_closed(clean_daemon: Daemon, path: str, what: str) -> None:
    with nothing_leaks(clean_daemon):
        with Wire(path) as wire:
            with suppress(BrokenPipeError, ConnectionResetError):
                wire.send(BROKEN[what])
            answers = wire.rest()
            assert answers[0] == (HELLO, 4)
            assert answers[-1][:2] == (FAILURE, 0), answers
            assert wire.text.isprintable()
            assert wire.text
        works(path)


def test_descriptors_that_nobody_asked_for_are_closed(clean_daemon: Daemon, path: str) -> None:
    null = nothing()
    with nothing_leaks(clean_daemon):
        for before in (b"", GREETING, GREETING + packet(ALIVE_CHECK, 1)[:3]):
            with Wire(path) as wire:
                wire.send(before)
                with suppress(BrokenPipeError, ConnectionResetError):
                    wire.pass_on(*[null] * 20)
                wire.rest()
        works(path)
    os.close(null)


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_a_client_that_dies_between_packet_and_descriptors(clean_daemon: Daemon, path: str, passed: int) -> None:
    null = nothing()
    with nothing_leaks(clean_daemon):
        for _ in range(50):
            with Wire(path) as wire:
                wire.greet()
                wire.send(session(b"true"))
                wire.pass_on(*[null] * passed)
        works(path)
    os.close(null)


def test_a_directory_is_no_stream(path: str, tmp_path: Path) -> None:
    null = nothing()
    directory = os.open(tmp_path, os.O_RDONLY)
    reading, writing = os.pipe()
    with Wire(path) as wire:
        wire.greet()
        wire.send(session(b"true"))
        wire.pass_on(directory, null, writing)
        os.close(writing)
        assert [one[0] for one in wire.rest()] == [SESSION_OPENED, EXIT_MESSAGE]
    assert os.read(reading, 1000) == b"connmgr: The standard input is a directory.\n"
    for descriptor in (null, directory, reading):
        os.close(descriptor)


def _odd(kind: str, stack: ExitStack, directory: Path) -> int:
    """Return a descriptor that no program has for a standard stream; ``stack`` closes it."""
    if kind == "an epoll":
        return stack.enter_context(select.epoll()).fileno()
    if kind in ("a listener", "a datagram socket"):
        made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if "datagram" in kind else 1))
        if kind == "a listener":
            made.bind(str(directory / "s"))
            made.listen()
        return made.fileno()
    if kind == "a path alone":
        (directory / "file").write_text("content")
        descriptor = os.open(directory / "file", os.O_PATH)
    elif kind == "a terminal's master":
        descriptor, slave = os.openpty()
        stack.callback(os.close, slave)
    else:
        reading, writing = os.pipe()
        descriptor, other = (writing, reading) if kind == "a pipe's end for writing" else (reading, writing)
        stack.callback(os.close, other)
    stack.callback(os.close, descriptor)
    return descriptor


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "kind",
    [
        "an epoll",
        "a listener",
        "a datagram socket",
        "a path alone",
        "a terminal's master",
        "a pipe's end for writing",
        "a pipe's end for reading",
    ],
)
def test_a_descriptor_of_an_odd_kind_ends_its_session_and_no_other(
    clean_daemon: Daemon, path: str, tmp_path: Path, kind: str, place: int
) -> None:
    works(path)
    with nothing_leaks(clean_daemon):
        with ExitStack() as stack:
            null = nothing()
            stack.callback(os.close, null)
            passed = [null, null, null]
            passed[place] = _odd(kind, stack, tmp_path)
            with Wire(path) as wire:
                wire.greet()
                # An open end of a pipe has no input, and no end: the command does not wait for one.
                wire.send(session(b"exec </dev/null; echo out; echo err >&2; exit 3"))
                wire.pass_on(*passed)
                answers = wire.rest()
            assert [one[0] for one in answers] == [SESSION_OPENED, EXIT_MESSAGE]
            assert answers[1][2] in (3, 255)
        works(path)


def test_a_terminal_that_is_none_has_the_usual_size(path: str) -> None:
    null = nothing()
    reading, writing = os.pipe()
    with Wire(path) as wire:
        wire.greet()
        wire.send(packet(NEW_SESSION, 1, b"", 1, 0, 0, 0, 0x7E, b"xterm", b"stty size"))
        wire.pass_on(null, writing, null)
        os.close(writing)
        assert [one[0] for one in wire.rest()] == [SESSION_OPENED, EXIT_MESSAGE]
    assert os.read(reading, 1000) == b"24 80\r\n"
    os.close(reading)
    os.close(null)


def test_a_second_session_of_a_client_is_refused(path: str) -> None:
    null = nothing()
    reading, writing = os.pipe()
    with Wire(path) as wire:
        wire.greet()
        wire.send(session(b"read line; exit 5"))
        wire.pass_on(reading, null, null)
        wire.send(session(b"true", number=2))
        wire.pass_on(null, null, null)
        while (answer := wire.receive()) is not None and answer[:2] != (FAILURE, 2):
            assert answer[:2] == (SESSION_OPENED, 1)
        os.write(writing, b"\n")
        assert wire.rest()[-1][0::2] == (EXIT_MESSAGE, 5)
    for descriptor in (null, reading, writing):
        os.close(descriptor)


def test_ten_thousand_silent_clients_hold_nothing(clean_daemon: Daemon, path: str) -> None:
    process = psutil.Process(clean_daemon.pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 12000), hard))
    threads = process.num_threads()
    try:
        with nothing_leaks(clean_daemon), ExitStack() as silent:
            for number in range(10_000):
                one = silent.enter_context(socket.socket(socket.AF_UNIX))
                one.connect(path)
                if number % 2000 == 1000:
                    assert process.num_fds() < 1500
                    works(path)
            works(path)
            eventually(process.num_threads, "silent clients hold threads", holds=lambda seen: seen <= threads + 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_token_that_asks_for_a_thousand_sessions_leaves_the_owner_some(clean_daemon: Daemon, path: str) -> None:
    """Each session that waits for its turn holds four descriptors of the daemon, and asks again and again."""
    process = psutil.Process(clean_daemon.pid)
    holder = create(clean_daemon, "shell.any")
    theirs = holder.ok("/multiplex/open", connections=[LOCAL_MACHINE])["sockets"][0]["path"]
    null = nothing()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 12000), hard))
    before = process.num_fds()
    try:
        with ExitStack() as flood:
            for _ in range(1000):
                wire = flood.enter_context(Wire(theirs))
                wire.send(GREETING, session(b"exec sleep 600"))
                wire.pass_on(null, null, null)
            works(path)
            # Their share, five eighths of 512, and those without a session.
            assert process.num_fds() - before < 320 * 4 + 512 + 200
            works(path)
        clean_daemon.client.post("/token/revoke", id=holder.id)
        # Threads that asked at once have left connections to the database, each with two or three descriptors.
        eventually(lambda: process.num_fds() <= before + 60, "descriptors leak")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(null)


class _Clock:
    """The loop of a client whose time passes only in :meth:`pass_by`."""

    def __init__(self) -> None:
        self.now, self._timers = 0.0, list[Timer]()

    def after(self, seconds: float, call: Callable[[], object]) -> Timer:
        self._timers.append(Timer(self.now + seconds, len(self._timers), call))
        return self._timers[-1]

    def watch(self, *_: object) -> None: ...

    def unwatch(self, _: int) -> None: ...

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for timer in self._timers:
            if timer.at <= self.now:
                timer()


def test_a_client_has_its_time_for_each_thing_that_it_says() -> None:
    """ssh greets, asks whether anybody is there, and then for a session: on a busy machine each takes seconds."""
    clock, (connected, ssh) = _Clock(), socket.socketpair()
    host: Any = SimpleNamespace(loop=clock, left=lambda _: None)
    with connected, ssh:
        client = MultiplexClient(host, connected, SimpleNamespace())  # type: ignore[arg-type]
        for said in (GREETING, packet(ALIVE_CHECK, 1), packet(ALIVE_CHECK, 2)):
            clock.pass_by(REQUEST_SECONDS - 1)
            assert not client.closed, "it was closed while it had time"
            ssh.sendall(said)
            client._receive()
        clock.pass_by(REQUEST_SECONDS)
        assert client.closed


@pytest.mark.slow
def test_a_silent_client_is_closed_after_its_time(path: str) -> None:
    with Wire(path) as wire:
        began = time.monotonic()
        assert wire.rest() == [(HELLO, 4)]
        assert time.monotonic() - began > 5


@pytest.mark.needs("machine")
def test_another_user_does_not_get_in(clean_daemon: Daemon, path: str) -> None:
    """Not even where the directory lets others in: the daemon looks at who has connected."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who can be another user")
    directory = Path(path).parent
    for parent in [directory, *directory.parents]:
        if parent != Path("/") and parent.stat().st_uid == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    Path(path).chmod(0o666)
    script = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(20)\n"
        "try:\n s.connect(sys.argv[1])\n print(s.recv(100))\nexcept OSError as error:\n print(type(error).__name__)\n"
    )
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script, path]
    heard = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True, cwd="/").stdout
    assert heard.strip() in ("b''", "ConnectionResetError")
    works(path)


def test_a_directory_that_others_enter_is_refused(own_daemon: Daemon) -> None:
    directory = own_daemon.auth_file.parent / "ssh"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with pytest.raises(ClientError, match="chmod 700"):
        own_daemon.client.post("/multiplex/open")
    directory.rmdir()
    with tempfile.TemporaryDirectory() as elsewhere:
        directory.symlink_to(elsewhere)
        with pytest.raises(ClientError, match="is not a directory of the daemon's user"):
            own_daemon.client.post("/multiplex/open")
    directory.unlink()


def test_sockets_of_a_dead_daemon_are_replaced_and_those_of_a_live_one_are_not(own_daemon: Daemon) -> None:
    found = own_daemon.client.post("/multiplex/open")["sockets"]
    path = Path(found[0]["path"])
    own_daemon.client.post("/multiplex/close")
    assert not path.exists()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    own_daemon.client.post("/multiplex/open")
    works(str(path))
    own_daemon.client.post("/multiplex/close")
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ClientError, match="another program listens there"):
            own_daemon.client.post("/multiplex/open")
    path.unlink()
