"""The programs that gather facts: in every shell that may be /bin/sh, and what they may print."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.cancellation import Cancellation
from connmgr.engine.rpc import Helpers
from connmgr.errors import CommandCancelled, FactsFailed
from connmgr.facts.gathering import MAX_BYTES, OWN_PARTS, ask, part_of_plugin, read_facts
from connmgr.plugin import Deadline, FactProgram
from connmgr_local.transport import LocalTransport
from tests.fs.remote_hosts import SHELLS, Elsewhere, busybox_tools, shell_called_sh

LONG = 60.0
"""Seconds within which everything here happens, on a busy machine too."""


@pytest.fixture(params=SHELLS)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    """This machine, with another shell as /bin/sh and, for busybox, with its tools alone."""
    tools = busybox_tools(tmp_path) if request.param == "busybox" else os.environ["PATH"]
    place = Elsewhere(shell_called_sh(tmp_path, request.param), tools, tmp_path)
    yield place
    place.close()


@pytest.fixture
def here() -> Iterator[LocalTransport]:
    transport = LocalTransport()
    yield transport
    transport.close()


@pytest.mark.needs("linux")
def test_every_shell_tells_the_same_about_the_system(there: Elsewhere) -> None:
    helpers = Helpers()
    facts = ask(there, helpers, OWN_PARTS["system"], Deadline(LONG))
    again = ask(there, helpers, OWN_PARTS["system"], Deadline(LONG))
    helpers.close()
    name = os.uname()
    told = {fact: facts[fact] for fact in ("arch", "kernel", "host.name", "os.type")}
    assert told == {"arch": name.machine, "kernel": name.release, "host.name": name.nodename, "os.type": name.sysname}
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    assert facts["os.id"] == release["ID"].strip('"')
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert facts["memory.total"] == total
    assert 0 < int(facts["uptime"]) <= int(again["uptime"])


@pytest.mark.needs("linux")
@pytest.mark.skipif(not Path("/var/lib/dpkg/status").exists(), reason="this system's packages are not dpkg's")
def test_packages_have_their_versions(here: LocalTransport) -> None:
    helpers = Helpers()
    facts = ask(here, helpers, OWN_PARTS["package"], Deadline(LONG))
    helpers.close()
    form = "${db:Status-Status} ${Package} ${Version}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True).stdout
    rows = [line.split(" ") for line in listed.splitlines()]
    installed = {f"package.{name}": version for status, name, version in rows if status == "installed"}
    assert facts.items() <= {**facts, **installed}.items()
    assert facts.keys() == installed.keys()


def of_plugin(here: LocalTransport, script: str, seconds: float = LONG) -> dict[str, str | int]:
    helpers = Helpers()
    try:
        return ask(here, helpers, part_of_plugin(FactProgram("acme", script)), Deadline(seconds))
    finally:
        helpers.close()


def test_a_plugin_prints_names_and_values(here: LocalTransport) -> None:
    script = (
        "echo role=db; echo 'n=12'; echo 'quoted='\"'it'\\''s \\\"x\\\"'\"; echo; echo nothing; echo long=$(seq 1000)"
    )
    found = of_plugin(here, script)
    assert found["acme.role"] == "db"
    assert found["acme.n"] == 12
    assert found["acme.quoted"] == "'it'\\''s \"x\"'"
    assert len(str(found["acme.long"])) == 255
    assert len(found) == 4


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("yes a=b", LONG, "printed more than 1 MiB and was ended"),
        ("head -c 10000000 /dev/zero", LONG, "printed more than 1 MiB and was ended"),
        ("echo a=b; sleep 1000", 1.0, "took too long and was ended"),
        ("while :; do echo a=b; sleep 0.1; done", 1.0, "took too long and was ended"),
        ("echo a=b; exit 3", LONG, "failed there"),
        ("if", LONG, "failed there"),
    ],
)
def test_a_program_out_of_bounds_is_ended(here: LocalTransport, script: str, seconds: float, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(FactsFailed, match=reason):
        of_plugin(here, script, seconds)
    assert time.monotonic() - began < LONG


def test_a_cancelled_program_is_ended(here: LocalTransport) -> None:
    cancellation = Cancellation()

    class Cancels(Deadline):
        """Cancels the work as soon as it waits."""

        def left(self, least: float = 0.0) -> float:
            cancellation.cancel()
            return super().left(least)

    helpers = Helpers()
    part = part_of_plugin(FactProgram("acme", "sleep 1000"))
    with pytest.raises(CommandCancelled):
        ask(here, helpers, part, Cancels(LONG), cancellation)
    helpers.close()


def test_a_machine_tells_only_about_itself() -> None:
    lies = b"env=prod\npackage.openssl=9\nos.id=debian\nacme.role=x\nos.evil=1\nuptime=many\ncpu.count=4K\n"
    lies += b"disk./a b.free=1\n"
    assert read_facts("system", lies) == {"os.id": "debian", "cpu.count": 4096}
    assert read_facts("package", b"openssl=1:3.0\n\x1b[31m=1\nkernel=5\n") == {
        "package.openssl": "1:3.0",
        "package.kernel": "5",
    }
    assert read_facts("acme", "a=\x1b[31mré\n".encode()) == {"acme.a": "?[31mré"}
    assert read_facts("acme", b"\xff=1\nb=\xff\n") == {"acme.b": "\N{REPLACEMENT CHARACTER}"}
    with pytest.raises(FactsFailed, match="more than 20,000 lines"):
        read_facts("acme", b"a=1\n" * 20_001)
    assert len(b"a=1\n" * 20_001) < MAX_BYTES
