"""A client of ssh-agent (draft-ietf-sshm-ssh-agent) in which every wait has a deadline."""

from __future__ import annotations

import socket
import struct

from paramiko.message import Message

from connmgr.errors import AuthFailed
from connmgr.plugin import Deadline
from connmgr_ssh.algorithms import CERTIFICATE
from connmgr_ssh.keys import Identity, Sign
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.stream import packed

_REQUEST_IDENTITIES, _IDENTITIES = 11, 12
_SIGN, _SIGNATURE = 13, 14
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}
_MAX_ANSWER_BYTES = 256 * 1024


class Agent:
    """The agent behind a Unix socket; each request opens and closes its own connection."""

    def __init__(self, path: str) -> None:
        self._path = path

    def identities(self, deadline: Deadline) -> list[Identity]:
        """Return the keys of the agent, certificates first.

        :raises AuthFailed: the agent cannot be asked.
        """
        answer = self._ask(bytes([_REQUEST_IDENTITIES]), _IDENTITIES, deadline)
        found = []
        for _ in range(answer.get_int()):
            blob, comment = answer.get_binary(), answer.get_text()
            public = HostKey(Message(blob).get_text(), blob)
            found.append(Identity(f"agent key {comment}", public, self._signer(blob)))
        return sorted(found, key=lambda identity: CERTIFICATE not in identity.public.type)

    def _signer(self, blob: bytes) -> Sign:
        def sign(data: bytes, algorithm: str, deadline: Deadline) -> bytes:
            flags = struct.pack(">I", _FLAGS.get(algorithm.replace(CERTIFICATE, ""), 0))
            request = bytes([_SIGN]) + packed(blob) + packed(data) + flags
            return self._ask(request, _SIGNATURE, deadline).get_binary()

        return sign

    def _ask(self, request: bytes, expected: int, deadline: Deadline) -> Message:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(0.001, deadline.left()))
                connection.connect(self._path)
                connection.sendall(packed(request))
                (size,) = struct.unpack(">I", _receive(connection, 4, deadline))
                answer = _receive(connection, min(size, _MAX_ANSWER_BYTES), deadline)
        except OSError as error:
            raise AuthFailed(f"The ssh-agent cannot be asked: {error.strerror or error}.") from error
        if not answer or answer[0] != expected:
            raise AuthFailed("The ssh-agent refused: it may be locked, or the use of the key was not confirmed.")
        return Message(answer[1:])


def _receive(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline.left()))
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return bytes(data)
