"""The thread of a link reads for all who wait, decrypts, and exchanges keys anew."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_OPEN,
    MSG_CHANNEL_REQUEST,
    MSG_GLOBAL_REQUEST,
    MSG_KEXINIT,
)
from paramiko.ssh_exception import SSHException

from connmgr.plugin import Channel, Deadline
from connmgr_ssh.channels import NARROW_WINDOW_BYTES, PACKET_BYTES, STDOUT, SshChannel
from connmgr_ssh.link import SshLink
from connmgr_ssh.packets import REST_SECONDS, Nonces, Packets, Wire, awaits, packed
from connmgr_ssh.transport import SshTransport
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.plugins.ssh.conftest import Connect, StartSshd
from tests.plugins.ssh.test_channel import read
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh")

MEGABYTE = 1_000_000


def link_of(transport: SshTransport) -> SshLink:
    return transport._link


def line(channel: Channel) -> bytes:
    output = b""
    while not output.endswith(b"\n"):
        output += channel.recv(DEADLINE_SECONDS)[0]
    return output


@pytest.fixture
def echo(sshd: Sshd, connect: Connect) -> Iterator[Channel]:
    """A process that returns what it is sent."""
    channel = connect(sshd).open_channel(["cat"], timeout=DEADLINE_SECONDS)
    yield channel
    channel.close()


def test_a_patient_reader_gets_late_output(echo: Channel) -> None:
    def send() -> None:
        time.sleep(0.75)
        echo.sendall(b"late\n", DEADLINE_SECONDS)

    sender = threading.Thread(target=send)
    sender.start()
    assert line(echo) == b"late\n"
    sender.join(DEADLINE_SECONDS)


def test_arrived_output_is_read_without_waiting(echo: Channel) -> None:
    assert isinstance(echo, SshChannel)
    for _ in range(20):
        echo.sendall(b"first\n", DEADLINE_SECONDS)
        assert line(echo) == b"first\n"
        echo.sendall(b"second\n", DEADLINE_SECONDS)
        assert echo._wait(lambda: any(echo._arrived), DEADLINE_SECONDS), "nothing comes back"
        assert echo.recv(0)[0] == b"second\n"


def test_threads_that_wait_at_once_each_get_their_own_output(sshd: Sshd, connect: Connect) -> None:
    transport = connect(sshd)
    channels = [transport.open_channel(["cat"], timeout=DEADLINE_SECONDS) for _ in range(5)]
    failures: list[object] = []

    def converse(channel: Channel, number: int) -> None:
        for turn in range(100):
            sent = f"{number}.{turn}\n".encode()
            channel.sendall(sent, DEADLINE_SECONDS)
            began = time.monotonic()
            received = line(channel)
            if received != sent or time.monotonic() - began > DEADLINE_SECONDS / 2:
                failures.append((sent, received, time.monotonic() - began))

    threads = [threading.Thread(target=converse, args=pair) for pair in zip(channels, range(5), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_output_is_read_although_nobody_waits_for_it(sshd: Sshd, connect: Connect) -> None:
    transport = connect(sshd)
    channel = transport.open_channel(["sh", "-c", "read line; echo $line; exit 3"], timeout=DEADLINE_SECONDS)
    channel.sendall(b"word\n", DEADLINE_SECONDS)
    eventually(lambda: channel._status is not None, "the exit status was not read")
    assert (read(channel)[0], channel.exit_status(0)) == (b"word\n", 3)


def check_transfer(transport: SshTransport, size: int = MEGABYTE) -> None:
    content = os.urandom(size)
    channel = transport.open_channel(["sha256sum"], timeout=DEADLINE_SECONDS)
    channel.sendall(content, DEADLINE_SECONDS)
    channel.shutdown_write()
    assert read(channel)[0].split()[0].decode() == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("ciphers", ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr"])
def test_keys_are_exchanged_anew_after_so_many_bytes_either_way(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch, ciphers: str
) -> None:
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE)
    server = start_sshd({"Ciphers": ciphers, "LogLevel": "DEBUG1"})
    transport = connect(server)
    check_transfer(transport, 10 * MEGABYTE)
    after_sending = server.log().count("SSH2_MSG_NEWKEYS received")
    assert after_sending > 3
    down = transport.open_channel(["head", "-c", str(10 * MEGABYTE), "/dev/zero"], timeout=DEADLINE_SECONDS)
    assert read(down)[0] == bytes(10 * MEGABYTE)
    assert server.log().count("SSH2_MSG_NEWKEYS received") > after_sending + 3


def _renews_keys(link: SshLink) -> bool:
    return link.in_kex or bool(link.packetizer.need_rekey())


def test_another_cipher_after_new_keys(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE)
    transport = connect(start_sshd())
    for cipher in ("aes128-ctr", "aes256-gcm@openssh.com", "aes256-ctr"):
        # Each transfer has new keys agreed on. While that lasts, paramiko takes its preference anew for the server's
        # answer: with another one than it has sent, each side would take another cipher.
        eventually(lambda: not _renews_keys(link_of(transport)), "the keys are still being exchanged")
        monkeypatch.setattr(SshLink, "_preferred_ciphers", (cipher,))

        def agreed() -> tuple[str, bool]:
            check_transfer(transport)
            return link_of(transport).local_cipher, link_of(transport).in_kex

        eventually_equal(agreed, (cipher, False), "no new keys were agreed on")
        check_transfer(transport)


def test_a_packet_that_was_tampered_with_ends_the_link(echo: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = link_of_channel(echo).wire
    fill = wire.fill

    def corrupt() -> None:
        fill()
        if wire.buffered:
            wire._ahead = wire._ahead[:-1] + bytes([wire._ahead[-1] ^ 1])

    monkeypatch.setattr(wire, "fill", corrupt)
    echo.sendall(b"anything\n", DEADLINE_SECONDS)
    with pytest.raises((EOFError, OSError)):
        line(echo)
    link_of_channel(echo).join(DEADLINE_SECONDS)
    assert not link_of_channel(echo).is_alive()


def link_of_channel(channel: Channel) -> SshLink:
    assert isinstance(channel, SshChannel)
    return channel.link


def test_a_client_that_never_waits_does_not_hold_up_new_keys(
    sshd: Sshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE)
    channel = connect(sshd).open_channel(["head", "-c", str(5 * MEGABYTE), "/dev/zero"], timeout=DEADLINE_SECONDS)
    received, deadline = 0, time.monotonic() + DEADLINE_SECONDS
    with contextlib.suppress(EOFError):
        while time.monotonic() < deadline:
            received += len(channel.recv(0)[0])
    assert received == 5 * MEGABYTE


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire that counts an interval of 0.05 seconds, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield Wire(ours, 0.05), theirs


def test_a_standstill_of_our_own_is_no_silence_of_the_peer(pair: tuple[Wire, socket.socket]) -> None:
    wire, peer = pair
    time.sleep(0.2)
    left = wire.until_silence()
    assert left is not None
    assert left <= 0
    peer.sendall(b"alive")
    assert not wire.count_silence()
    assert wire.recv(10) == b"alive"
    time.sleep(0.2)
    assert wire.count_silence()
    assert wire.silences == 1


@pytest.mark.parametrize("number", [1, 2, 16, 1024, 5000])
def test_any_number_of_pieces_is_sent_whole(pair: tuple[Wire, socket.socket], number: int) -> None:
    wire, peer = pair
    pieces = [bytes([index % 251]) * (index % 700 + 1) for index in range(number)]
    received = bytearray()

    def take() -> None:
        while len(received) < sum(map(len, pieces)):
            received.extend(peer.recv(100_000))

    taker = threading.Thread(target=take)
    taker.start()
    wire.send_all(pieces)
    taker.join(DEADLINE_SECONDS)
    assert bytes(received) == b"".join(pieces)


def test_a_peer_that_takes_nothing_ends_the_link_for_all_who_write(echo: Channel) -> None:
    link = link_of_channel(echo)
    packets = link._packets

    def refuse(pieces: object) -> None:
        raise ConnectionAbortedError

    link.wire.send_all = refuse  # type: ignore[method-assign]
    with pytest.raises(EOFError):
        echo.sendall(b"x", DEADLINE_SECONDS)
    link.join(DEADLINE_SECONDS)
    assert not link.is_alive()
    assert packets.closed


def test_empty_data_is_no_end(echo: Channel) -> None:
    assert isinstance(echo, SshChannel)
    for _ in range(1000):
        echo.receive(STDOUT, b"")
    assert not any(echo._arrived)


def test_data_of_another_size_than_it_says_ends_the_link(echo: Channel) -> None:
    assert isinstance(echo, SshChannel)
    to_stdout = struct.pack(">BII", MSG_CHANNEL_DATA, echo.number, 1)
    to_stderr = struct.pack(">BIII", MSG_CHANNEL_EXTENDED_DATA, echo.number, 1, 1)
    for head in (to_stdout, to_stderr):
        for data in (b"", b"much more"):
            with pytest.raises(SSHException, match="size"):
                link_of_channel(echo)._deliver(head + data)


def test_extended_data_of_an_unknown_type_is_dropped(echo: Channel) -> None:
    assert isinstance(echo, SshChannel)
    assert link_of_channel(echo)._deliver(struct.pack(">BIII", MSG_CHANNEL_EXTENDED_DATA, echo.number, 2, 1) + b"x")
    assert not any(echo._arrived)


def test_the_window_is_given_back_for_extended_data_that_nobody_reads(echo: Channel) -> None:
    assert isinstance(echo, SshChannel)
    piece = bytes(PACKET_BYTES)
    message = struct.pack(">BIII", MSG_CHANNEL_EXTENDED_DATA, echo.number, 2, len(piece)) + piece
    link = link_of_channel(echo)
    granted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "post_later", lambda sent, _: granted.append(int.from_bytes(sent.asbytes()[5:9], "big")))
        for _ in range(3 * NARROW_WINDOW_BYTES // len(piece)):
            assert link._deliver(message), "the host has to stop"
    assert sum(granted) > 2 * NARROW_WINDOW_BYTES
    assert len(granted) <= 12, "each piece costs an answer"


def test_room_that_was_not_used_is_given_back(echo: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(echo, SshChannel)
    room = echo._room_out

    def late(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(link_of_channel(echo), "post_all", late)
        with pytest.raises(TimeoutError):
            echo.sendall(bytes(1000), DEADLINE_SECONDS)
    assert echo._room_out == room


def test_a_channel_that_is_opened_while_the_link_ends(echo: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(echo, SshChannel)
    link = link_of_channel(echo)
    late = SshChannel(link, 1000)
    unlink = echo._unlink

    def unlink_and_open() -> None:
        unlink()
        link._channels.put(late.number, late)

    monkeypatch.setattr(echo, "_unlink", unlink_and_open)
    link.wire.close()
    link.join(DEADLINE_SECONDS)
    with pytest.raises(EOFError):
        late.wait_open(Deadline(DEADLINE_SECONDS))


@pytest.mark.parametrize("padding", [0, 3, 31, 32, 255])
def test_a_packet_that_is_padding_alone_is_refused(pair: tuple[Wire, socket.socket], padding: int) -> None:
    wire, peer = pair
    cipher, first = AESGCM(bytes(16)), bytes(12)
    head = struct.pack(">I", 32)
    peer.sendall(head + cipher.encrypt(Nonces(first).next(), bytes([padding]) + bytes(31), head))
    assert awaits(wire._stream, select.POLLIN, DEADLINE_SECONDS)  # type: ignore[arg-type]
    wire.fill()
    with pytest.raises(SSHException, match="without content"):
        Packets(wire)._next(cipher, Nonces(first))


def test_waiting_for_a_socket_that_was_closed_is_an_error_of_the_system() -> None:
    closed = socket.socket()
    closed.close()
    with pytest.raises(OSError, match="descriptor"):
        awaits(closed, select.POLLOUT, 0)


def switches(link: SshLink) -> int:
    """Return how often the link's own thread has waited."""
    status = Path(f"/proc/self/task/{link.native_id}/status").read_text()
    return int(status.split("voluntary_ctxt_switches:")[1].split()[0])


def shared_readers() -> int:
    return sum(thread.name == "ssh reader" for thread in threading.enumerate())


def sleeps(links: list[SshLink]) -> bool:
    """Whether the own threads of ``links`` have not woken for longer than they read on."""
    before = [switches(link) for link in links]
    time.sleep(4 * REST_SECONDS)
    return before == [switches(link) for link in links]


@pytest.mark.needs("linux")
def test_one_thread_reads_the_small_messages_of_all_links(sshd: Sshd, connect: Connect) -> None:
    readers = shared_readers()
    transports = [connect(sshd) for _ in range(5)]
    channels = [transport.open_channel(["cat"], timeout=DEADLINE_SECONDS) for transport in transports]
    links = [link_of(transport) for transport in transports]
    eventually(lambda: sleeps(links), "the links' own threads do not sleep")
    before = [switches(link) for link in links]
    for number in range(20):
        for channel in channels:
            channel.sendall(b"%d\n" % number, DEADLINE_SECONDS)
        assert [line(channel) for channel in channels] == [b"%d\n" % number] * len(channels)
    assert [switches(link) for link in links] == before
    # Links that other tests have not closed have one, too.
    assert shared_readers() <= readers + 1


@pytest.mark.needs("linux")
def test_bulk_data_and_new_channels_come_after_a_rest(sshd: Sshd, connect: Connect, echo: Channel) -> None:
    transport = connect(sshd)
    for _ in range(3):
        eventually(lambda: sleeps([link_of(transport)]), "the link's own thread does not sleep")
        channel = transport.open_channel(["head", "-c", str(8 * MEGABYTE), "/dev/zero"], timeout=DEADLINE_SECONDS)
        assert read(channel)[0] == bytes(8 * MEGABYTE)
        channel.close()
    # Another link is read all the while.
    echo.sendall(b"beside\n", DEADLINE_SECONDS)
    assert line(echo) == b"beside\n"


@pytest.mark.needs("linux")
def test_small_messages_are_counted_towards_new_keys(
    start_sshd: StartSshd, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd({"LogLevel": "DEBUG1"})
    transport = connect(server)
    channel = transport.open_channel(["cat"], timeout=DEADLINE_SECONDS)
    eventually(lambda: sleeps([link_of(transport)]), "the link's own thread does not sleep")
    before = server.log().count("SSH2_MSG_NEWKEYS received")
    monkeypatch.setattr(Packets, "REKEY_BYTES", MEGABYTE // 50)
    for number in range(60):
        sent = f"{number} {'x' * 1000}\n".encode()
        channel.sendall(sent, DEADLINE_SECONDS)
        assert line(channel) == sent
    assert server.log().count("SSH2_MSG_NEWKEYS received") > before + 1


@pytest.mark.needs("linux")
def test_a_link_ends_while_all_are_read_by_one_thread(start_sshd: StartSshd, connect: Connect, echo: Channel) -> None:
    server = start_sshd()
    transport = connect(server)
    channel = transport.open_channel(["cat"], timeout=DEADLINE_SECONDS)
    eventually(lambda: sleeps([link_of(transport)]), "the link's own thread does not sleep")
    server.kill_sessions()
    with pytest.raises(EOFError):
        channel.recv(DEADLINE_SECONDS)
    link_of(transport).join(DEADLINE_SECONDS)
    assert not link_of(transport).is_alive()
    echo.sendall(b"beside\n", DEADLINE_SECONDS)
    assert line(echo) == b"beside\n"


@pytest.mark.needs("linux")
def test_the_shared_thread_leaves_to_the_link_what_has_to_be_answered(sshd: Sshd, connect: Connect) -> None:
    # To send, it might have to wait for a host that does not read, and all other links with it.
    transport = connect(sshd)
    channel = transport.open_channel(["cat"], timeout=DEADLINE_SECONDS)
    assert isinstance(channel, SshChannel)
    link, number = link_of(transport), struct.pack(">I", channel.number)
    eventually(lambda: sleeps([link]), "the link's own thread does not sleep")
    asked = packed(b"keepalive@openssh.com") + b"\1"
    for payload in (
        bytes([MSG_CHANNEL_CLOSE]) + number,
        bytes([MSG_CHANNEL_REQUEST]) + number + asked,
        bytes([MSG_CHANNEL_EXTENDED_DATA]) + number + struct.pack(">I", 2) + packed(b"unknown"),
        bytes([MSG_GLOBAL_REQUEST]) + asked,
        bytes([MSG_CHANNEL_OPEN]) + packed(b"forwarded-tcpip") + bytes(12),
        bytes([MSG_KEXINIT]) + bytes(16),
    ):
        assert not link._deliver_at_once(payload), payload
    assert link._deliver_at_once(bytes([MSG_CHANNEL_DATA]) + number + packed(b"line\n"))
    assert line(channel) == b"line\n"
