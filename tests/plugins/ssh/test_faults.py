"""Faults between two machines: each gives a clear error in bounded time and leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import hashlib
import logging
import os
import random
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from connmgr.errors import (
    ConnectTimeout,
    HostRefused,
    HostUnreachable,
    HostUnresolved,
    OperationError,
    ShellLost,
    TransportUnsupported,
)
from connmgr.plugin import Channel, Deadline
from connmgr_ssh import Ssh, SshSchema, packets, transport
from connmgr_ssh.channels import WINDOW_BYTES
from connmgr_ssh.packets import MAX_SILENCES
from connmgr_ssh.transport import DROPPED_ATTEMPTS
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.plugins.ssh.conftest import Connect, StartSshd, data_for
from tests.plugins.ssh.test_channel import read, run
from tests.plugins.sshd import Sshd
from tests.processes import descriptors

pytestmark = pytest.mark.needs("sshd", "ssh")


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """The block must end in ``seconds``, which are generous, since the test is for hangs."""
    start = time.monotonic()
    yield
    taken = time.monotonic() - start
    assert taken < seconds, f"took {taken:.1f} seconds"


@contextmanager
def peer(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Run a TCP server that calls ``serve`` for each connection; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if stop.is_set():
                    connection.close()
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=accept)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield port
        finally:
            stop.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(DEADLINE_SECONDS)


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_an_unknown_host(sshd: Sshd, connect: Connect) -> None:
    with at_most(DEADLINE_SECONDS), pytest.raises(HostUnresolved, match=r"nothing\.invalid has no address"):
        connect(sshd, host="nothing.invalid")


@pytest.mark.parametrize("host", ["me@nothing.invalid", "nothing.invalid:22", "ssh://nothing.invalid"])
def test_a_whole_address_as_a_host_is_told_where_its_parts_go(sshd: Sshd, connect: Connect, host: str) -> None:
    told = "has no address: .* Its user and port are fields of their own"
    with at_most(DEADLINE_SECONDS), pytest.raises(HostUnresolved, match=told):
        connect(sshd, host=host)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "\u00e4" * 100])
def test_a_host_name_that_cannot_be(sshd: Sshd, connect: Connect, host: str) -> None:
    with at_most(DEADLINE_SECONDS), pytest.raises(HostUnresolved):
        connect(sshd, host=host)


def test_a_closed_port(sshd: Sshd, connect: Connect, closed_port: int) -> None:
    with pytest.raises(HostRefused, match="nothing listens there"):
        connect(sshd, port=closed_port)


def test_an_address_that_swallows_packets(sshd: Sshd, connect: Connect) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        with at_most(DEADLINE_SECONDS), pytest.raises(ConnectTimeout, match=r"within 0\.5 seconds, while connecting"):
            connect(sshd, port=listener.getsockname()[1], connectTimeout=0.5)
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("timeouts", [{"connectTimeout": 0.5}, {"timeout": 0.5}], ids=["the field", "the caller's"])
@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-Sleepy\r\n"], ids=["silent", "after its version"])
def test_a_host_that_falls_silent(sshd: Sshd, connect: Connect, greeting: bytes, timeouts: dict[str, float]) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(greeting)
        until_closed(connection)

    with peer(serve) as port, at_most(DEADLINE_SECONDS), pytest.raises(ConnectTimeout, match="while exchanging keys"):
        connect(sshd, port=port, **timeouts)


@pytest.mark.parametrize(
    "greeting",
    [b"", b"Exceeded MaxStartups\r\n", b"SSH-2.0-Short\r\n", b"SSH-1.5-Old\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)
def test_a_host_that_hangs_up(sshd: Sshd, connect: Connect, greeting: bytes) -> None:
    with peer(lambda connection: connection.sendall(greeting)) as port, at_most(DEADLINE_SECONDS):
        with pytest.raises((HostRefused, TransportUnsupported)) as caught:
            connect(sshd, port=port)
        assert f"127.0.0.1:{port}" in caught.value.message


def test_a_host_that_resets_the_connection(sshd: Sshd, connect: Connect) -> None:
    with peer(reset) as port, at_most(DEADLINE_SECONDS), pytest.raises(HostRefused):
        connect(sshd, port=port)


@pytest.mark.parametrize("piece", [b"x" * 65536, b"line\r\n" * 10_000], ids=["one endless line", "endless lines"])
def test_a_host_that_talks_without_end(sshd: Sshd, connect: Connect, piece: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        while True:
            connection.sendall(piece)

    with peer(serve) as port, at_most(DEADLINE_SECONDS), pytest.raises(OperationError):
        connect(sshd, port=port)


def test_a_host_that_announces_a_huge_packet(sshd: Sshd, connect: Connect) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-Huge\r\n" + struct.pack(">I", 0xFFFFFFF4))
        while True:
            connection.sendall(bytes(65536))

    with peer(serve) as port, at_most(DEADLINE_SECONDS), pytest.raises(OperationError, match="too large a packet"):
        connect(sshd, port=port)


@pytest.mark.parametrize("seed", range(40))
def test_a_host_that_sends_nonsense_in_packets(sshd: Sshd, connect: Connect, seed: int) -> None:
    chance = random.Random(seed)

    def packet() -> bytes:
        payload = bytes([chance.choice([*range(1, 8), *range(20, 42), *range(50, 62), *range(80, 101)])])
        payload += chance.randbytes(chance.choice([0, 3, 10, 100, 1000]))
        padding = 3 + 8 - (len(payload) + 8) % 8
        return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-Nonsense\r\n" + b"".join(packet() for _ in range(20)))
        until_closed(connection)

    with peer(serve) as port, at_most(DEADLINE_SECONDS), pytest.raises(OperationError) as caught:
        connect(sshd, port=port, connectTimeout=0.5)
    assert caught.value.message.isprintable()


def test_more_connections_than_the_host_admits(start_sshd: StartSshd, connect: Connect) -> None:
    server = start_sshd({"MaxStartups": "1:100:1"})
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.recv(100)
        told = f"MaxStartups.*That happened {DROPPED_ATTEMPTS} times"
        with at_most(DEADLINE_SECONDS), pytest.raises(HostRefused, match=told):
            connect(server)


def test_a_login_that_the_host_drops_before_it_begins_is_tried_again(
    start_sshd: StartSshd, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """sshd drops whoever comes while one connection has not logged in; that one goes when the first drop is told."""
    server = start_sshd({"MaxStartups": "1:100:1"})
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.recv(100)

        def leave(record: logging.LogRecord) -> bool:
            if "dropped a login" in record.getMessage():
                first.close()
            return True

        log = logging.getLogger("connmgr_ssh")
        log.addFilter(leave)
        try:
            with caplog.at_level(logging.INFO, "connmgr_ssh"), at_most(DEADLINE_SECONDS):
                connect(server)
        finally:
            log.removeFilter(leave)
    dropped = [record.getMessage() for record in caplog.records if "dropped a login" in record.getMessage()]
    assert dropped
    assert f"127.0.0.1:{server.port}" in dropped[0]


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        (b"", DROPPED_ATTEMPTS),
        (b"Exceeded MaxStartups\r\n", DROPPED_ATTEMPTS),
        # A penalty for earlier logins (PerSourcePenalties), which further ones would lengthen.
        (b"Not allowed at this time\r\n", 1),
        (b"SSH-2.0-Short\r\n", 1),
    ],
)
def test_a_host_that_answers_is_not_asked_again(
    sshd: Sshd, connect: Connect, monkeypatch: pytest.MonkeyPatch, answer: bytes, tries: int
) -> None:
    monkeypatch.setattr(transport, "DROPPED_SECONDS", 0.01)
    seen: list[None] = []

    def serve(connection: socket.socket) -> None:
        seen.append(None)
        # Read first: to close a connection with unread data resets it, and the answer may be lost.
        connection.recv(1000)
        connection.sendall(answer)

    with peer(serve) as port, at_most(DEADLINE_SECONDS), pytest.raises(HostRefused):
        connect(sshd, port=port)
    assert len(seen) == tries


def test_no_attempt_follows_after_the_deadline(sshd: Sshd, connect: Connect) -> None:
    with peer(lambda _: None) as port, at_most(DEADLINE_SECONDS), pytest.raises(HostRefused):
        connect(sshd, port=port, connectTimeout=0.1)


@pytest.mark.parametrize(
    ("option", "algorithm"),
    [("Ciphers", "chacha20-poly1305@openssh.com"), ("KexAlgorithms", "sntrup761x25519-sha512@openssh.com")],
)
def test_no_algorithm_in_common(start_sshd: StartSshd, connect: Connect, option: str, algorithm: str) -> None:
    server = start_sshd({option: algorithm})
    with at_most(DEADLINE_SECONDS), pytest.raises(TransportUnsupported, match="no algorithm in common"):
        connect(server)


def test_a_host_frozen_before_the_connection(start_sshd: StartSshd, connect: Connect) -> None:
    server = start_sshd()
    server.freeze()
    with at_most(DEADLINE_SECONDS), pytest.raises(ConnectTimeout):
        connect(server, connectTimeout=0.5)
    server.thaw()
    connect(server)


def test_by_default_a_frozen_host_is_noticed_within_45_seconds() -> None:
    assert SshSchema().fields["keepAlive"].load_default * MAX_SILENCES <= 45


@pytest.mark.parametrize(
    "wait",
    [
        lambda channel: channel.recv(DEADLINE_SECONDS),
        lambda channel: channel.exit_status(DEADLINE_SECONDS),
        lambda channel: channel.sendall(bytes(WINDOW_BYTES * 4), DEADLINE_SECONDS),
    ],
    ids=["recv", "exit_status", "sendall"],
)
def test_a_host_frozen_in_the_middle(
    start_sshd: StartSshd, connect: Connect, wait: Callable[[Channel], object]
) -> None:
    server = start_sshd()
    link = connect(server, keepAlive=0.2)
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    server.freeze()
    with at_most(DEADLINE_SECONDS / 2), pytest.raises((EOFError, OSError)) as caught:
        wait(channel)
    assert not isinstance(caught.value, TimeoutError)
    with at_most(DEADLINE_SECONDS / 2), pytest.raises(OperationError):
        link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    server.thaw()
    assert run(connect(server), "echo again")[1] == b"again\n"


@pytest.mark.parametrize("cipher", ["aes128-gcm@openssh.com", "aes128-ctr"])
def test_a_host_frozen_while_much_is_written_to_it(start_sshd: StartSshd, connect: Connect, cipher: str) -> None:
    """The socket fills up, and the reader must notice although a writer is stuck in it."""
    server = start_sshd({"Ciphers": cipher})
    link = connect(server, keepAlive=0.2)
    channels = [link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS) for _ in range(8)]
    server.freeze()
    ends: list[BaseException] = []

    def write(channel: Channel) -> None:
        try:
            channel.sendall(bytes(WINDOW_BYTES * 2), DEADLINE_SECONDS)
        except (OSError, EOFError) as error:
            ends.append(error)

    threads = [threading.Thread(target=write, args=[channel]) for channel in channels]
    with at_most(DEADLINE_SECONDS / 2):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
    assert len(ends) == len(channels)
    assert not any(isinstance(end, TimeoutError) for end in ends)


def test_one_thread_asks_all_silent_hosts_and_waits_for_none(start_sshd: StartSshd, connect: Connect) -> None:
    before = _keep_alives()
    full, quiet = start_sshd(), start_sshd()
    stuck, link = connect(full, keepAlive=5), connect(quiet, keepAlive=0.2)
    # Links that other tests have not closed have one, too.
    assert 1 <= _keep_alives() <= before + 1
    channels = [stuck.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS) for _ in range(8)]
    waiting = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    full.freeze()

    def write(channel: Channel) -> None:
        with suppress(OSError, EOFError):
            channel.sendall(bytes(WINDOW_BYTES * 2), DEADLINE_SECONDS)

    writers = [threading.Thread(target=write, args=[channel]) for channel in channels]
    for writer in writers:
        writer.start()
    quiet.freeze()
    with at_most(DEADLINE_SECONDS / 2), pytest.raises(EOFError):
        waiting.recv(DEADLINE_SECONDS)
    stuck.close()
    for writer in writers:
        writer.join(DEADLINE_SECONDS)
    eventually(lambda: _keep_alives() <= before, "the thread does not end with the last link")


def _keep_alives() -> int:
    return sum(thread.name == "ssh keep-alives" for thread in threading.enumerate())


def test_a_host_that_is_only_quiet_is_not_given_up(start_sshd: StartSshd, connect: Connect) -> None:
    link = connect(start_sshd(), keepAlive=0.1)
    channel = link.open_channel(["sh", "-c", "sleep 1.5; echo still"], timeout=DEADLINE_SECONDS)
    assert read(channel)[0] == b"still\n"


def test_only_a_host_that_owes_a_sign_of_life_is_asked_for_one(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd()
    link = connect(server)
    # By then the server's unsolicited messages after the login are read.
    run(link, "true")
    server.freeze()
    assert link.answers(0.0), "a host is asked that was heard of a moment ago"
    _sleep_for_an_hour(monkeypatch)
    with at_most(DEADLINE_SECONDS):
        assert not link.answers(0.3), "a frozen host answers"
    assert link.alive, "it is given up, though it may wake up"
    server.thaw()
    with at_most(DEADLINE_SECONDS / 2):
        assert link.answers(DEADLINE_SECONDS), "a host that was thawed does not answer"
    _sleep_for_an_hour(monkeypatch)
    server.kill_sessions()
    # Data that the host sent before its end may arrive after the jump of the clock, and counts as a sign of life.
    eventually_equal(lambda: link.answers(DEADLINE_SECONDS), False, "a host that is gone answers")


def _sleep_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock that includes sleep forward by an hour."""
    before = packets.now
    monkeypatch.setattr(packets, "now", lambda: before() + 3600)


def test_a_frozen_gateway_is_noticed_through_it(start_sshd: StartSshd, connect: Connect) -> None:
    middle, target = start_sshd(), start_sshd()
    gateway = connect(middle, keepAlive=0)
    link = connect(target, via=gateway, keepAlive=0.2)
    channel = link.open_channel(["sleep", "60"], timeout=DEADLINE_SECONDS)
    middle.freeze()
    with at_most(DEADLINE_SECONDS / 2), pytest.raises(EOFError):
        channel.recv(DEADLINE_SECONDS)
    middle.thaw()


@pytest.mark.parametrize("fault", [Sshd.kill_sessions, Sshd.stop], ids=["sessions killed", "server killed"])
def test_a_host_killed_in_the_middle_and_restarted(
    start_sshd: StartSshd, connect: Connect, fault: Callable[[Sshd], None]
) -> None:
    server = start_sshd()
    link = connect(server)
    channel = link.open_channel(["sh", "-c", "echo begun; sleep 60"], timeout=DEADLINE_SECONDS)
    assert channel.recv(DEADLINE_SECONDS)[0] == b"begun\n"
    fault(server)
    with at_most(DEADLINE_SECONDS / 2):
        with pytest.raises(EOFError):
            read_on(channel)
        with pytest.raises(EOFError):
            channel.exit_status(DEADLINE_SECONDS)
        with pytest.raises(OSError, match="closed"):
            channel.sendall(b"more", DEADLINE_SECONDS)
        with pytest.raises(ShellLost, match="is gone"):
            link.open_channel(["true"], timeout=DEADLINE_SECONDS)
    channel.close()
    link.close()
    if fault is Sshd.stop:
        with pytest.raises(HostRefused):
            connect(server)
        server.start()
    assert run(connect(server), "echo again")[1] == b"again\n"


def read_on(channel: Channel) -> None:
    while True:
        channel.recv(DEADLINE_SECONDS)


@pytest.mark.slow
def test_keys_exchanged_anew_during_a_hundred_megabytes(start_sshd: StartSshd, connect: Connect) -> None:
    server = start_sshd({"RekeyLimit": "8M", "LogLevel": "DEBUG1"})
    link = connect(server)
    down = link.open_channel(["head", "-c", "100000000", "/dev/zero"], timeout=DEADLINE_SECONDS)
    up = link.open_channel(["sha256sum"], timeout=DEADLINE_SECONDS)
    sent = hashlib.sha256()

    def write() -> None:
        for _ in range(20):
            data = os.urandom(1_000_000)
            sent.update(data)
            up.sendall(data, DEADLINE_SECONDS)
        up.shutdown_write()

    writer = threading.Thread(target=write)
    writer.start()
    received = 0
    try:
        while True:
            out, _ = down.recv(DEADLINE_SECONDS)
            assert not out.strip(b"\0")
            received += len(out)
    except EOFError:
        pass
    writer.join(DEADLINE_SECONDS)
    assert received == 100_000_000
    assert read(up)[0].split()[0].decode() == sent.hexdigest()
    assert server.log().count("SSH2_MSG_NEWKEYS received") > 5


def test_channels_come_and_go_while_keys_are_exchanged_all_the_time(start_sshd: StartSshd, connect: Connect) -> None:
    link = connect(start_sshd({"RekeyLimit": "64K"}))
    failures: list[object] = []

    def work() -> None:
        for _ in range(10):
            outcome = run(link, "cat", bytes(100_000))
            if outcome != (0, bytes(100_000), b""):
                failures.append(outcome[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def held() -> Counter[str]:
    """Return how many threads this process has but those that ask silent hosts, and which descriptors."""
    # What earlier tests left is not closed while a test counts.
    gc.collect()
    return Counter({"thread": threading.active_count() - _keep_alives()}) + descriptors()


@pytest.mark.needs("linux")
def test_rounds_leave_no_thread_and_no_descriptor(sshd: Sshd, connect: Connect) -> None:
    connect(sshd).close()
    before = held()
    for number in range(20):
        link = connect(sshd)
        if number % 4:
            channel = link.open_channel(["cat"], timeout=DEADLINE_SECONDS)
            if number % 4 == 1:
                channel.close()
        link.close()
    eventually_equal(lambda: held() - before, Counter(), "rounds leave something behind")


@pytest.mark.needs("linux")
def test_refusals_leave_no_thread_and_no_descriptor(sshd: Sshd, connect: Connect, closed_port: int) -> None:
    before = held()
    for fields in [{"hostKey": "SHA256:" + "A" * 43}, {"identity": None}, {"port": closed_port}, {"user": "nobody-x"}]:
        for _ in range(5):
            with pytest.raises(OperationError):
                connect(sshd, **fields)
    eventually_equal(lambda: held() - before, Counter(), "refusals leave something behind")


def test_a_daemon_that_may_open_no_further_file_says_so(sshd: Sshd, ssh: Ssh) -> None:
    data = data_for(ssh, sshd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, dups = max(map(int, os.listdir("/dev/fd"))) + 8, list[int]()  # noqa: PTH208 - pathlib follows each entry
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with suppress(OSError):
            while True:
                dups.append(os.dup(0))
        with pytest.raises(HostUnreachable, match=f"as many files open as it may .{limit:,}.; close links"):
            ssh.open(data, None, timeout=20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in dups:
            os.close(descriptor)
    ssh.open(data, None, timeout=20).close()
    full = transport.connect_error("web1:22", [OSError(errno.EMFILE, "Too many open files")], Deadline(1))
    assert full.message.startswith("web1:22 cannot be reached: the daemon has as many files open as it may"), full
