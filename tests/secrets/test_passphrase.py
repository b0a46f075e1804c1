"""Keys from passphrases: parameters are checked before memory is allocated, and derivations take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unicodedata

import pytest
from nacl.pwhash import argon2id

from connmgr.errors import Busy, IntegrityError, InvalidRequest, UnlockThrottled
from connmgr.secrets.passphrases import (
    CEILING,
    LOW_PRIORITY,
    MODERATE,
    Cost,
    KeyDerivation,
    check_cost,
    check_new_passphrase,
    new_salt,
)
from tests.deadlines import DEADLINE_SECONDS

SALT = bytes(16)


def test_the_floor_is_what_libsodium_calls_moderate() -> None:
    assert Cost(3, 256 << 20) == MODERATE


def test_the_result_depends_on_passphrase_and_salt_but_not_on_composition() -> None:
    derivation = KeyDerivation()
    composed = unicodedata.normalize("NFC", "g\u0308ru\u0308ße und Schlüssel")
    first = derivation.derive(composed, SALT, MODERATE)
    assert len(first) == 32
    assert derivation.derive(unicodedata.normalize("NFD", composed), SALT, MODERATE) == first
    assert derivation.derive(composed, new_salt(), MODERATE) != first


@pytest.mark.parametrize(
    ("cost", "salt"),
    [
        (Cost(1, MODERATE.memlimit), SALT),
        (Cost(2, MODERATE.memlimit), SALT),
        (Cost(MODERATE.opslimit, MODERATE.memlimit - 1), SALT),
        (Cost(MODERATE.opslimit, 8192), SALT),
        (Cost(0, 0), SALT),
        (Cost(-1, -1), SALT),
        (Cost(CEILING.opslimit + 1, MODERATE.memlimit), SALT),
        (Cost(2**63 - 1, MODERATE.memlimit), SALT),
        (Cost(MODERATE.opslimit, CEILING.memlimit + 1), SALT),
        (Cost(MODERATE.opslimit, 2**63 - 1), SALT),
        (MODERATE, b""),
        (MODERATE, bytes(15)),
        (MODERATE, bytes(17)),
    ],
)
def test_downgraded_and_absurd_parameters_are_refused(cost: Cost, salt: bytes) -> None:
    with pytest.raises(IntegrityError, match="changed outside"):
        check_cost(cost, salt)


def test_excessive_costs_are_refused_before_memory_is_allocated() -> None:
    """Run in a process with less memory than an honest derivation needs."""
    script = """
import resource
from connmgr.errors import Busy, IntegrityError
from connmgr.secrets.passphrases import MODERATE, Cost, KeyDerivation
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
derivation = KeyDerivation()
try:
    derivation.derive("passphrase", bytes(16), MODERATE)
except Busy as busy:
    print("honest:", busy.message)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for cost in (Cost(3, 1 << 40), Cost(1 << 40, 256 << 20), Cost(3, (1 << 30) + 1)):
    try:
        derivation.derive("passphrase", bytes(16), cost)
    except IntegrityError as error:
        print("refused")
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("honest: Checking a passphrase needs 256 MiB"), result
    assert lines[1:4] == ["refused"] * 3, result
    assert int(lines[4].split()[1]) < 1024, f"{lines[4]} KiB"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is a process's")
@pytest.mark.parametrize("allowance", ["of_token", "may_wait"])
def test_a_derivation_that_may_wait_lets_other_work_go_first(monkeypatch: pytest.MonkeyPatch, allowance: str) -> None:
    nice = []

    def kdf(*_: object) -> bytes:
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return bytes(32)

    monkeypatch.setattr(argon2id, "kdf", kdf)
    derivation, before = KeyDerivation(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    derivation.derive("passphrase", SALT, MODERATE)
    derivation.derive("passphrase", SALT, MODERATE, **{allowance: True})
    derivation.derive("passphrase", SALT, MODERATE)
    assert nice == [before, max(before, LOW_PRIORITY), before]


def test_a_derivation_in_another_thread_fails_as_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def kdf(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(argon2id, "kdf", kdf)
    with pytest.raises(Busy, match="256 MiB"):
        KeyDerivation().derive("passphrase", SALT, MODERATE, may_wait=True)


def test_derivations_take_turns_and_a_full_queue_is_refused() -> None:
    derivation = KeyDerivation(deadline=0.05, queue=1)
    derivation._turn.acquire()
    refusals: list[str] = []

    def attempt() -> None:
        with pytest.raises(UnlockThrottled) as refusal:
            derivation.derive("passphrase", SALT, MODERATE)
        refusals.append(refusal.value.code)

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert refusals == ["unlock_throttled"] * 6
    derivation._turn.release()
    assert len(derivation.derive("passphrase", SALT, MODERATE)) == 32


@pytest.mark.parametrize("passphrase", ["", "short", "x" * 7, "x" * 1025])
def test_a_new_passphrase_that_is_too_short_or_too_long_is_refused(passphrase: str) -> None:
    with pytest.raises(InvalidRequest, match="8 to 1024") as refusal:
        check_new_passphrase(passphrase)
    assert not passphrase or passphrase not in refusal.value.message
