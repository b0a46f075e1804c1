"""An ssh-agent with a FIDO2 key in software: it signs as OpenSSH's PROTOCOL.u2f says, once somebody touches it."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.deadlines import DEADLINE_SECONDS

APPLICATION = b"ssh:"
TOUCHED = 1
"""The flag of a signature for which somebody was there."""


def string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def mpint(number: int) -> bytes:
    return string(number.to_bytes(number.bit_length() // 8 + 1, "big"))


class SecurityKey:
    """A running agent that holds one key in "hardware", which waits for :meth:`touch` before it signs."""

    def __init__(self, kind: str = "sk-ssh-ed25519@openssh.com") -> None:
        self.kind = kind
        if kind.startswith("sk-ssh-ed25519"):
            self._key: Any = ed25519.Ed25519PrivateKey.generate()
            own = string(self._key.public_key().public_bytes_raw())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
            own = string(b"nistp256") + string(point)
        self.blob = string(kind.encode()) + own + string(APPLICATION)
        self.directory = Path(tempfile.mkdtemp(prefix="connmgr-key-"))
        self.socket = self.directory / "agent"
        self.asked = 0
        """How often it was to sign."""
        self._touched = threading.Semaphore(0)
        self._counter = 0
        self._closed = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.socket))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, name="security key")
        self._thread.start()

    @property
    def public(self) -> str:
        """The line for authorized_keys."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()} of-the-tests"

    def touch(self) -> None:
        """Let it sign once."""
        self._touched.release()

    def close(self) -> None:
        """Stop it; logins that wait for a touch fail."""
        self._closed = True
        self._touched.release(8)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(str(self.socket))
        self._thread.join(DEADLINE_SECONDS)
        self._listening.close()
        shutil.rmtree(self.directory)

    def _serve(self) -> None:
        while True:
            client, _ = self._listening.accept()
            if self._closed:
                client.close()
                return
            threading.Thread(target=self._answer_all, args=[client], name="security key", daemon=True).start()

    def _answer_all(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as requests:
            while head := requests.read(4):
                request = requests.read(int.from_bytes(head, "big"))
                try:
                    client.sendall(string(self._answer(request)))
                except OSError:
                    return

    def _answer(self, request: bytes) -> bytes:
        if request[0] == 11:
            return b"\x0c" + struct.pack(">I", 1) + string(self.blob) + string(b"of-the-tests")
        if request[0] != 13 or request[5 : 5 + len(self.blob)] != self.blob:
            return b"\x05"
        rest = request[5 + len(self.blob) :]
        data = rest[4 : 4 + int.from_bytes(rest[:4], "big")]
        self.asked += 1
        self._touched.acquire()
        return b"\x05" if self._closed else b"\x0e" + string(self._signature(data))

    def _signature(self, data: bytes) -> bytes:
        self._counter += 1
        state = bytes([TOUCHED]) + struct.pack(">I", self._counter)
        signed = hashlib.sha256(APPLICATION).digest() + state + hashlib.sha256(data).digest()
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            own = self._key.sign(signed)
        else:
            own = b"".join(map(mpint, decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))))
        return string(self.kind.encode()) + string(own) + state

    def private_file(self) -> Path:
        """Write the file that ssh-keygen makes for such a key: what the hardware needs, and no key."""
        path = self.directory / f"id_{os.urandom(2).hex()}_sk"
        check = os.urandom(4)
        private = (
            check + check + self.blob + bytes([TOUCHED]) + string(b"a handle") + string(b"") + string(b"a comment")
        )
        private += bytes(range(1, 1 + -len(private) % 8))
        head = b"openssh-key-v1\0" + string(b"none") * 2 + string(b"") + struct.pack(">I", 1)
        body = base64.encodebytes(head + string(self.blob) + string(private)).decode()
        path.write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n")
        path.chmod(0o600)
        return path
