"""No private key of a login stays in memory: a daemon logs in, and another process looks through all that it has."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from connmgr.client import Client
from tests.conftest import StartDaemon
from tests.deadlines import eventually
from tests.plugins.sshd import keygen
from tests.signers.conftest import Host

LOGINS = 100
UNDER_WAY = 4
"""Logins whose keys are still needed."""


def memory_of(pid: int) -> list[bytes]:
    """Return the writable memory of a process, piece by piece, as a core dump has it."""
    pieces = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(bound, 16) for bound in span.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                pieces.append(memory.read(end - start))
    return pieces


def seeds_in(pieces: list[bytes]) -> set[bytes]:
    """Return all that could be the 32 bytes of a private key, as libraries and messages align it.

    Seven of eight keys have no byte that is zero; nearly everything else in memory does, or is text.
    """
    seeds = set[bytes]()
    for content in pieces:
        for run in re.finditer(rb"[^\0]{32,}", content):
            for at in range(run.start() + -run.start() % 4, run.end() - 31, 4):
                window = content[at : at + 32]
                if not window.isascii() and len(set(window)) > 22:
                    seeds.add(window)
    return seeds


def fingerprint(public: bytes) -> str:
    """Return the fingerprint of an Ed25519 key, as sshd's log has it."""
    blob = struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 32) + public
    return base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def fingerprint_of(line: str) -> str:
    """Return the fingerprint of a public key as a line of OpenSSH."""
    return fingerprint(base64.b64decode(line.split()[1])[-32:])


@pytest.mark.needs("linux", "sshd", "descriptors")
def test_no_key_of_a_hundred_logins_stays_in_the_daemon(start_daemon: StartDaemon, host: Host, tmp_path: Path) -> None:
    daemon = start_daemon()
    owner = daemon.client
    other = keygen(tmp_path / "authority")
    lines = [*owner.ca.init("team"), other.with_suffix(".pub").read_text().strip()]
    host.trust(lines)
    start = len(host.log())
    connection = owner.connection.add("web1", host.data())
    for _ in range(LOGINS):
        owner.shell.start(connection)
        owner.shell.stop(connection)
    used = set(re.findall(r"ssh2: ED25519-CERT SHA256:(\S+) ID connmgr", host.log()[start:]))
    assert len(used) == LOGINS
    # Some more logins are under way: without their keys nothing would be proven.
    words = '-q -s "$0" -I "$2" -n "$3" -V "+$4s" "$1"'
    script = f'cp "$1" "{tmp_path}/waits-$$" && while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; ssh-keygen {words}'
    argv = ["/bin/sh", "-c", script, str(other), "{public}", "{keyId}", "{principals}", "{seconds}"]
    owner.ca.init("slow", {"type": "command", "argv": argv})
    # Connections with equal data are one.
    waiting = [
        owner.connection.add(f"waits{number}", {**host.data(signer="slow"), "keepAlive": 20 + number})
        for number in range(UNDER_WAY)
    ]
    with ThreadPoolExecutor(UNDER_WAY) as pool, ExitStack() as clients:
        try:
            for each in waiting:
                client = clients.enter_context(Client(daemon.url, auth_file=daemon.auth_file))
                pool.submit(client.shell.start, each)
            eventually(lambda: len(list(tmp_path.glob("waits-*"))) == UNDER_WAY, "the signer is not asked")
            kept = {fingerprint_of(path.read_text()) for path in tmp_path.glob("waits-*")}
            memory = memory_of(daemon.pid)
        finally:
            (tmp_path / "go").touch()
    keys = map(Ed25519PrivateKey.from_private_bytes, seeds_in(memory))
    found = (used | kept).intersection(fingerprint(key.public_key().public_bytes_raw()) for key in keys)
    assert found
    assert found <= kept
