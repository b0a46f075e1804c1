"""A client of ssh-agent (draft-ietf-sshm-ssh-agent) in which every wait has a deadline."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

from connmgr.errors import AuthFailed
from connmgr.plugin import ByteStream, Deadline, connect_unix
from connmgr_ssh.channels import TcpStream
from connmgr_ssh.keys import CERTIFICATE, Identity, Sign
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.packets import packed

log = logging.getLogger("connmgr_ssh")

MAX_CLIENTS = 16
"""Most programs of the remote host that speak with the forwarded agent at the same time."""

ANSWER_SECONDS = 120.0
"""Longest wait for an agent on behalf of the remote host; its user may have to confirm."""

_REQUEST_IDENTITIES, _IDENTITIES = 11, 12
_SIGN, _SIGNATURE = 13, 14
# Without a flag an agent signs by an RSA key with SHA-1 (draft-ietf-sshm-ssh-agent, section 3.6.1).
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
_MAX_ANSWER_BYTES = 256 * 1024


class AgentClient:
    """An agent that ``connect`` connects to within a number of seconds; each request has its own connection.

    ``name`` is what messages call it.
    """

    def __init__(
        self,
        connect: Callable[[float], socket.socket],
        name: str = "The ssh-agent",
        touch: Callable[[], None] = lambda: None,
    ) -> None:
        """``touch`` is called before a security key is to sign (FIDO2): most of them wait for a touch then."""
        self.connect = connect
        self._name = name
        self._touch = touch

    @classmethod
    def at(cls, path: str, touch: Callable[[], None] = lambda: None) -> AgentClient:
        """Return the agent behind the Unix socket ``path``."""
        return cls(partial(connect_unix, path), touch=touch)

    def identities(self, deadline: Deadline) -> list[Identity]:
        """Return the keys of the agent, certificates first: a host that trusts the authority knows no bare key.

        :raises AuthFailed: the agent cannot be asked, or its answer is malformed.
        """
        answer = self._ask(bytes([_REQUEST_IDENTITIES]), _IDENTITIES, deadline)
        identities = []
        try:
            fields = _strings(answer[4:], 2 * int.from_bytes(answer[:4], "big"))
            for blob, comment in zip(fields, fields, strict=True):
                public = HostKey(next(_strings(blob, 1)).decode("ascii"), blob)
                name = f"agent key {comment.decode(errors='replace')}"
                identities.append(Identity(name, public, self._signer(blob, touched=public.of_security_key)))
        except ValueError:
            raise AuthFailed(f"{self._name} sent a malformed list of keys.") from None
        return sorted(identities, key=lambda identity: CERTIFICATE not in identity.public.type)

    def _signer(self, blob: bytes, *, touched: bool) -> Sign:
        def sign(data: bytes, algorithm: str, deadline: Deadline) -> bytes:
            if touched:
                self._touch()
            # For RSA the flags choose the hash; without one an agent signs with SHA-1, which servers refuse.
            flags = struct.pack(">I", _FLAGS.get(algorithm.replace(CERTIFICATE, ""), 0))
            request = bytes([_SIGN]) + packed(blob) + packed(data) + flags
            try:
                return next(_strings(self._ask(request, _SIGNATURE, deadline), 1))
            except ValueError:
                raise AuthFailed(f"{self._name} sent a malformed signature.") from None

        return sign

    def _ask(self, request: bytes, expected: int, deadline: Deadline) -> bytes:
        try:
            with self.connect(max(0.001, deadline.left())) as connection:
                connection.sendall(packed(request))
                answer = _message(connection, deadline)
        except OSError as error:
            raise AuthFailed(f"{self._name} does not answer: {error.strerror or error}.") from error
        if not answer or answer[0] != expected:
            raise AuthFailed(f"{self._name} refused: it may be locked, or the use of the key was not confirmed.")
        return answer[1:]


def _strings(data: bytes, count: int) -> Iterator[bytes]:
    """Yield ``count`` strings of SSH (RFC 4251, section 5).

    :raises ValueError: there are fewer.
    """
    # Not by paramiko's Message, which pads missing bytes with zeros.
    at = 0
    for _ in range(count):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
        if not start <= at <= len(data):
            raise ValueError("a string that is cut off")
        yield data[start:at]


def _message(source: ByteStream, deadline: Deadline) -> bytes:
    """Return the next message of an agent, or of its client; empty at the end of the stream.

    :raises OSError: it is too long, or the stream ends within it.
    """
    head = _receive(source, 4, deadline)
    if not head:
        return b""
    (size,) = struct.unpack(">I", head)
    if not 0 < size <= _MAX_ANSWER_BYTES:
        raise OSError(f"a message of {size} bytes")
    return _receive(source, size, deadline) or _cut_off()


def _receive(source: ByteStream, size: int, deadline: Deadline) -> bytes:
    data = bytearray()
    while len(data) < size:
        source.settimeout(max(0.001, deadline.left()))
        piece = source.recv(size - len(data))
        if not piece:
            return _cut_off() if data else b""
        data += piece
    return bytes(data)


def _cut_off() -> NoReturn:
    raise ConnectionResetError("it closed the connection")


class ForwardedAgent:
    """Carries the requests of programs on the remote host to ``agent``: at most :data:`MAX_CLIENTS` at a time.

    An agent and its client take turns, so one thread serves a channel.
    """

    def __init__(self, agent: AgentClient, host: str) -> None:
        self._agent = agent
        self._host = host
        self._room = threading.BoundedSemaphore(MAX_CLIENTS)

    def takes(self) -> bool:
        """Whether one more channel may come; :meth:`serve` it then."""
        return self._room.acquire(blocking=False)

    def serve(self, stream: TcpStream) -> None:
        """Serve a channel in a thread of its own, until it ends."""
        log.info("%s uses the forwarded ssh-agent", self._host)
        threading.Thread(target=self._serve, args=(stream,), name="ssh-agent", daemon=True).start()

    def _serve(self, stream: TcpStream) -> None:
        try:
            with self._agent.connect(ANSWER_SECONDS) as connection:
                # Without a deadline: the program there holds its channel open between two signatures.
                while request := _message(stream, Deadline(threading.TIMEOUT_MAX)):
                    connection.sendall(packed(request))
                    # The agent may ask its user to confirm (ssh-add -c).
                    stream.sendall(packed(_message(connection, Deadline(ANSWER_SECONDS)) or _cut_off()))
        except (OSError, EOFError) as error:
            log.info("The forwarded ssh-agent does not answer %s: %s", self._host, error)
        finally:
            stream.close()
            self._room.release()
