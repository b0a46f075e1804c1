"""The owner's requests beside one token that takes all it can get, in each of several ways.

Run it with ``python -m benchmarks.shares``, or with words that the names of some loads contain. Each load runs in a
process of its own, and takes turns with no load. Beside it the owner asks, request by request in turns, the daemon and
its *control*: a second daemon on the same machine, which has no load but gets the processor no sooner. So the control
shows what the machine is to blame for, at the very same moments, and the rest is the daemon's.

The clients of the load, and the programs of the host that it works on, are on other machines where this happens in
earnest, and use none of the daemon's processor. Here they do; so they run in the kernel's class for idle work
(SCHED_IDLE in sched(7)), and get a processor when neither daemon nor the owner's client wants it. Whether the load
reached its share nevertheless is in the table: the connections that it holds, how often a second it was answered or
sent something while the owner was measured, and how much of the time in which its clients could have run they waited
for a processor.

That class counts only within a session where the kernel shares processors out by sessions, as many do by default
(autogroups, sched(7)). A shell begins a session of its own; so the programs give their session the least weight, too.

The table has the owner's 99th percentile over the port and over the Unix socket, of all rounds together; the longest
piece in which one thread of the daemon kept the interpreter from all others; and the daemon's highest resident memory
beside the bound that docs/SECURITY.md states. The piece counts processor time only, and is the shortest of the rounds'
longest ones, so that a busy machine changes it little.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import resource
import select
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
from tests.plugins.strangers import install
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

WATCH_SECONDS = 1.0
"""Time in which the longest piece is looked for."""

MIB = 1024 * 1024
SETTLE_SECONDS = 0.7
"""Time for a load to build up before the owner is measured."""

HOST = """
from connmgr.plugin import Reference, Schema, Wrapper, hookimpl

# A shell begins a session of its own. Where the kernel shares processors out by sessions (autogroups, sched(7)), the
# class counts only within one: the niceness of the session counts beside it.
STAND_BACK = 'if [ -w /proc/self/autogroup ]; then echo 19 >/proc/self/autogroup; fi; exec chrt --idle 0 "$@"'

class OnHost(Schema):
    host = Reference(required=True, metadata={"description": "The connection whose programs are meant."})

class IdleHost(Wrapper):
    name = "idleHost"
    description = "A machine whose programs get a processor when no other program wants it."
    schema = OnHost
    example = {"host": "f0ec68aa-63f5-405c-b178-9a4454556d6b"}
    via = "host"

    def wrap(self, argv, data, prompt, *, pty):
        return ["sh", "-c", STAND_BACK, "sh", *argv]

@hookimpl
def connmgr_connection_types():
    return [IdleHost()]
"""
"""A connection type whose programs leave the processor to the daemon, as those of another machine do."""

Ask = Callable[[], None]
Load = Callable[["_Scene"], AbstractContextManager[None]]


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
        "peak MiB",
    )
    reached = ("load holds", "does/s", "waits %")
    print_table("The owner beside a token at its share", (*heads, *reached, ""), rows, repeat=REPEAT)
    print(
        f"  bounds: x {BEARABLE:g}, or the control's; {PIECE_SECONDS * 1e3:g} ms; {MEMORY_MIB} MiB (docs/SECURITY.md)"
    )


@contextlib.contextmanager
def _watched_daemon() -> Iterator[tuple[Daemon, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        report, site = Path(directory) / "piece", Path(directory) / "site"
        install(site, HOST, "idle-host")
        program = (sys.executable, "-m", "tests.pieces", str(report))
        with temporary_daemon(program=program, environment={"PYTHONPATH": f"{ROOT}:{site}"}) as daemon:
            yield daemon, report


def _is_wanted(name: str) -> bool:
    return len(sys.argv) < 2 or any(word in name for word in sys.argv[1:])


def _row(name: str, load: Load) -> tuple[str, ...]:
    with _watched_daemon() as (daemon, report), _watched_daemon() as (twin, _), contextlib.ExitStack() as doors:
        data = {"type": "idleHost", "host": LOCAL_MACHINE}
        host = daemon.client.post("/connection/add", name="host", data=data)["connection"]
        daemon.client.shell.start(host)
        if load in NEEDS_VAULT:
            _fill(daemon)
        scene = _Scene(daemon, host)
        asks = [doors.enter_context(_owner(one, beside=beside)) for one in (daemon, twin) for beside in (False, True)]
        rounds = [_round(scene, load, asks, report) for _ in range(ROUNDS)]
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
    cells += [f"{piece * 1e3:.1f}", f"{peak:.0f}"]
    holds, seconds = min(one.holds for one in rounds), sum(one.seconds for one in rounds)
    ran, waited = sum(one.ran for one in rounds), sum(one.waited for one in rounds)
    cells += [str(holds or ""), f"{sum(one.acts for one in rounds) / seconds:.0f}"]
    return (*cells, f"{100 * waited / max(ran + waited, 1e-9):.0f}", "beyond" if beyond else "")


class _Round(NamedTuple):
    """The seconds of the owner's requests without the load and beside it, by the doors of both daemons.

    ``piece`` is the longest piece beside the load, in seconds. The load held so many connections, and acted so often in
    ``seconds``, in which its clients ran and waited for a processor for so long.
    """

    idle: list[list[float]]
    loaded: list[list[float]]
    piece: float
    holds: int
    acts: int
    seconds: float
    ran: float
    waited: float


class _Reached(NamedTuple):
    """How far a load is: the connections that it holds, how often it has acted, the seconds that its threads used."""

    holds: int
    acts: int
    ran: float
    waited: float


class _Scene:
    """What a load acts on: the ``daemon``, and the connection ``host`` that a shell runs on."""

    def __init__(self, daemon: Daemon, host: str) -> None:
        self.daemon, self.host = daemon, host
        self.opened: list[socket.socket] = []
        """The connections of the load, some of which the daemon may have closed."""

        self._lock = threading.Lock()
        self._acts = 0

    def did(self) -> None:
        """Count that the load has acted once: was answered, or has sent something that has no answer."""
        with self._lock:
            self._acts += 1

    def reached(self) -> _Reached:
        """Return how far the load of this process is."""
        clocks = [file.read_text().split() for file in Path("/proc/self/task").glob("*/schedstat")]
        ran, waited = (sum(int(one[field]) for one in clocks) / 1e9 for field in (0, 1))
        return _Reached(sum(map(_is_open, self.opened)), self._acts, ran, waited)


def _p99(some: Sequence[list[float]]) -> float:
    return percentile([seconds for one in some for seconds in one], 99)


def _is_open(connection: socket.socket) -> bool:
    """Whether the daemon still holds its side of ``connection``."""
    poll = select.poll()
    if connection.fileno() < 0:
        return False
    poll.register(connection, select.POLLRDHUP)
    return not poll.poll(0)


def _round(scene: _Scene, load: Load, asks: Sequence[Ask], report: Path) -> _Round:
    idle = _measured(asks)
    with _elsewhere(scene, load) as reached:
        time.sleep(SETTLE_SECONDS)
        before, began = reached(), time.monotonic()
        loaded = _measured(asks)
        seconds, after = time.monotonic() - began, reached()
        # Not before: whoever watches the interpreter takes it from the owner, too.
        report.touch()
        time.sleep(WATCH_SECONDS)
        piece = float(report.read_text() or 0)
        report.unlink()
    acts, ran, waited = after.acts - before.acts, after.ran - before.ran, after.waited - before.waited
    return _Round(idle, loaded, piece, before.holds, acts, seconds, ran, waited)


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
def _elsewhere(scene: _Scene, load: Load) -> Iterator[Callable[[], _Reached]]:
    """Have ``load`` in a process of its own during the block: in this one it would slow the measurement itself.

    The function that this yields returns how far the load is.
    """
    ours, theirs = multiprocessing.Pipe()
    # The copy of a connection that is kept alive must not be used by both processes.
    scene.daemon.leave_client()

    def run() -> None:
        # Its threads and programs inherit this. The session is theirs alone: the kernel may share processors out by it.
        os.setsid()
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/self/autogroup").write_text("19")
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with load(scene):
            theirs.send(None)
            while theirs.recv():
                theirs.send(scene.reached())

    def reached() -> _Reached:
        ours.send(True)
        answer: _Reached = ours.recv()
        return answer

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield reached
    finally:
        with contextlib.suppress(OSError):
            ours.send(False)
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
    scene: _Scene
    stack: contextlib.ExitStack

    def connect(self, sent: bytes) -> socket.socket:
        one = self.stack.enter_context(socket.create_connection(address(self.holder.url), 60))
        self.scene.opened.append(one)
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
        one = self.stack.enter_context(contextlib.closing(Stream(self.holder.url, path, self.holder.secret)))
        self.scene.opened.append(one.socket)
        return one


@contextlib.contextmanager
def _crowd(scene: _Scene, *scopes: str) -> Iterator[_Crowd]:
    with contextlib.ExitStack() as stack:
        yield _Crowd(create(scene.daemon, *scopes), scene, stack)


@contextlib.contextmanager
def _doing(scene: _Scene, clients: int, act: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Have so many threads ``act`` again and again."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                act()
                scene.did()
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

    return _doing(crowd.scene, clients, act, pause)


def _kept_alive(crowd: _Crowd, request: bytes, clients: int) -> AbstractContextManager[None]:
    """Send ``request`` again and again, by each of so many clients on one connection while the daemon keeps it."""
    own = threading.local()

    def act() -> None:
        if getattr(own, "connection", None) is None:
            own.connection = crowd.connect(b"")
        keeps = False
        try:
            own.connection.sendall(request)
            answer = http.client.HTTPResponse(own.connection, method="POST")
            answer.begin()
            answer.read()
            keeps = not answer.will_close
        finally:
            # Where it failed, too: a client that went on with it would only fail faster, and take the processor.
            if not keeps:
                own.connection.close()
                own.connection = None

    return _doing(crowd.scene, clients, act)


@contextlib.contextmanager
def _idle(_scene: _Scene) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _connections(scene: _Scene) -> Iterator[None]:
    with _crowd(scene) as crowd:
        for _ in range(511):
            crowd.connect(crowd.request("/daemon/version", 0, b""))
        yield


@contextlib.contextmanager
def _silent_streams(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "shell.any") as crowd:
        for _ in range(480):
            with contextlib.suppress(OSError, NotUpgradedError):
                crowd.stream("/shell/pipe")
        yield


@contextlib.contextmanager
def _upgrades(scene: _Scene) -> Iterator[None]:
    def upgrade() -> None:
        with (
            contextlib.suppress(NotUpgradedError),
            contextlib.closing(Stream(scene.daemon.url, "/shell/pipe", crowd.holder.secret)),
        ):
            pass

    with _crowd(scene, "shell.any") as crowd, _doing(scene, 8, upgrade):
        yield


@contextlib.contextmanager
def _unfinished_bodies(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "shell.any") as crowd:
        for _ in range(120):
            crowd.connect(crowd.request("/shell/exec", 16 * MIB, b" " * (15 * MIB)))
        yield


@contextlib.contextmanager
def _many_values(scene: _Scene) -> Iterator[None]:
    body = b"[" + b"[]," * (5 * MIB) + b"[]]"
    with _crowd(scene, "shell.any") as crowd, _repeating(crowd, crowd.request("/shell/exec", len(body), body), 6):
        yield


@contextlib.contextmanager
def _values_allowed(scene: _Scene) -> Iterator[None]:
    values: list[dict[str, str]] = [{}] * 49_000
    with _crowd(scene, "shell.any") as crowd, _repeating(crowd, crowd.json("/shell/exec", values=values), 6):
        yield


@contextlib.contextmanager
def _large_texts(scene: _Scene) -> Iterator[None]:
    text = "\u00e4,[" * MIB
    with _crowd(scene, "shell.any") as crowd, _repeating(crowd, crowd.json("/shell/exec", command=text), 6):
        yield


@contextlib.contextmanager
def _stalled_uploads(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "fs.write") as crowd:
        for path in (f"/fs/extract?connection={scene.host}&path=/tmp/nowhere", "/fs/blob"):
            for _ in range(70):
                crowd.connect(crowd.request(path, 1_000_000, b"x", "application/octet-stream"))
        yield


@contextlib.contextmanager
def _passphrases(scene: _Scene) -> Iterator[None]:
    guess = {"user": "alice", "passphrase": "a wrong one", "newPassphrase": "another one"}
    with _crowd(scene) as crowd, _repeating(crowd, crowd.json("/vault/user/passphrase", **guess), 4, pause=0.05):
        yield


@contextlib.contextmanager
def _pipe_sizes(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "shell.any", "terminal") as crowd:
        streams = [crowd.stream("/shell/pipe") for _ in range(4)]
        for one in streams:
            one.ask(connection=scene.host, command="echo begun; cat", pty=True).until(b"begun")
        with _resizing(scene, streams):
            yield


@contextlib.contextmanager
def _terminal_sizes(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "terminal", "shell.any") as crowd:
        streams = []
        for _ in range(4):
            opened = crowd.holder.ok("/terminal/open", connection=scene.host, command="echo begun; cat")
            streams.append(crowd.stream(f"/terminal/attach/{opened['terminal']}"))
        with _resizing(scene, streams):
            yield


def _resizing(scene: _Scene, streams: Sequence[Stream]) -> AbstractContextManager[None]:
    left = list(streams)

    def resize() -> None:
        one = left[threading.get_native_id() % len(left)]
        one.resize(4096, 64)
        one.resize(64, 4096)

    return _doing(scene, len(streams), resize)


@contextlib.contextmanager
def _screens(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "terminal", "shell.any") as crowd:
        program = r"while :; do printf '\033[H'; head -c 262144 /dev/urandom | base64 -w 4000; done"
        opened = crowd.holder.ok("/terminal/open", connection=scene.host, command=program, columns=4096, rows=64)
        with _kept_alive(crowd, crowd.json("/terminal/screen", terminal=opened["terminal"]), 8):
            yield
        crowd.holder.ok("/terminal/close", terminal=opened["terminal"])


@contextlib.contextmanager
def _drawings(scene: _Scene) -> Iterator[None]:
    program = r"yes $'\e[38;5;1mx\e[38;5;2my' | head -n 130000 | tr -d '\n'; sleep 600"
    with _crowd(scene, "terminal", "shell.any") as crowd:
        opened = crowd.holder.ok("/terminal/open", connection=scene.host, command=program, columns=4096, rows=64)
        path = f"/terminal/attach/{opened['terminal']}"

        def attach() -> None:
            with (
                contextlib.suppress(NotUpgradedError, AssertionError),
                contextlib.closing(Stream(scene.daemon.url, path, crowd.holder.secret)) as stream,
            ):
                stream.until(b"y")

        with _doing(scene, 8, attach):
            yield
        crowd.holder.ok("/terminal/close", terminal=opened["terminal"])


@contextlib.contextmanager
def _quick(scene: _Scene) -> Iterator[None]:
    with _crowd(scene) as crowd, _kept_alive(crowd, crowd.request("/daemon/version", 0, b""), 8):
        yield


@contextlib.contextmanager
def _slow_readers(scene: _Scene) -> Iterator[None]:
    printed = "head -c 16000000 /dev/zero | tr '\\0' x"
    with _crowd(scene, "shell.any") as crowd:
        for _ in range(40):
            one = crowd.connect(b"")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(crowd.json("/shell/exec", connection=scene.host, command=f"{printed}; {printed} >&2"))
        yield


@contextlib.contextmanager
def _waits(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "job", "shell.any") as crowd:
        job = crowd.holder.ok("/job/start", connection=scene.host, command="sleep 60")["job"]
        for _ in range(128):
            crowd.connect(crowd.json("/job/wait", job=job, timeout=60))
        yield


@contextlib.contextmanager
def _bridge(scene: _Scene, *, with_token: bool) -> Iterator[None]:
    with _crowd(scene, "connection.read") as crowd, HttpBridge(scene.daemon) as bridge:
        headers = {"Authorization": f"Bearer {crowd.holder.secret}"} if with_token else {}

        def ask() -> None:
            bridge.ask("POST", headers, INITIALIZE)

        with _doing(scene, 8, ask):
            yield


@contextlib.contextmanager
def _bridge_without_token(scene: _Scene) -> Iterator[None]:
    with _bridge(scene, with_token=False):
        yield


@contextlib.contextmanager
def _bridge_with_token(scene: _Scene) -> Iterator[None]:
    with _bridge(scene, with_token=True):
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
def _heavy_filters(scene: _Scene) -> Iterator[None]:
    filters = {"categoryFilter": "**", "connectionFilter": "**-[!5]*", "typeFilter": "*", "names": True}
    with _crowd(scene, "connection.read") as crowd, _kept_alive(crowd, crowd.json("/connection/query", **filters), 8):
        yield


@contextlib.contextmanager
def _globs(scene: _Scene) -> Iterator[None]:
    filters = {"categoryFilter": "*", "connectionFilter": "**" + "*?{a,b}" * 6 + "**x", "typeFilter": "*a*a*a*a*b"}
    with _crowd(scene, "connection.read") as crowd, _kept_alive(crowd, crowd.json("/connection/query", **filters), 8):
        yield


@contextlib.contextmanager
def _audits(scene: _Scene) -> Iterator[None]:
    for _ in range(3000):
        scene.daemon.client.post("/daemon/version")
    with contextlib.ExitStack() as stack:
        crowd = stack.enter_context(_crowd(scene, "audit.read"))
        for request in (crowd.json("/audit/query", code="none", limit=1000), crowd.request("/audit/verify", 0, b"")):
            stack.enter_context(_kept_alive(crowd, request, 4))
        yield


@contextlib.contextmanager
def _checksums(scene: _Scene) -> Iterator[None]:
    large = scene.daemon.home / "large"
    with large.open("wb") as file:
        file.truncate(1024 * MIB)
    # The first reading fills this machine's page cache, in pieces of the kernel's that keep every program from a
    # processor for tens of milliseconds, the idle class notwithstanding. In earnest that is another machine's cache.
    with large.open("rb", buffering=0) as file:
        buffer = bytearray(MIB)
        while file.readinto(buffer):
            pass
    with _crowd(scene, "fs.read") as crowd:
        asked = crowd.json("/fs/checksum", connection=scene.host, path=str(large))
        with _kept_alive(crowd, asked, 4):
            yield
    large.unlink()


@contextlib.contextmanager
def _listeners(scene: _Scene) -> Iterator[None]:
    with _crowd(scene, "connection.read", "connection.write") as crowd:
        for _ in range(64):
            crowd.stream("/event/stream").ask(kinds=["connection"])
        added = crowd.holder.ok("/connection/add", name="told", data={"type": "ssh", "host": "nowhere", "user": "me"})
        numbers = itertools.count()

        def change() -> None:
            crowd.holder.send("/connection/label", connections=[added["connection"]], labels={"n": str(next(numbers))})

        with _doing(scene, 2, change):
            yield


@contextlib.contextmanager
def _control_sessions(scene: _Scene) -> Iterator[None]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with _crowd(scene, "shell.any") as crowd, contextlib.ExitStack() as sessions:
        path = crowd.holder.ok("/multiplex/open", connections=[scene.host])["sockets"][0]["path"]
        null = nothing()
        for _ in range(1000):
            wire = sessions.enter_context(Wire(path))
            scene.opened.append(wire.socket)
            wire.send(GREETING, session(b"exec sleep 600"))
            wire.pass_on(null, null, null)
        yield


@contextlib.contextmanager
def _runs(scene: _Scene) -> Iterator[None]:
    body = {"connections": [scene.host], "command": "true"}
    with _crowd(scene, "shell.any") as crowd:
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
    "40 slow readers of 32 MB": _slow_readers,
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
