"""No private key of a login stays in memory: a process logs in, and another one looks through all that it has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOGINS = 100

PROGRAM = """
import gc, sys
from connmgr.plugin import CertificateOrder, Deadline, SignedCertificate
from connmgr_ssh import keys
from connmgr_ssh.certificates import check
from connmgr_ssh.signers import OwnAuthority
import time

real = keys.ed25519.Ed25519PrivateKey
masked = []


class Kind(type):
    def __instancecheck__(cls, one):
        return isinstance(one, real)


class Known(metaclass=Kind):
    # Keys whose bytes are known, and in memory only as the library keeps them: our copy is inverted, or wiped.
    @staticmethod
    def generate():
        seed = bytearray(32)
        with open("/dev/urandom", "rb", buffering=0) as source:
            source.readinto(seed)
        masked.append(bytes(255 - byte for byte in seed))
        key = real.from_private_bytes(seed)
        seed[:] = bytes(32)
        return key


authority, public = OwnAuthority().new_authority()
keys.ed25519.Ed25519PrivateKey, patched = Known, keys.ed25519


def log_in():
    key, line = keys.fresh("one login's")
    patched.Ed25519PrivateKey = real
    now = int(time.time())
    order = CertificateOrder(line, "connmgr entry=1", 1, ("me",), now - 300, now + 300, 300, ("permit-pty",))
    text = OwnAuthority().sign(authority, order, timeout=10)
    patched.Ed25519PrivateKey = Known
    identity, _ = check(SignedCertificate(text, order, "team", [public]), key)
    identity.sign(b"what a host is sent", "ssh-ed25519", Deadline(10))
    return identity


for _ in range(int(sys.argv[1])):
    log_in()
kept = log_in()
gc.collect()
print(*(one.hex() for one in masked), flush=True)
sys.stdin.read()
"""


def found_in(pid: int, wanted: list[bytes]) -> set[bytes]:
    """Return those of ``wanted`` that are somewhere in the writable memory of the process."""
    pattern, found = re.compile(b"|".join(map(re.escape, wanted)), re.DOTALL), set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(bound, 16) for bound in span.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                found |= set(pattern.findall(memory.read(end - start)))
    return found


@pytest.mark.needs("linux")
def test_no_key_of_a_login_stays_in_memory() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(LOGINS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        inverted = [bytes.fromhex(word) for word in process.stdout.readline().decode().split()]
        seeds = [bytes(255 - byte for byte in one) for one in inverted]
        found = found_in(process.pid, seeds)
        process.stdin.close()
        assert process.wait(60) == 0
    assert len(seeds) == LOGINS + 1
    # The last login is under way: otherwise nothing could be found, and nothing would be proven.
    assert found == {seeds[-1]}
