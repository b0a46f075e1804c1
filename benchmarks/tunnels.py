"""Tunnels beside ``ssh -L``: throughput, latency, the cost of idle ones, and a link that is lost 500 times.

Run it with ``python -m benchmarks.tunnels [MEGABYTES [INTERRUPTIONS]]``. The server is a temporary sshd on
loopback, and all ways lead to the same service, which is a separate process.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import psutil

from benchmarks.daemon import temporary_daemon
from benchmarks.openssh import ssh_connection
from benchmarks.timing import interleaved, percentile, print_table, print_timings
from tests.daemon import Daemon
from tests.plugins.sshd import Sshd, privilege_separation
from tests.ports import reserved_port

REPEAT = "python -m benchmarks.tunnels"
DEFAULT_MEGABYTES = 300
DEFAULT_INTERRUPTIONS = 500
MEGABYTE = 1_000_000
ROUNDS = 5
ROUND_TRIPS = 400
IDLE_TUNNELS = 200
IDLE_SECONDS = 10.0
PIECE = 1 << 18

SERVICE = """
import socket, threading
def serve(connected):
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    word = connected.recv(1)
    if word == b"e":
        while data := connected.recv(65536):
            connected.sendall(data)
    elif word == b"d":
        zeros, left = bytes(262144), int(connected.recv(16))
        while left > 0:
            connected.sendall(zeros[:left])
            left -= len(zeros)
    else:
        left, held = int(connected.recv(16)), bytearray(262144)
        while left > 0:
            left -= connected.recv_into(held)
        connected.sendall(b"!")
    connected.close()
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listening.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
"""Echoes after ``e``, sends the given number of bytes after ``d``, and reads as many after ``u``."""


def main(megabytes: int = DEFAULT_MEGABYTES, interruptions: int = DEFAULT_INTERRUPTIONS) -> None:
    """Run all measurements."""
    with privilege_separation(), contextlib.closing(Sshd()) as sshd, _service() as service:
        with temporary_daemon() as daemon:
            connection = ssh_connection(daemon, sshd)
            port = _opened(daemon, connection, "measured", service)
            with _forwarded(sshd, service) as forwarded:
                ways = {"tunnel": port, "ssh -L": forwarded, "no tunnel": service}
                _throughput(ways, megabytes)
                _latency(ways)
        _idle(sshd, service)
        _interrupted(sshd, service, interruptions)


@contextlib.contextmanager
def _service() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def _forwarded(sshd: Sshd, service: int) -> Iterator[int]:
    """Yield a port forwarded by OpenSSH's own client."""
    known = sshd.directory / "known_hosts"
    known.write_text(sshd.known_hosts())
    with reserved_port() as port:
        options = ["-F", "none", "-N", "-o", f"UserKnownHostsFile={known}", "-L", f"{port}:127.0.0.1:{service}"]
        target = ["-p", str(sshd.port), "-i", str(sshd.client_key), f"{sshd.user}@127.0.0.1"]
        with subprocess.Popen(["ssh", *options, *target]) as process:
            try:
                _wait(lambda: _answers(port), "ssh -L does not listen")
                yield port
            finally:
                process.terminate()


def _opened(daemon: Daemon, connection: str, name: str, service: int) -> int:
    data = {"type": "customService", "host": connection, "remotePort": service, "address": "127.0.0.1"}
    # Connections with equal data would be one.
    data |= {"serviceProtocolType": {"type": "custom", "commandTemplate": name}}
    id = daemon.client.connection.add(name, data)
    daemon.client.connection.toggle(id, True)
    [told] = daemon.client.tunnel.query([id])
    return int(told["address"].rpartition(":")[2])


def _client(port: int, word: bytes) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), 30)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.sendall(word)
    return connected


def _answers(port: int) -> bool:
    try:
        with _client(port, b"e") as connected:
            connected.sendall(b"x")
            return connected.recv(1) == b"x"
    except OSError:
        return False


def _throughput(ways: Mapping[str, int], megabytes: int) -> None:
    size = megabytes * MEGABYTE
    rows = []
    for title, move in {"from the remote host": _down, "to the remote host": _up}.items():
        taken = interleaved(
            {name: lambda port=port, move=move: move(port, size) for name, port in ways.items()}, calls=1, rounds=ROUNDS
        )
        speeds = {name: megabytes / median(seconds) for name, seconds in taken.items()}
        rows += [
            (f"{name}, {title}", f"{speed:.0f}", f"{speed / speeds['ssh -L']:.2f}") for name, speed in speeds.items()
        ]
    print_table(f"{megabytes} MB through one stream", ("", "MB/s", "x ssh -L"), rows, repeat=f"{REPEAT} {megabytes}")


def _down(port: int, size: int) -> None:
    held = bytearray(PIECE)
    with _client(port, b"d") as connected:
        connected.sendall(b"%d" % size)
        left = size
        while left > 0:
            left -= connected.recv_into(held) or _cut_off()


def _up(port: int, size: int) -> None:
    zeros = bytes(PIECE)
    with _client(port, b"u") as connected:
        connected.sendall(b"%16d" % size)
        left = size
        while left > 0:
            connected.sendall(zeros[: min(left, PIECE)])
            left -= PIECE
        if connected.recv(1) != b"!":
            _cut_off()


def _cut_off() -> int:
    raise EOFError("the stream ended before its end")


def _latency(ways: Mapping[str, int]) -> None:
    with contextlib.ExitStack() as opened:
        streams = {name: opened.enter_context(_client(port, b"e")) for name, port in ways.items()}

        def trip(connected: socket.socket) -> None:
            connected.sendall(b"x")
            connected.recv(1)

        calls = {name: lambda stream=stream: trip(stream) for name, stream in streams.items()}
        taken = interleaved(calls, calls=ROUND_TRIPS)
    print_timings("One byte there and back", taken, base="ssh -L", repeat=REPEAT)
    calls = {name: lambda port=port: _answers(port) for name, port in ways.items()}
    taken = interleaved(calls, calls=30)
    print_timings("A new connection, and one byte there and back", taken, base="ssh -L", repeat=REPEAT)


def _idle(sshd: Sshd, service: int) -> None:
    with temporary_daemon() as daemon:
        connection, process = ssh_connection(daemon, sshd), psutil.Process(daemon.pid)
        _opened(daemon, connection, "first", service)
        before = process.memory_info().rss, process.num_threads(), process.num_fds()
        began = time.perf_counter()
        for number in range(IDLE_TUNNELS):
            _opened(daemon, connection, f"idle {number}", service)
        opening = time.perf_counter() - began
        grown = process.memory_info().rss - before[0]
        used = sum(process.cpu_times()[:2])
        time.sleep(IDLE_SECONDS)
        used = sum(process.cpu_times()[:2]) - used
        row = (
            f"{opening / IDLE_TUNNELS * 1e3:.1f}",
            f"{grown / IDLE_TUNNELS / 1024:.1f}",
            f"{used / IDLE_SECONDS * 100:.2f}",
            str(process.num_threads() - before[1]),
            str(process.num_fds() - before[2]),
        )
    heads = ("", "ms to open", "KiB each", "% of a CPU", "more threads", "more descriptors")
    print_table("Idle tunnels over one link", heads, [(str(IDLE_TUNNELS), *row)], repeat=REPEAT)


def _interrupted(sshd: Sshd, service: int, interruptions: int) -> None:
    """Lose the link in the middle of a stream, again and again; each time a new client must be served."""
    with temporary_daemon() as daemon:
        process = psutil.Process(daemon.pid)
        port = _opened(daemon, ssh_connection(daemon, sshd), "interrupted", service)
        _answers(port)
        before = _held(process)
        served = []
        for _ in range(interruptions):
            with _client(port, b"e") as connected:
                connected.sendall(b"x")
                connected.recv(1)
                sshd.kill_sessions()
                began = time.perf_counter()
                with contextlib.suppress(ConnectionResetError):
                    connected.recv(1)
                if not _answers(port):
                    raise EOFError("a client that came after the way was lost was not served")
                served.append(time.perf_counter() - began)
        _wait(lambda: _held(process)[:2] <= before[:2], f"{before} (descriptors, threads) are now {_held(process)}")
        after = _held(process)
    row = [f"{median(served) * 1e3:.0f}", f"{percentile(served, 99) * 1e3:.0f}", f"{max(served) * 1e3:.0f}"]
    kept = [f"{then} -> {now}" for then, now in zip(before, after, strict=True)]
    heads = ("", "served ms", "p99 ms", "most ms", "descriptors", "threads", "MiB")
    print_table("Losses of the way", heads, [(str(interruptions), *row, *kept)], repeat=f"{REPEAT} 300 {interruptions}")


def _held(process: psutil.Process) -> tuple[int, int, int]:
    return process.num_fds(), process.num_threads(), process.memory_info().rss >> 20


def _wait(until: Callable[[], object], failed: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise TimeoutError(failed)
        time.sleep(0.05)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
