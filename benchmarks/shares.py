"""The owner's requests beside one token that takes all it can get, in each of several ways.

Run it with ``python -m benchmarks.shares``, or with words that the names of some loads contain. Each load runs in a
process of its own, and takes turns with no load. Beside it the owner asks, request by request in turns, the daemon and
its *control*: a second daemon on the same machine, which has no load but gets the processor no sooner. So the control
shows what the machine is to blame for, at the very same moments, and the rest is the daemon's. The table has the
owner's 99th percentile over the port and over the Unix socket, of all rounds together; the longest piece in which one
thread of the daemon kept the interpreter from all others; and the daemon's highest resident memory beside the bound
that docs/SECURITY.md states. The piece counts processor time only, and is the shortest of the rounds' longest ones, so
that a busy machine changes it little.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.timing import percentile, print_table
from connmgr.paths import socket_of
from tests.api.wire import address, token_of
from tests.daemon import Daemon
from tests.mcp.bridge import INITIALIZE, HttpBridge
from tests.multiplex.wire import GREETING, Wire, nothing, session
from tests.pieces import WRITE_SECONDS
from tests.rights.wire import Holder, create
from tests.spawner import ROOT
from tests.streams.wire import NotUpgradedError, Stream

REPEAT = "python -m benchmarks.shares"
CALLS = 400
ROUNDS = 2
LONGEST_SECONDS = 2.0
"""A phase ends after this time, however few of the calls it has made."""
PIECE_SECONDS = 0.02
"""No single call on behalf of a token keeps the interpreter for longer."""

BEARABLE = 3.0
"""The owner's 99th percentile beside a load may be this many times that of the idle daemon, as far as the control's."""

MEMORY_MIB = 720
"""The bound of the daemon's memory, as docs/SECURITY.md states it."""

MIB = 1024 * 1024
SETTLE_SECONDS = 0.7
"""Time for a load to build up before the owner is measured."""

Ask = Callable[[], None]
Load = Callable[[Daemon], AbstractContextManager[None]]


def main() -> None:
    """Measure the owner's requests without a load, beside each, and beside its control."""
    rows = [_row(name, load) for name, load in LOADS.items() if _is_wanted(name)]
    heads = (
        "beside a token with",
        "port: idle ms",
        "load",
        "x",
        "control x",
        "socket: idle ms",
        "load",
        "x",
        "control x",
        "piece ms",
    )
    print_table("The owner beside a token at its share", (*heads, "peak MiB", ""), rows, repeat=REPEAT)
    print(
        f"  bounds: x {BEARABLE:g}, or the control's; {PIECE_SECONDS * 1e3:g} ms; {MEMORY_MIB} MiB (docs/SECURITY.md)"
    )


@contextlib.contextmanager
def _watched_daemon() -> Iterator[tuple[Daemon, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "piece"
        program = (sys.executable, "-m", "tests.pieces", str(report))
        with temporary_daemon(program=program, environment={"PYTHONPATH": str(ROOT)}) as daemon:
            yield daemon, report


def _is_wanted(name: str) -> bool:
    return len(sys.argv) < 2 or any(word in name for word in sys.argv[1:])


def _row(name: str, load: Load) -> tuple[str, ...]:
    with _watched_daemon() as (daemon, report), _watched_daemon() as (twin, _), contextlib.ExitStack() as doors:
        daemon.client.shell.start(LOCAL_MACHINE)
        if load in NEEDS_VAULT:
            _fill(daemon)
        asks = [doors.enter_context(_owner(one, beside=beside)) for one in (daemon, twin) for beside in (False, True)]
        rounds = [_round(daemon, load, asks, report) for _ in range(ROUNDS)]
        peak = _peak_mib(daemon.pid)
    cells, beyond = [name], peak > MEMORY_MIB
    for door in (0, 1):
        # The idle time is that of both daemons, which do the same then.
        idle = _p99([one.idle[at] for one in rounds for at in (door, door + 2)])
        loaded, control = (_p99([one.loaded[at] for one in rounds]) for at in (door, door + 2))
        cells += [f"{idle * 1e3:.2f}", f"{loaded * 1e3:.2f}", f"{loaded / idle:.1f}", f"{control / idle:.1f}"]
        beyond = beyond or loaded > BEARABLE * max(idle, control)
    piece = min(one.piece for one in rounds)
    beyond = beyond or piece > PIECE_SECONDS
    return (*cells, f"{piece * 1e3:.1f}", f"{peak:.0f}", "beyond" if beyond else "")


class _Round(NamedTuple):
    """The seconds of the owner's requests without the load and beside it, by the doors of both daemons.

    ``piece`` is the longest piece beside the load, in seconds.
    """

    idle: list[list[float]]
    loaded: list[list[float]]
    piece: float


def _p99(some: Sequence[list[float]]) -> float:
    return percentile([seconds for one in some for seconds in one], 99)


def _round(daemon: Daemon, load: Load, asks: Sequence[Ask], report: Path) -> _Round:
    idle = _measured(asks)
    with _elsewhere(daemon, load):
        time.sleep(SETTLE_SECONDS)
        report.unlink()
        loaded = _measured(asks)
        time.sleep(2 * WRITE_SECONDS)
        piece = float(report.read_text() or 0)
    return _Round(idle, loaded, piece)


def _measured(asks: Sequence[Ask]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in asks]
    began = time.perf_counter()
    for _ in range(CALLS):
        if time.perf_counter() - began > LONGEST_SECONDS:
            break
        for ask, seconds in zip(asks, taken, strict=True):
            start = time.perf_counter()
            ask()
            seconds.append(time.perf_counter() - start)
    return taken


def _peak_mib(pid: int) -> float:
    """Return the highest resident memory that the process has had, by the kernel's count."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


@contextlib.contextmanager
def _elsewhere(daemon: Daemon, load: Load) -> Iterator[None]:
    """Have ``load`` in a process of its own during the block: in this one it would slow the measurement itself."""
    ours, theirs = multiprocessing.Pipe()
    # The copy of a connection that is kept alive must not be used by both processes.
    daemon.leave_client()

    def run() -> None:
        with load(daemon):
            theirs.send(None)
            theirs.recv()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield
    finally:
        with contextlib.suppress(OSError):
            ours.send(None)
        process.join()
    if process.exitcode:
        raise AssertionError(f"the load ended with {process.exitcode}")


@contextlib.contextmanager
def _owner(daemon: Daemon, *, beside: bool) -> Iterator[Ask]:
    """A function that sends a bare request of the owner, on a connection that is kept alive."""
    host, port = address(daemon.url)
    connection = socket.socket(socket.AF_UNIX if beside else socket.AF_INET)
    connection.settimeout(60)
    connection.connect(str(socket_of(daemon.auth_file, port)) if beside else (host, port))
    request = (
        f"POST /daemon/version HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token_of(daemon)}\r\n"
        "Content-Length: 0\r\n\r\n"
    ).encode()

    def ask() -> None:
        connection.sendall(request)
        answer = connection.recv(65536)
        while not answer.endswith(b"}\n"):
            more = connection.recv(65536)
            if not more:
                raise AssertionError(answer)
            answer += more
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise AssertionError(answer)

    with contextlib.closing(connection):
        yield ask


class _Crowd(NamedTuple):
    """Many connections of a token's ``holder``."""

    holder: Holder
    stack: contextlib.ExitStack

    def connect(self, sent: bytes) -> socket.socket:
        one = self.stack.enter_context(socket.create_connection(address(self.holder.url), 60))
        # The daemon may have refused the rest.
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)
        return one

    def request(self, path: str, length: int, body: bytes, kind: str = "application/json") -> bytes:
        lines = (
            f"POST {path} HTTP/1.1",
            f"Host: {self.holder.url.removeprefix('http://')}",
            f"Authorization: Bearer {self.holder.secret}",
            f"Content-Type: {kind}",
            f"Content-Length: {length}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body

    def json(self, path: str, /, **members: Any) -> bytes:
        body = json.dumps(members).encode()
        return self.request(path, len(body), body)

    def stream(self, path: str) -> Stream:
        return self.stack.enter_context(contextlib.closing(Stream(self.holder.url, path, self.holder.secret)))


@contextlib.contextmanager
def _crowd(daemon: Daemon, *scopes: str) -> Iterator[_Crowd]:
    with contextlib.ExitStack() as stack:
        yield _Crowd(create(daemon, *scopes), stack)


@contextlib.contextmanager
def _doing(clients: int, act: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Have so many threads ``act`` again and again."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                act()
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


def _repeating(crowd: _Crowd, request: bytes, clients: int, pause: float = 0.0) -> AbstractContextManager[None]:
    """Send ``request`` again and again, by each of so many clients on a connection each time."""

    def act() -> None:
        with socket.create_connection(address(crowd.holder.url), 60) as one:
            one.sendall(request)
            one.recv(65536)

    return _doing(clients, act, pause)


def _kept_alive(crowd: _Crowd, request: bytes, clients: int) -> AbstractContextManager[None]:
    """Send ``request`` again and again, by each of so many clients on one connection."""
    own = threading.local()

    def act() -> None:
        if not hasattr(own, "answers"):
            own.socket = crowd.connect(b"")
            own.answers = own.socket.makefile("rb")
        own.socket.sendall(request)
        length = 0
        while (line := own.answers.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if not line:
            del own.answers
        else:
            own.answers.read(length)

    return _doing(clients, act)


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
                crowd.stream("/shell/pipe")
        yield


@contextlib.contextmanager
def _upgrades(daemon: Daemon) -> Iterator[None]:
    def upgrade() -> None:
        with (
            contextlib.suppress(NotUpgradedError),
            contextlib.closing(Stream(daemon.url, "/shell/pipe", crowd.holder.secret)),
        ):
            pass

    with _crowd(daemon, "shell.any") as crowd, _doing(8, upgrade):
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
def _values_allowed(daemon: Daemon) -> Iterator[None]:
    values: list[dict[str, str]] = [{}] * 49_000
    with _crowd(daemon, "shell.any") as crowd, _repeating(crowd, crowd.json("/shell/exec", values=values), 6):
        yield


@contextlib.contextmanager
def _large_texts(daemon: Daemon) -> Iterator[None]:
    text = "\u00e4,[" * MIB
    with _crowd(daemon, "shell.any") as crowd, _repeating(crowd, crowd.json("/shell/exec", command=text), 6):
        yield


@contextlib.contextmanager
def _stalled_uploads(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "fs.write") as crowd:
        for path in (f"/fs/extract?connection={LOCAL_MACHINE}&path=/tmp/nowhere", "/fs/blob"):
            for _ in range(70):
                crowd.connect(crowd.request(path, 1_000_000, b"x", "application/octet-stream"))
        yield


@contextlib.contextmanager
def _passphrases(daemon: Daemon) -> Iterator[None]:
    guess = {"user": "alice", "passphrase": "a wrong one", "newPassphrase": "another one"}
    with _crowd(daemon) as crowd, _repeating(crowd, crowd.json("/vault/user/passphrase", **guess), 4, pause=0.05):
        yield


@contextlib.contextmanager
def _pipe_sizes(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "shell.any", "terminal") as crowd:
        streams = [crowd.stream("/shell/pipe") for _ in range(4)]
        for one in streams:
            one.ask(connection=LOCAL_MACHINE, command="echo begun; cat", pty=True).until(b"begun")
        with _resizing(streams):
            yield


@contextlib.contextmanager
def _terminal_sizes(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "terminal", "shell.any") as crowd:
        streams = []
        for _ in range(4):
            opened = crowd.holder.ok("/terminal/open", connection=LOCAL_MACHINE, command="echo begun; cat")
            streams.append(crowd.stream(f"/terminal/attach/{opened['terminal']}"))
        with _resizing(streams):
            yield


def _resizing(streams: Sequence[Stream]) -> AbstractContextManager[None]:
    left = list(streams)

    def resize() -> None:
        one = left[threading.get_native_id() % len(left)]
        one.resize(4096, 64)
        one.resize(64, 4096)

    return _doing(len(streams), resize)


@contextlib.contextmanager
def _screens(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "terminal", "shell.any") as crowd:
        program = r"while :; do printf '\033[H'; head -c 262144 /dev/urandom | base64 -w 4000; done"
        opened = crowd.holder.ok("/terminal/open", connection=LOCAL_MACHINE, command=program, columns=4096, rows=64)
        with _kept_alive(crowd, crowd.json("/terminal/screen", terminal=opened["terminal"]), 8):
            yield
        crowd.holder.ok("/terminal/close", terminal=opened["terminal"])


@contextlib.contextmanager
def _drawings(daemon: Daemon) -> Iterator[None]:
    program = r"yes $'\e[38;5;1mx\e[38;5;2my' | head -n 130000 | tr -d '\n'; sleep 600"
    with _crowd(daemon, "terminal", "shell.any") as crowd:
        opened = crowd.holder.ok("/terminal/open", connection=LOCAL_MACHINE, command=program, columns=4096, rows=64)
        path = f"/terminal/attach/{opened['terminal']}"

        def attach() -> None:
            with (
                contextlib.suppress(NotUpgradedError, AssertionError),
                contextlib.closing(Stream(daemon.url, path, crowd.holder.secret)) as stream,
            ):
                stream.until(b"y")

        with _doing(8, attach):
            yield
        crowd.holder.ok("/terminal/close", terminal=opened["terminal"])


@contextlib.contextmanager
def _quick(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon) as crowd, _kept_alive(crowd, crowd.request("/daemon/version", 0, b""), 8):
        yield


@contextlib.contextmanager
def _slow_readers(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "shell.any") as crowd:
        for _ in range(40):
            one = crowd.connect(b"")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(
                crowd.json("/shell/exec", connection=LOCAL_MACHINE, command="head -c 8000000 /dev/zero | tr '\\0' x")
            )
        yield


@contextlib.contextmanager
def _waits(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "job", "shell.any") as crowd:
        job = crowd.holder.ok("/job/start", connection=LOCAL_MACHINE, command="sleep 60")["job"]
        for _ in range(128):
            crowd.connect(crowd.json("/job/wait", job=job, timeout=60))
        yield


@contextlib.contextmanager
def _bridge(daemon: Daemon, *, with_token: bool) -> Iterator[None]:
    with _crowd(daemon, "connection.read") as crowd, HttpBridge(daemon) as bridge:
        headers = {"Authorization": f"Bearer {crowd.holder.secret}"} if with_token else {}

        def ask() -> None:
            bridge.ask("POST", headers, INITIALIZE)

        with _doing(8, ask):
            yield


@contextlib.contextmanager
def _bridge_without_token(daemon: Daemon) -> Iterator[None]:
    with _bridge(daemon, with_token=False):
        yield


@contextlib.contextmanager
def _bridge_with_token(daemon: Daemon) -> Iterator[None]:
    with _bridge(daemon, with_token=True):
        yield


def _fill(daemon: Daemon) -> None:
    """Add 10,000 connections in some hundred categories."""
    for start in range(0, 10_000, 500):
        entries = [
            {
                "category": [f"team-{number % 100}"],
                "name": f"web-{number}",
                "data": {"type": "ssh", "host": f"h{number}", "user": "me"},
            }
            for number in range(start, start + 500)
        ]
        daemon.client.post("/connection/apply", add=entries)


@contextlib.contextmanager
def _heavy_filters(daemon: Daemon) -> Iterator[None]:
    filters = {"categoryFilter": "**", "connectionFilter": "**-[!5]*", "typeFilter": "*", "names": True}
    with _crowd(daemon, "connection.read") as crowd, _kept_alive(crowd, crowd.json("/connection/query", **filters), 8):
        yield


@contextlib.contextmanager
def _globs(daemon: Daemon) -> Iterator[None]:
    filters = {"categoryFilter": "*", "connectionFilter": "**" + "*?{a,b}" * 6 + "**x", "typeFilter": "*a*a*a*a*b"}
    with _crowd(daemon, "connection.read") as crowd, _kept_alive(crowd, crowd.json("/connection/query", **filters), 8):
        yield


@contextlib.contextmanager
def _audits(daemon: Daemon) -> Iterator[None]:
    for _ in range(3000):
        daemon.client.post("/daemon/version")
    with contextlib.ExitStack() as stack:
        crowd = stack.enter_context(_crowd(daemon, "audit.read"))
        for request in (crowd.json("/audit/query", code="none", limit=1000), crowd.request("/audit/verify", 0, b"")):
            stack.enter_context(_kept_alive(crowd, request, 4))
        yield


@contextlib.contextmanager
def _checksums(daemon: Daemon) -> Iterator[None]:
    large = daemon.home / "large"
    with large.open("wb") as file:
        file.truncate(1024 * MIB)
    with _crowd(daemon, "fs.read") as crowd:
        asked = crowd.json("/fs/checksum", connection=LOCAL_MACHINE, path=str(large))
        with _kept_alive(crowd, asked, 4):
            yield
    large.unlink()


@contextlib.contextmanager
def _listeners(daemon: Daemon) -> Iterator[None]:
    with _crowd(daemon, "connection.read", "connection.write") as crowd:
        for _ in range(64):
            crowd.stream("/event/stream").ask(kinds=["connection"])
        added = crowd.holder.ok("/connection/add", name="told", data={"type": "ssh", "host": "nowhere", "user": "me"})
        numbers = itertools.count()

        def change() -> None:
            crowd.holder.send("/connection/label", connections=[added["connection"]], labels={"n": str(next(numbers))})

        with _doing(2, change):
            yield


@contextlib.contextmanager
def _control_sessions(daemon: Daemon) -> Iterator[None]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with _crowd(daemon, "shell.any") as crowd, contextlib.ExitStack() as sessions:
        path = crowd.holder.ok("/multiplex/open", connections=[LOCAL_MACHINE])["sockets"][0]["path"]
        null = nothing()
        for _ in range(1000):
            wire = sessions.enter_context(Wire(path))
            wire.send(GREETING, session(b"exec sleep 600"))
            wire.pass_on(null, null, null)
        yield


@contextlib.contextmanager
def _runs(daemon: Daemon) -> Iterator[None]:
    body = {"connections": [LOCAL_MACHINE], "command": "true"}
    with _crowd(daemon, "shell.any") as crowd:
        for number in range(20):
            crowd.holder.ok("/schedule/add", name=f"s{number}", every=1, run=body)
        with _kept_alive(crowd, crowd.json("/run/start", **body), 4):
            yield
        for number in range(20):
            crowd.holder.ok("/schedule/remove", schedule=f"s{number}")


LOADS: dict[str, Load] = {
    "nothing": _idle,
    "511 connections": _connections,
    "480 silent streams": _silent_streams,
    "upgrades to WebSockets": _upgrades,
    "120 unfinished bodies": _unfinished_bodies,
    "bodies of 5 million values": _many_values,
    "bodies of 49,000 values": _values_allowed,
    "bodies of one text of 8 MiB": _large_texts,
    "140 stalled uploads": _stalled_uploads,
    "wrong passphrases": _passphrases,
    "sizes of processes' terminals": _pipe_sizes,
    "sizes of shared terminals": _terminal_sizes,
    "looks at a 4096x64 screen": _screens,
    "drawings of a 4096x64 screen": _drawings,
    "quick requests": _quick,
    "40 slow readers of 8 MB": _slow_readers,
    "128 waits for a job": _waits,
    "the MCP bridge, without a token": _bridge_without_token,
    "the MCP bridge, with a token": _bridge_with_token,
    "filters over 10,000 connections": _heavy_filters,
    "wild globs over 10,000": _globs,
    "looks at the audit trail": _audits,
    "checksums of 1 GiB": _checksums,
    "64 listeners for events": _listeners,
    "1,000 sessions of a control socket": _control_sessions,
    "runs and schedules": _runs,
}
NEEDS_VAULT = {_heavy_filters, _globs}


if __name__ == "__main__":
    main()
