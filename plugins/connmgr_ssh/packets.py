"""The packets of SSH (RFC 4253, section 6); AES-GCM is computed here, other ciphers by paramiko."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from cryptography.exceptions import InvalidTag
from paramiko.message import Message
from paramiko.packet import NeedRekeyException, Packetizer
from paramiko.ssh_exception import SSHException

from connmgr_ssh.wire import MAX_PACKET_BYTES, Wire

BLOCK_BYTES = 16
TAG_BYTES = 16
MIN_PADDING_BYTES = 4
_BYTES = [bytes((value,)) for value in range(MIN_PADDING_BYTES + BLOCK_BYTES)]

Payload = Sequence[bytes | memoryview]
"""A message, in pieces."""


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
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__(cast(socket.socket, wire))
        self._wire = wire
        # A writer may hold it while its socket is full; the thread that watches the peer therefore calls try_send().
        self._sending = threading.RLock()
        self._sealing: tuple[Aead, Nonces] | None = None
        self._opening: tuple[Aead, Nonces] | None = None
        self._padding = b""
        self._sent = self._received = 0
        self._bytes_sent = self._bytes_received = 0
        self.deliver: Callable[[bytes], bool] = lambda _: False
        self.may_rekey: Callable[[], bool] = lambda: False
        self.when_silent: Callable[[], None] = lambda: None

    # Attributes that paramiko sets.

    def set_outbound_cipher(self, *args: Any, **options: Any) -> None:
        super().set_outbound_cipher(*args, **options)
        self._bytes_sent = 0
        # Many packets share the padding: encryption makes it differ, and os.urandom would release the interpreter lock.
        self._padding = os.urandom(MIN_PADDING_BYTES + BLOCK_BYTES)
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
        """Send ``data`` unless another thread is sending; return whether it was sent."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            self.send_message(data)
        finally:
            self._sending.release()
        return True

    def _sealed(self, payload: Payload, cipher: Aead, nonces: Nonces) -> tuple[bytes, bytes]:
        size = 1 + sum(map(len, payload))
        padding = BLOCK_BYTES - size % BLOCK_BYTES
        if padding < MIN_PADDING_BYTES:
            padding += BLOCK_BYTES
        head = struct.pack(">I", size + padding)
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
            payload = self._next(*self._opening)
            if payload is not None:
                if not self.deliver(payload):
                    message = Message(payload[1:])
                    message.seqno = (self._received - 1) % 2**32
                    return payload[0], message
            elif self.need_rekey() and self.may_rekey():
                raise NeedRekeyException
            elif not self._wire.read_more():
                self.when_silent()

    def _next(self, cipher: Aead, nonces: Nonces) -> bytes | None:
        """Decrypt the next packet and return its payload, or None if it was not read completely."""
        head = self._wire.peek(4)
        if len(head) < 4:
            return None
        length = int.from_bytes(head, "big")
        if length > MAX_PACKET_BYTES or length % BLOCK_BYTES or not length:
            raise SSHException("The peer sent a packet of an impossible size")
        sealed = self._wire.cut(len(head), length + TAG_BYTES)
        if sealed is None:
            return None
        try:
            packet = cipher.decrypt(nonces.next(), sealed, head)
        except InvalidTag:
            raise SSHException("Mismatched MAC") from None
        if not MIN_PADDING_BYTES <= packet[0] < length - 1:
            raise SSHException("The peer sent a packet without content")
        payload = packet[1 : length - packet[0]]
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
            raise SSHException("The peer ignores that new keys are due")


def _aead(options: Any, nonce: str) -> tuple[Aead, Nonces] | None:
    return (options["block_engine"], Nonces(options[nonce])) if options.get("aead") else None
