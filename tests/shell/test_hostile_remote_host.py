"""Hostile output of a remote host neither delays other clients nor fills the daemon's memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, add
from tests.daemon import Daemon
from tests.fs.wire import Caller
from tests.shell import hostile_shell
from tests.shell.test_shells import add_local

ANSWER_SECONDS = 0.1
"""Time within which 99 of 100 answers must reach a client of another connection."""

MOST_MEMORY = 32 << 20
LEAST_ANSWERS = 30
SECONDS_BETWEEN_ANSWERS = 0.01
LISTED_FILES = 55_000
"""More than fit into half of MOST_MEMORY, if the descriptions of all were kept."""


TALKATIVE = f"""#!{sys.executable}
import sys
sys.stdout.write("password" * {(16 << 20) // 8})
"""

# A find that describes many files by little text.
PROLIFIC = f"""#!{sys.executable}
import sys
mark = sys.argv[-1].split(" ")[0]
number = 0
while mark and number < {LISTED_FILES}:
    print("".join(f"{{mark}} 0=f:0:0:0:0:::/./{{n * 7919 % 1000000}}\\n" for n in range(number, number + 4096)), end="")
    number += 4096
"""


class Bystander:
    """Another client, which requests the versions of two daemons in turn, and watches the memory of the first.

    The second daemon, ``idle``, shows how late answers are at the moment without a flood.
    """

    def __init__(self, daemon: Daemon, idle: Daemon) -> None:
        self._clients = [Client(each.url, auth_file=each.auth_file) for each in (daemon, idle)]
        self._process = psutil.Process(daemon.pid)
        self._over = threading.Event()
        self._before = self._process.memory_info().rss
        self.times: tuple[list[float], list[float]] = ([], [])
        self.most = 0
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        while len(self.times[1]) < LEAST_ANSWERS and self._thread.is_alive():
            self._over.wait(0.01)
        self._over.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _ask(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_ANSWERS):
            for client, times in zip(self._clients, self.times, strict=True):
                begun = time.monotonic()
                client.post("/daemon/version")
                times.append(time.monotonic() - begun)
            self.most = max(self.most, self._process.memory_info().rss - self._before)

    @property
    def p99(self) -> tuple[float, float]:
        """The 99th percentile of the answers of both daemons, the flooded one first, in seconds."""
        flooded, idle = (sorted(times)[int(len(times) * 0.99)] for times in self.times)
        return flooded, idle


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on a machine with hostile programs in place of bash, sudo and su."""
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
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("idle"))
    yield daemon
    daemon.stop()


ATTEMPTS = 3


def unimpressed(hostile: Daemon, idle: Daemon, flood: Callable[[], None], most: int = MOST_MEMORY) -> None:
    """Let the remote host flood the daemon; fail if another client is late or the memory grows in every attempt."""
    seen = []
    for _ in range(ATTEMPTS):
        with Bystander(hostile, idle) as bystander:
            flood()
        (flooded, quiet), grown = bystander.p99, bystander.most
        assert grown < most, f"the daemon grew by {grown >> 20} MB"
        seen.append(f"{flooded:.3f} s, and {quiet:.3f} s at an idle daemon")
        # A busy machine answers late even without a flood.
        if flooded < max(ANSWER_SECONDS, 4 * quiet):
            print(f"p99 {seen[-1]}; memory +{grown >> 20} MB")
            return
    pytest.fail(f"others waited each time, p99: {'; '.join(seen)}")


def outcome(client: Client, connection: str, command: str) -> str:
    """Return the error code of a command, or nothing."""
    try:
        client.post("/shell/exec", connection=connection, command=command, timeout=30)
    except ClientError as error:
        return error.code
    return ""


@pytest.mark.parametrize("flood", [name.decode() for name in hostile_shell.FLOODS])
def test_a_command_that_is_answered_with_a_flood(hostile: Daemon, idle: Daemon, flood: str) -> None:
    connection = add_local(hostile.client, str(hostile.home / "programs" / "bash"))

    def run() -> None:
        hostile.client.post("/shell/start", connection=connection)
        code = outcome(hostile.client, connection, f"flood {flood}")
        assert code == ("shell_lost" if flood in ("endless", "digits", "unknown") else "")

    unimpressed(hostile, idle, run)
    hostile.client.post("/shell/start", connection=connection)
    assert hostile.client.post("/shell/exec", connection=connection, command="true")["exitCode"] == 0


def test_a_listing_that_is_a_flood(hostile: Daemon, idle: Daemon) -> None:
    connection = add_local(hostile.client, "/bin/sh")
    hostile.client.post("/shell/start", connection=connection)

    def read() -> None:
        received = 0
        with Caller(hostile).reading("/", "/fs/list", connection) as response:
            assert response.status == 200
            while piece := response.read(1 << 20):
                received += piece.count(b'"name":')
        assert received > LISTED_FILES

    unimpressed(hostile, idle, read, MOST_MEMORY // 2)


@pytest.mark.parametrize("method", ["sudo", "su", "doas"])
def test_a_login_that_is_answered_with_a_flood(hostile: Daemon, idle: Daemon, method: str) -> None:
    data = {"type": "shellEnvironment", "host": LOCAL, "elevated": True, "method": method, "password": "secret"}
    connection = add(hostile.client, method, **data)

    def start() -> None:
        with pytest.raises(ClientError) as refused:
            hostile.client.post("/shell/start", connection=connection)
        assert refused.value.code == "elevation_failed", refused.value

    unimpressed(hostile, idle, start)
