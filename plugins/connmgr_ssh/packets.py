"""The bytes under an SSH connection and the packets in them (RFC 4253, section 6).

:class:`Wire` reads ahead in large pieces and detects silence. :class:`Packets` seals and opens packets: AES-GCM is
computed here, other ciphers by paramiko.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from cryptography.exceptions import InvalidTag
from paramiko.message import Message
from paramiko.packet import NeedRekeyException, Packetizer
from paramiko.ssh_exception import SSHException

from connmgr.plugin import ByteStream
from connmgr_ssh.reading import SharedReader

READ_BYTES = 192 * 1024
SMALL_READ_BYTES = 16 * 1024
KEPT_BYTES = 40 * 1024
"""Room for the beginning of a packet; OpenSSH's have 32 KiB of data."""

REST_SECONDS = 0.05
"""A link's own thread reads on for so long before it lets the shared one read: more often comes at once."""

FEWEST_PIECES, MOST_PIECES = 3, 999
"""Pieces that one sendmsg() writes (IOV_MAX is 1024); fewer or more are joined."""
PREAMBLE_BYTES = 256 * 1024
"""Bytes that a peer may send before its version line."""
MAX_PACKET_BYTES = 256 * 1024
"""Largest packet, as in OpenSSH; paramiko would allocate whatever a peer announces."""
MAX_SILENCES = 3
"""Consecutive silent intervals after which a peer counts as gone."""

CIPHER_BLOCK_BYTES = 16
TAG_BYTES = 16
MIN_PADDING_BYTES = 4
_BYTES = [bytes((value,)) for value in range(MIN_PADDING_BYTES + CIPHER_BLOCK_BYTES)]

Payload = Sequence[bytes | memoryview]
"""A message, in pieces."""

# CLOCK_MONOTONIC stands still while Linux sleeps (clock_gettime(2)): after a night the peer would not count as silent.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


def now() -> float:
    """Return the seconds of a clock that runs on while this machine sleeps, if the system has such a clock."""
    return time.clock_gettime(_CLOCK)


class Wire:
    """A socket or a similar stream, which reads ahead, writes in large pieces, and detects silence.

    ``interval`` is the seconds that a read or write waits before it raises :class:`TimeoutError`; None waits for ever.
    """

    def __init__(self, stream: ByteStream, interval: float | None) -> None:
        self._stream = stream
        self._ahead: bytes | memoryview = b""
        self._buffer = bytearray()
        self._position = 0
        self._size = SMALL_READ_BYTES
        self._closed = False  # the name that paramiko uses
        self._since = now()
        self.silences = 0
        """Consecutive intervals without a sign of life."""

        self.interval = interval
        self._read_interval = interval
        self.allowance: int | None = PREAMBLE_BYTES
        self.socket = stream if isinstance(stream, socket.socket) else None
        # Calling poll() only if a read or write would block saves a system call each time.
        stream.settimeout(0.0 if self.socket else interval)
        # A server with Nagle's algorithm, such as sshd during the set-up, waits for our ACKs, and Linux delays ACKs.
        self.hasty = _QUICKACK is not None
        self.lags = False
        """Whether a write keeps data that the peer does not accept, instead of waiting; set by the sending thread."""

        self._behind = b""

    def until_silence(self) -> float | None:
        """Return the seconds until an interval without a sign of life has passed; None for never."""
        return self._since + self.interval - now() if self.interval else None

    def read_without_limit(self) -> None:
        """Let reads of a socket wait for ever from now on: another thread counts the silences, and closes the wire."""
        self._read_interval = None

    @property
    def overdue(self) -> bool:
        """Whether the peer was silent for longer than an interval."""
        left = self.until_silence()
        return left is not None and (self.silences > 0 or left < 0)

    def count_silence(self) -> bool:
        """Count the interval as silent if nothing came in it; return whether it was counted."""
        # Data may have come after the wait ended and before this thread ran, such as on a machine that was asleep.
        if self.socket and awaits(self.socket, select.POLLIN, 0):
            return False
        self.silences += 1
        self._since = now()
        return True

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream; paramiko calls this.

        :raises TimeoutError: none came within the interval.
        :raises OSError: the peer exceeds :data:`PREAMBLE_BYTES`.
        """
        if size > MAX_PACKET_BYTES:
            raise OSError(errno.EMSGSIZE, "the peer announced too large a packet")
        try:
            while not self.buffered:
                if self.socket and not awaits(self.socket, select.POLLIN, self._read_interval):
                    self.silences += 1
                    raise TimeoutError("The peer is silent.")
                self.fill()
        except EOFError:
            return b""
        return bytes(self.take(min(size, self.buffered)))

    @property
    def buffered(self) -> int:
        """The number of bytes read ahead."""
        return len(self._ahead) - self._position

    def peek(self, size: int) -> bytes:
        """Return the first ``size`` bytes read ahead, or fewer."""
        return bytes(self._ahead[self._position : self._position + size])

    def take(self, size: int) -> memoryview:
        """Remove ``size`` bytes from those read ahead, and return them."""
        position = self._position
        self._position += size
        return memoryview(self._ahead)[position : self._position]

    def cut(self, skip: int, size: int) -> memoryview | None:
        """Remove ``skip`` bytes and the ``size`` bytes after them, and return these; None if not all are read ahead."""
        start = self._position + skip
        if start + size > len(self._ahead):
            return None
        self._position = start + size
        return memoryview(self._ahead)[start : start + size]

    def fill(self) -> None:
        """Read ahead what has arrived, perhaps nothing; wait if the stream is not a socket.

        :raises EOFError: the stream has ended.
        :raises TimeoutError: nothing came within the interval.
        """
        try:
            if self.hasty and self.socket and _QUICKACK is not None:
                # Before each read, because the kernel leaves this mode by itself (tcp(7), TCP_QUICKACK).
                self.socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            size = self._read_much(self.socket) if self.socket and self._size == READ_BYTES else self._read_little()
        except BlockingIOError:
            return
        except TimeoutError:
            self.silences += 1
            raise
        if not size:
            raise EOFError
        self._since, self.silences = now(), 0
        # A large buffer is costly, and a small one needs many calls for much data.
        self._size = READ_BYTES if size >= SMALL_READ_BYTES else SMALL_READ_BYTES
        if self.allowance is not None:
            self.allowance -= size
            if self.allowance < 0:
                raise OSError(errno.EMSGSIZE, "the peer sends text without an SSH version line")

    def _read_little(self) -> int:
        piece = self._stream.recv(self._size)
        self._ahead, self._position = b"".join((self._ahead[self._position :], piece)), 0
        self._buffer = bytearray()
        return len(piece)

    def _read_much(self, stream: socket.socket) -> int:
        """Read into a lasting buffer, behind the beginning of a packet that is there: to join two would copy all."""
        kept = self._ahead[self._position :]
        if len(self._buffer) < len(kept) + READ_BYTES:
            self._buffer = bytearray(max(len(kept), KEPT_BYTES) + READ_BYTES)
        room = memoryview(self._buffer)
        room[: len(kept)] = kept
        # Set before reading, which may raise: they were moved.
        self._ahead, self._position = room[: len(kept)], 0
        size = stream.recv_into(room[len(kept) : len(kept) + READ_BYTES])
        self._ahead = room[: len(kept) + size]
        return size

    def comes_within(self, seconds: float) -> bool:
        """Wait for data, or the end, of a socket; return False after so many seconds."""
        return self.socket is None or awaits(self.socket, select.POLLIN, seconds)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return -1 if self.socket is None else self.socket.fileno()

    @property
    def reads_much(self) -> bool:
        """Whether the last read was a large one."""
        return self._size == READ_BYTES

    def read_more(self) -> bool:
        """Wait for data and read it ahead; return False after an interval without a sign of life.

        :raises EOFError: the stream has ended.
        """
        try:
            if self.socket and not awaits(self.socket, select.POLLIN, self._read_interval) and self.count_silence():
                return False
            self.fill()
        except TimeoutError:
            return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether data is kept that the peer did not accept."""
        return bool(self._behind)

    def send_all(self, pieces: Sequence[bytes]) -> None:
        """Write ``pieces`` in their order, after the data kept from earlier writes.

        :raises OSError: the peer accepted nothing for :data:`MAX_SILENCES` intervals, or is gone.
        """
        sent = first = 0
        if self._behind and not self.lags:
            pieces, self._behind = [self._behind, *pieces], b""
        if self.socket and not self._behind and FEWEST_PIECES <= len(pieces) <= MOST_PIECES:
            # Joining a large message would cost as much as sending it.
            with suppress(BlockingIOError):
                sent = self.socket.sendmsg(pieces)
            while first < len(pieces) and sent >= len(pieces[first]):
                sent -= len(pieces[first])
                first += 1
        rest = memoryview(b"".join(pieces[first:]))[sent:]
        while rest:
            rest = rest[self.send(rest) :]

    def _offer(self, data: bytes | memoryview) -> None:
        """Write as much as the peer accepts at once, and keep the rest."""
        rest = memoryview(data)
        # A stream without send_now() is left to a thread that may wait.
        send = self._stream.send if self.socket else getattr(self._stream, "send_now", None)
        with suppress(BlockingIOError, TimeoutError):
            while rest and send is not None and not self._behind:
                rest = rest[send(rest) :]
        if rest:
            self._behind = b"".join((self._behind, rest))

    def send(self, data: bytes | memoryview) -> int:
        """Write some of ``data``, after the data kept from earlier writes, and return the number of bytes written.

        :raises OSError: the peer accepted nothing for :data:`MAX_SILENCES` intervals, or is gone.
        """
        if self.lags:
            self._offer(data)
            return len(data)
        rest, self._behind = memoryview(self._behind), b""
        while rest:
            rest = rest[self._send(rest) :]
        return self._send(data)

    def _send(self, data: bytes | memoryview) -> int:
        silences = 0
        while silences < MAX_SILENCES:
            try:
                return self._stream.send(data)
            except BlockingIOError:
                silences += self.socket is None or not awaits(self.socket, select.POLLOUT, self.interval)
            except TimeoutError:
                silences += 1
        # ECONNABORTED, because paramiko goes on after ETIMEDOUT as if the peer had only been slow.
        raise OSError(errno.ECONNABORTED, "the peer takes no more data")

    @property
    def takes_more(self) -> bool:
        """Whether a small piece can probably be written without waiting."""
        try:
            return self.socket is not None and awaits(self.socket, select.POLLOUT, 0)
        except OSError:
            return True

    def settimeout(self, timeout: float | None) -> None:
        """Ignore paramiko's interval of 0.1 s, which would wake the thread ten times a second."""

    def close(self) -> None:
        """End the stream, which wakes its readers and writers."""
        self._closed = True
        if self.socket:
            # The descriptor stays open until release(): another thread may be about to use its number.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self._stream.close()

    def release(self) -> None:
        """Close the descriptor, once no thread uses it."""
        self.close()
        self._stream.close()


def awaits(of: socket.socket, event: int, timeout: float | None) -> bool:
    """Wait for ``event``, one of poll's, or for the peer's end; return False after ``timeout`` seconds.

    :raises OSError: the socket is closed.
    """
    poll = select.poll()
    try:
        poll.register(of, event)
    except ValueError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    return bool(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))


class Aead(Protocol):
    """The part of the cryptography package's AESGCM that is used."""

    def encrypt(self, nonce: bytes, data: bytes, aad: bytes, /) -> bytes: ...
    def decrypt(self, nonce: bytes, data: memoryview, aad: bytes, /) -> bytes: ...


class Nonces:
    """The nonces of one direction of AES-GCM (RFC 5647, section 7.1): a fixed field and a packet counter."""

    def __init__(self, first: bytes) -> None:
        self._fixed, self._counter = struct.unpack(">4sQ", first)

    def next(self) -> bytes:
        """Return the next packet's nonce."""
        nonce = struct.pack(">4sQ", self._fixed, self._counter)
        self._counter = (self._counter + 1) % 2**64
        return nonce


class Packets(Packetizer):
    """paramiko's packet layer without a timer thread.

    ``deliver`` is called with each packet decrypted here; if it returns False, paramiko gets the packet.
    ``may_rekey()`` tells whether a key exchange may begin: not during another one, nor during the login.

    New keys are due after REKEY_BYTES either way (RFC 4253, section 9: after each gigabyte). Only the reading thread
    can begin the exchange, since it handles the answers; while it lasts, nothing but its messages may be sent
    (:mod:`connmgr_ssh.link`).
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(cast(socket.socket, wire))
        self._wire = wire
        # A writer may hold it while its socket is full; the threads that watch the peer therefore call try_send().
        self._sending = threading.RLock()
        self._sealing: tuple[Aead, Nonces] | None = None
        self._opening: tuple[Aead, Nonces] | None = None
        self._padding = b""
        self._sent = self._received = 0
        self._bytes_sent = self._bytes_received = 0
        self.deliver: Callable[[memoryview], bool] = lambda _: False
        self.when_all_read: Callable[[], None] = lambda: None
        """Called when no complete packet is left of what has been read."""

        self.deliver_at_once: Callable[[memoryview], bool] = lambda _: False
        """As ``deliver``, but called in :attr:`reader`'s thread: it never waits, nor sends."""

        self.reader: SharedReader | None = None
        """Reads for the link's own thread while little comes."""

        self._undelivered: memoryview | None = None
        self._failure: BaseException | None = None
        self.may_rekey: Callable[[], bool] = lambda: False
        self.when_silent: Callable[[], None] = lambda: None
        self.greeting = ""
        """The first line of the peer: its version, or what it says before that."""

    def readline(self, timeout: float) -> str:
        line = str(super().readline(timeout))
        self.greeting = self.greeting or line.strip()
        return line

    # Attributes that paramiko sets.

    def set_outbound_cipher(self, *args: Any, **options: Any) -> None:
        super().set_outbound_cipher(*args, **options)
        self._bytes_sent = 0
        # Many packets share the padding: encryption makes it differ, and os.urandom would release the interpreter lock.
        self._padding = os.urandom(MIN_PADDING_BYTES + CIPHER_BLOCK_BYTES)
        self._sealing = _aead(options, "iv_out")
        if self._sealing is None:
            self._count_on("out", self._sent)

    def set_inbound_cipher(self, *args: Any, **options: Any) -> None:
        super().set_inbound_cipher(*args, **options)
        self._bytes_received = 0
        self._opening = _aead(options, "iv_in")
        if self._opening is None:
            self._count_on("in", self._received)

    def _count_on(self, direction: str, number: int) -> None:
        # paramiko did not count the packets handled here, and its MACs include their numbers.
        setattr(self, f"_Packetizer__sequence_number_{direction}", number % 2**32)

    def reset_seqno_out(self) -> None:
        super().reset_seqno_out()
        self._sent = 0

    def reset_seqno_in(self) -> None:
        super().reset_seqno_in()
        self._received = 0

    def start_handshake(self, timeout: float) -> None:
        """Start no timer: the caller that opens the link closes it at its deadline."""

    def _check_keepalive(self) -> None:
        self.when_silent()

    # Sending.

    def send_message(self, data: Message) -> None:
        self.send(((data.asbytes(),),))

    def send(self, payloads: Iterable[Payload]) -> None:
        """Send messages, with one system call if possible; a failure ends the link.

        :raises EOFError: the peer is gone, or accepted nothing for too long.
        """
        with self._sending:
            try:
                self._send(payloads)
            except (OSError, EOFError) as error:
                # The next sender would wait as long.
                self._wire.close()
                raise EOFError from error

    def _send(self, payloads: Iterable[Payload]) -> None:
        if not payloads:
            self._wire.send_all(())
        elif self._sealing is None:
            for payload in payloads:
                super().send_message(Message(b"".join(payload)))
                self._sent += 1
        else:
            self._send_all([piece for payload in payloads for piece in self._sealed(payload, *self._sealing)])

    def offer(self, payloads: Iterable[Payload]) -> None:
        """Send messages without waiting; data that the peer does not accept now is kept and sent first next time.

        :raises EOFError: the peer is gone.
        """
        with self._sending:
            try:
                self._wire.lags = True
                self._send(payloads)
            except (OSError, EOFError) as error:
                self._wire.close()
                raise EOFError from error
            finally:
                self._wire.lags = False

    def try_send(self, data: Message) -> bool:
        """Send ``data`` as :meth:`offer` does, unless another thread is sending; return whether it was sent.

        :raises EOFError: the peer is gone.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            self.offer(((data.asbytes(),),))
        finally:
            self._sending.release()
        return True

    def _sealed(self, payload: Payload, cipher: Aead, nonces: Nonces) -> tuple[bytes, bytes]:
        # With AES-GCM the length is sent in the clear and only authenticated (RFC 5647, section 7.3). So the padding
        # fills the rest up to a block, without the four bytes of the length that other ciphers count
        # (RFC 4253, section 6).
        size = 1 + sum(map(len, payload))
        padding = CIPHER_BLOCK_BYTES - size % CIPHER_BLOCK_BYTES
        if padding < MIN_PADDING_BYTES:
            padding += CIPHER_BLOCK_BYTES
        head = struct.pack(">I", size + padding)
        # Counted although AES-GCM does not use the number: after new keys a cipher with a MAC may, and RFC 4253 counts
        # on (section 6.4).
        self._sent += 1
        return head, cipher.encrypt(nonces.next(), b"".join((_BYTES[padding], *payload, self._padding[:padding])), head)

    def _send_all(self, pieces: list[bytes]) -> None:
        self._bytes_sent += sum(map(len, pieces))
        self._wire.send_all(pieces)
        if self._bytes_sent >= self.REKEY_BYTES and not self.need_rekey():
            # The reading thread begins the exchange after the next packet from the peer, which makes room for ours.
            self._trigger_rekey()  # type: ignore[attr-defined]

    # Receiving.

    def read_message(self) -> tuple[int, Message]:
        """Return the next packet for paramiko; only the link's own thread calls this."""
        if self._opening is None:
            kind, message = super().read_message()
            self._received += 1
            return kind, message
        while True:
            payload, self._undelivered = self._undelivered, None
            if payload is None:
                payload = self._next(*self._opening)
            if payload is not None:
                if not self.deliver(payload):
                    self.when_all_read()
                    message = Message(payload[1:])
                    message.seqno = (self._received - 1) % 2**32
                    return payload[0], message
                continue
            self.when_all_read()
            if self.need_rekey() and self.may_rekey():
                raise NeedRekeyException
            if self.reader is not None:
                self._read_or_lend(self.reader)
            elif not self._wire.read_more():
                self.when_silent()

    def _read_or_lend(self, reader: SharedReader) -> None:
        """Read what comes soon; let the shared thread read what comes later, until this one has to go on."""
        if self._wire.comes_within(REST_SECONDS):
            self._wire.fill()
        elif not reader.lend(self):
            self.reader = None
        elif self._failure is not None:
            raise self._failure

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._wire.fileno()

    def read_at_once(self) -> bool:
        """Handle what has come, in the thread of :attr:`reader`; return False if the link's own thread is to go on."""
        opening = self._opening
        try:
            self._wire.fill()
            while opening is not None and (payload := self._next(*opening)) is not None:
                if not self.deliver_at_once(payload):
                    self._undelivered = payload
                    return False
            self.when_all_read()
        except BaseException as error:  # noqa: BLE001 - it is the link's, and its own thread raises it
            self._failure = error
            return False
        return not (self._wire.reads_much or self.need_rekey())

    def _next(self, cipher: Aead, nonces: Nonces) -> memoryview | None:
        """Decrypt the next packet and return its payload, or None if it was not read completely."""
        head = self._wire.peek(4)
        if len(head) < 4:
            return None
        # Not authenticated yet: whoever alters it could make us wait for bytes that never come. So it must be possible
        # by itself, and the tag covers it afterwards.
        length = int.from_bytes(head, "big")
        if length > MAX_PACKET_BYTES or length % CIPHER_BLOCK_BYTES or not length:
            raise SSHException("The peer sent a packet of an impossible size")
        sealed = self._wire.cut(len(head), length + TAG_BYTES)
        if sealed is None:
            return None
        try:
            packet = cipher.decrypt(nonces.next(), sealed, head)
        except InvalidTag:
            # The words of paramiko for other ciphers, so that the error is the same for all.
            raise SSHException("Mismatched MAC") from None
        if not MIN_PADDING_BYTES <= packet[0] < length - 1:
            raise SSHException("The peer sent a packet without content")
        payload = memoryview(packet)[1 : length - packet[0]]
        self._count_received(4 + length + TAG_BYTES)
        return payload

    def _count_received(self, size: int) -> None:
        self._received += 1
        self._bytes_received += size
        if self._bytes_received < self.REKEY_BYTES:
            return
        if not self.need_rekey():
            self._trigger_rekey()  # type: ignore[attr-defined]
        elif self._bytes_received >= self.REKEY_BYTES + self.REKEY_BYTES_OVERFLOW_MAX:
            raise SSHException("The peer did not exchange new keys in time")


def _aead(options: Any, nonce: str) -> tuple[Aead, Nonces] | None:
    return (options["block_engine"], Nonces(options[nonce])) if options.get("aead") else None


def packed(data: bytes) -> bytes:
    """Return a string in the encoding of RFC 4251, section 5."""
    return struct.pack(">I", len(data)) + data
