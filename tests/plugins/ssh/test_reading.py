"""Who reads from a link, and what happens when that changes."""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections.abc import Iterator

import pytest

from connmgr.plugin import Channel
from connmgr_ssh.link import Link
from connmgr_ssh.packets import Packets
from connmgr_ssh.reading import SPELL
from connmgr_ssh.transport import SshTransport
from tests.plugins.ssh.conftest import Connect, StartSshd
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh")

WAIT = 20.0
MEGABYTE = 1_000_000


def link_of(transport: SshTransport) -> Link:
    return transport._link


def read(channel: Channel) -> bytes:
    """Return what a process prints, to its end."""
    output = b""
    try:
        while True:
            output += channel.recv(WAIT)[0]
    except EOFError:
        return output


def line(channel: Channel) -> bytes:
    output = b""
    while not output.endswith(b"\n"):
        output += channel.recv(WAIT)[0]
    return output


@pytest.fixture
def echo(sshd: Sshd, connect: Connect) -> Iterator[Channel]:
    """A process that returns what it is sent."""
    channel = connect(sshd).open_channel(["cat"], timeout=WAIT)
    yield channel
    channel.close()


def test_the_thread_that_waits_reads(sshd: Sshd, connect: Connect) -> None:
    transport = connect(sshd)
    channel = transport.open_channel(["cat"], timeout=WAIT)
    readers = set()
    link = link_of(transport)
    deliver = link._packets.deliver

    def note(payload: bytes) -> bool:
        readers.add(threading.current_thread())
        return bool(deliver(payload))

    link._packets.deliver = note
    for _ in range(10):
        channel.sendall(b"ping\n", WAIT)
        assert line(channel) == b"ping\n"
    assert threading.current_thread() in readers


def test_the_links_own_thread_reads_for_one_that_waits_for_long(echo: Channel) -> None:
    def send() -> None:
        time.sleep(3 * SPELL)
        echo.sendall(b"late\n", WAIT)

    sender = threading.Thread(target=send)
    sender.start()
    assert line(echo) == b"late\n"
    sender.join(WAIT)


def test_what_has_come_is_found_without_waiting(echo: Channel) -> None:
    for _ in range(20):
        # Whoever has just read will not look again by itself for a while.
        echo.sendall(b"first\n", WAIT)
        assert line(echo) == b"first\n"
        echo.sendall(b"second\n", WAIT)
        arrived = select.poll()
        arrived.register(link_of_channel(echo).wire.socket, select.POLLIN)
        deadline = time.monotonic() + WAIT
        while not (arrived.poll(10) or echo._arrived):  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "nothing comes back"
        assert echo.recv(0)[0] == b"second\n"


def test_threads_that_wait_at_once_do_not_keep_the_turn_from_each_other(sshd: Sshd, connect: Connect) -> None:
    transport = connect(sshd)
    channels = [transport.open_channel(["cat"], timeout=WAIT) for _ in range(5)]
    failures: list[object] = []

    def converse(channel: Channel, number: int) -> None:
        for turn in range(100):
            sent = f"{number}.{turn}\n".encode()
            channel.sendall(sent, WAIT)
            began = time.monotonic()
            received = line(channel)
            if received != sent or time.monotonic() - began > WAIT / 2:
                failures.append((sent, received, time.monotonic() - began))

    threads = [threading.Thread(target=converse, args=pair) for pair in zip(channels, range(5), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_what_nobody_waits_for_is_read_by_the_links_own_thread(sshd: Sshd, connect: Connect) -> None:
    transport = connect(sshd)
    channel = transport.open_channel(["sh", "-c", "read line; echo $line; exit 3"], timeout=WAIT)
    channel.sendall(b"word\n", WAIT)
    deadline = time.monotonic() + WAIT
    while channel._status is None:
        assert time.monotonic() < deadline, "the exit status was not read"
        time.sleep(0.01)
    assert (read(channel), channel.exit_status(0)) == (b"word\n", 3)


def check_transfer(transport: SshTransport, size: int = MEGABYTE) -> None:
    content = os.urandom(size)
    channel = transport.open_channel(["sha256sum"], timeout=WAIT)
    channel.sendall(content, WAIT)
    channel.shutdown_write()
    assert read(channel).split()[0].decode() == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("ciphers", ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr"])
def test_keys_are_exchanged_anew_after_so_many_bytes_either_way(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch, ciphers: str
) -> None:
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE)
    server = start_sshd({"Ciphers": ciphers, "LogLevel": "DEBUG1"})
    transport = connect(server)
    check_transfer(transport, 20 * MEGABYTE)
    after_sending = server.log().count("SSH2_MSG_NEWKEYS received")
    assert after_sending > 3
    down = transport.open_channel(["head", "-c", str(20 * MEGABYTE), "/dev/zero"], timeout=WAIT)
    assert read(down) == bytes(20 * MEGABYTE)
    assert server.log().count("SSH2_MSG_NEWKEYS received") > after_sending + 3


def test_another_cipher_after_new_keys(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE)
    transport = connect(start_sshd())
    for cipher in ("aes128-ctr", "aes256-gcm@openssh.com", "aes256-ctr"):
        monkeypatch.setattr(Link, "_preferred_ciphers", (cipher,))
        deadline = time.monotonic() + WAIT
        while link_of(transport).local_cipher != cipher or link_of(transport).in_kex:
            assert time.monotonic() < deadline, "no new keys were agreed on"
            check_transfer(transport)
        check_transfer(transport)


def test_a_packet_that_was_tampered_with_ends_the_link(echo: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = link_of_channel(echo).wire
    fill = wire.fill

    def corrupt() -> None:
        fill()
        if wire.buffered:
            wire._ahead = wire._ahead[:-1] + bytes([wire._ahead[-1] ^ 1])

    monkeypatch.setattr(wire, "fill", corrupt)
    echo.sendall(b"anything\n", WAIT)
    with pytest.raises((EOFError, OSError)):
        line(echo)
    link_of_channel(echo).join(WAIT)
    assert not link_of_channel(echo).is_alive()


def link_of_channel(channel: Channel) -> Link:
    return channel.link  # type: ignore[attr-defined]
