"""A far side that prints the worst neither keeps other clients waiting nor fills the daemon's memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon
from tests.fs.wire import Caller
from tests.shell import hostile_shell
from tests.shell.test_shells import LOCAL, add_local

LATEST = 0.1
"""Seconds in which 99 of 100 answers must come to a client that has nothing to do with the far side."""

MOST_MEMORY = 64 << 20
LEAST_ANSWERS = 30

TALKATIVE = f"""#!{sys.executable}
import sys
sys.stdout.write("password" * {(16 << 20) // 8})
"""

# A find that describes many files by little text: 16 MB of them.
PROLIFIC = f"""#!{sys.executable}
import sys
mark = sys.argv[-1].split(" ")[0]
number = 0
while mark and number < {(16 << 20) // 46}:
    print("".join(f"{{mark}} 0=f:0:0:0:0:::/./{{n * 7919 % 1000000}}\\n" for n in range(number, number + 4096)), end="")
    number += 4096
"""


class Bystander:
    """Another client, which asks for the daemon's version all the time, and watches its memory."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = Client(daemon.url, auth_file=daemon.auth_file)
        self._process = psutil.Process(daemon.pid)
        self._over = threading.Event()
        self._before = self._process.memory_info().rss
        self.times: list[float] = []
        self.most = 0
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        while len(self.times) < LEAST_ANSWERS and self._thread.is_alive():
            self._over.wait(0.01)
        self._over.set()
        self._thread.join()
        self._client.close()

    def _ask(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            self._client.post("/daemon/version")
            self.times.append(time.monotonic() - begun)
            self.most = max(self.most, self._process.memory_info().rss - self._before)

    @property
    def p99(self) -> float:
        return sorted(self.times)[int(len(self.times) * 0.99)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on a machine whose bash, sudo and su are not what they seem."""
    home = tmp_path_factory.mktemp("hostile")
    programs = home / "programs"
    programs.mkdir()
    shell = f"#!{sys.executable}\n" + Path(hostile_shell.__file__).read_text().split("\n", 1)[1]
    for name, text in (
        ("bash", shell),
        ("sudo", TALKATIVE),
        ("su", TALKATIVE),
        ("doas", TALKATIVE),
        ("find", PROLIFIC),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    daemon = Daemon(home, "--max-output", str(1 << 20), environment={"PATH": path})
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def quiet(hostile: Daemon) -> float:
    """The slowest of 99 in 100 answers while nothing else happens, in seconds."""
    with Bystander(hostile) as bystander:
        threading.Event().wait(0.5)
    return bystander.p99


def check(bystander: Bystander, quiet: float) -> None:
    # A machine that is loaded by others answers late without any flood too.
    limit = max(LATEST, 4 * quiet)
    print(f"p99 {bystander.p99 * 1000:.0f} ms, quiet {quiet * 1000:.0f} ms, memory +{bystander.most >> 20} MB")
    assert bystander.p99 < limit, f"others waited for {bystander.p99:.3f} s, and {quiet:.3f} s without the flood"
    assert bystander.most < MOST_MEMORY, f"the daemon grew by {bystander.most >> 20} MB"


def outcome(client: Client, connection: str, command: str) -> str:
    """Return the code of the error that a command ends with, or nothing."""
    try:
        client.post("/shell/exec", connection=connection, command=command, timeout=30)
    except ClientError as error:
        return error.code
    return ""


@pytest.mark.parametrize("flood", [name.decode() for name in hostile_shell.FLOODS])
def test_a_command_that_is_answered_with_a_flood(hostile: Daemon, quiet: float, flood: str) -> None:
    connection = add_local(hostile.client, str(hostile.home / "programs" / "bash"))
    hostile.client.post("/shell/start", connection=connection)
    with Bystander(hostile) as bystander:
        code = outcome(hostile.client, connection, f"flood {flood}")
    assert code == ("shell_lost" if flood in ("endless", "digits", "unknown") else "")
    check(bystander, quiet)
    hostile.client.post("/shell/start", connection=connection)
    assert hostile.client.post("/shell/exec", connection=connection, command="true")["exitCode"] == 0


def test_a_listing_that_is_a_flood(hostile: Daemon, quiet: float) -> None:
    connection = add_local(hostile.client, "/bin/sh")
    hostile.client.post("/shell/start", connection=connection)
    received = 0
    with Bystander(hostile) as bystander, Caller(hostile).reading("/", "/fs/list", connection) as response:
        assert response.status == 200
        while piece := response.read(1 << 20):
            received += piece.count(b'"name":')
    assert received > (16 << 20) // 46
    check(bystander, quiet)


@pytest.mark.parametrize("method", ["sudo", "su", "doas"])
def test_a_login_that_is_answered_with_a_flood(hostile: Daemon, quiet: float, method: str) -> None:
    data = {"type": "shellEnvironment", "host": LOCAL, "elevated": True, "method": method, "password": "secret"}
    connection = hostile.client.post("/connection/add", name=method, data=data, validate=False)["connection"]
    with Bystander(hostile) as bystander, pytest.raises(ClientError) as refused:
        hostile.client.post("/shell/start", connection=connection)
    assert refused.value.code == "elevation_failed", refused.value
    check(bystander, quiet)
