"""The owner's requests beside one token that takes all it can get, in each of several ways.

Run it with ``python -m benchmarks.shares``. For each load it prints the owner's 99th percentile over the port and over
the Unix socket, its ratio to that of the idle daemon, and the daemon's memory above the idle one's.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.timing import percentile, print_table
from connmgr.paths import socket_of
from tests.api.wire import address, token_of
from tests.daemon import Daemon
from tests.rights.wire import Holder, create
from tests.streams.wire import NotUpgradedError, Stream

REPEAT = "python -m benchmarks.shares"
CALLS = 500
MIB = 1024 * 1024
SETTLE_SECONDS = 1.0
"""Time for a load to build up before the owner is measured."""

Ask = Callable[[], object]
Load = Callable[[Daemon], AbstractContextManager[None]]


def main() -> None:
    """Measure the owner's requests without a load and beside each."""
    rows = []
    for name, load in LOADS.items():
        with temporary_daemon() as daemon:
            process = psutil.Process(daemon.pid)
            daemon.client.shell.start(LOCAL_MACHINE)
            with _owner(daemon, beside=False) as port, _owner(daemon, beside=True) as socket_:
                idle = [_timed(ask) for ask in (port, socket_)]
                before = process.memory_info().rss
                with load(daemon), _peak(process) as peak:
                    time.sleep(SETTLE_SECONDS)
                    loaded = [_timed(ask) for ask in (port, socket_)]
        cells = [name]
        for at_rest, under_load in zip(idle, loaded, strict=True):
            cells += [f"{at_rest * 1e3:.2f}", f"{under_load * 1e3:.2f}", f"{under_load / at_rest:.1f}"]
        rows.append((*cells, f"{(peak() - before) / MIB:.0f}"))
    heads = ("beside a token with", "port, idle", "p99 ms", "x", "socket, idle", "p99 ms", "x", "MiB more")
    print_table("The owner beside a token at its share", heads, rows, repeat=REPEAT)


def _timed(ask: Ask) -> float:
    """Return the 99th percentile of a request's seconds; the median of three, since other load has bursts."""
    found = []
    for _ in range(3):
        taken = []
        for _ in range(CALLS):
            start = time.perf_counter()
            ask()
            taken.append(time.perf_counter() - start)
        found.append(percentile(taken, 99))
    return median(found)


class _Beside(http.client.HTTPConnection):
    """A connection to the Unix socket at ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def _owner(daemon: Daemon, *, beside: bool) -> Iterator[Ask]:
    """A function that sends a bare request of the owner, on a connection that is kept alive."""
    host, port = address(daemon.url)
    path = socket_of(daemon.auth_file, port)
    headers = {"Authorization": f"Bearer {token_of(daemon)}", "Host": f"{host}:{port}"}
    connection = _Beside(path) if beside else http.client.HTTPConnection(host, port, timeout=60)

    def ask() -> None:
        connection.request("POST", "/daemon/version", headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise AssertionError(answer.status)

    with contextlib.closing(connection):
        yield ask


class _Crowd(NamedTuple):
    """Many connections of a token's ``holder``."""

    holder: Holder
    stack: contextlib.ExitStack

    def connect(self, sent: bytes) -> None:
        one = self.stack.enter_context(socket.create_connection(address(self.holder.url), 60))
        # The daemon may have refused the rest.
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)

    def request(self, path: str, length: int, body: bytes, kind: str = "application/json") -> bytes:
        lines = (
            f"POST {path} HTTP/1.1",
            f"Host: {self.holder.url.removeprefix('http://')}",
            f"Authorization: Bearer {self.holder.secret}",
            f"Content-Type: {kind}",
            f"Content-Length: {length}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body


@contextlib.contextmanager
def _crowd(daemon: Daemon, *scopes: str) -> Iterator[_Crowd]:
    with contextlib.ExitStack() as stack:
        yield _Crowd(create(daemon, *scopes), stack)


@contextlib.contextmanager
def _idle(_daemon: Daemon) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _connections(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon) as crowd:
        for _ in range(511):
            crowd.connect(crowd.request("/daemon/version", 0, b""))
        yield


@contextlib.contextmanager
def _silent_streams(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "shell.any") as crowd:
        for _ in range(480):
            with contextlib.suppress(OSError, NotUpgradedError):
                stream = Stream(daemon.url, "/shell/pipe", crowd.holder.secret)
                crowd.stack.enter_context(contextlib.closing(stream))
        yield


@contextlib.contextmanager
def _unfinished_bodies(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "shell.any") as crowd:
        for _ in range(120):
            crowd.connect(crowd.request("/shell/exec", 16 * MIB, b" " * (15 * MIB)))
        yield


@contextlib.contextmanager
def _many_values(daemon: Daemon) -> Iterator[None]:
    body = b"[" + b"[]," * (5 * MIB) + b"[]]"
    with _crowd(daemon, "shell.any") as crowd, _repeating(crowd, crowd.request("/shell/exec", len(body), body), 6):
        yield


@contextlib.contextmanager
def _stalled_uploads(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "fs.write") as crowd:
        path = f"/fs/extract?connection={LOCAL_MACHINE}&path=/tmp/nowhere"
        for _ in range(70):
            crowd.connect(crowd.request(path, 1_000_000, b"x", "application/octet-stream"))
        yield


@contextlib.contextmanager
def _passphrases(daemon: Daemon) -> Iterator[None]:
    guess = b'{"user": "alice", "passphrase": "a wrong one", "newPassphrase": "another one"}'
    with _crowd(daemon) as crowd:
        request = crowd.request("/vault/user/passphrase", len(guess), guess)
        with _repeating(crowd, request, 4, pause=0.05):
            yield


@contextlib.contextmanager
def _repeating(crowd: _Crowd, request: bytes, clients: int, pause: float = 0.0) -> Iterator[None]:
    """Send ``request`` again and again, by each of so many clients on a connection each time."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address(crowd.holder.url), 60) as one:
                one.sendall(request)
                one.recv(65536)
            over.wait(pause)

    threads = [threading.Thread(target=repeat) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _peak(process: psutil.Process) -> Iterator[Callable[[], int]]:
    """A function that returns the most memory that a process was seen to have during the block."""
    over, seen = threading.Event(), [process.memory_info().rss]

    def watch() -> None:
        while not over.wait(0.05):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(seen)
    finally:
        over.set()
        watcher.join()


LOADS: dict[str, Load] = {
    "nothing": _idle,
    "511 connections": _connections,
    "480 silent streams": _silent_streams,
    "120 unfinished bodies": _unfinished_bodies,
    "bodies of 5 million values": _many_values,
    "70 stalled uploads": _stalled_uploads,
    "wrong passphrases": _passphrases,
}


if __name__ == "__main__":
    main()
