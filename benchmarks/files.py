"""100 MB and 1 KB written and read through the daemon, over SSH and locally, beside the alternatives.

Run it with ``python -m benchmarks.files``. The daemon writes in one request, or in two: the upload of a blob and
the write from it, measured separately. Unlike the alternatives, both verify a checksum and sync the file to disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlencode, urlsplit

import asyncssh
import paramiko
import psutil

from benchmarks.daemon import LOCAL_MACHINE, temporary_daemon
from benchmarks.openssh import master, ssh_connection
from benchmarks.output import PeakMemory
from benchmarks.timing import interleaved, print_table, print_timings
from tests.daemon import Daemon
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd

MEGABYTE = 1_000_000
SIZE = 100 * MEGABYTE
LARGE = 1000 * MEGABYTE
SMALL = 1000
PIECE = 1 << 20
ROUNDS = 5
REPEAT = "python -m benchmarks.files"

Calls = dict[str, Callable[[], object]]


class Files:
    """Files of one connection, by requests on one TCP connection to the daemon."""

    def __init__(self, daemon: Daemon, connection: str) -> None:
        self._connection = connection
        self._http = http.client.HTTPConnection(urlsplit(daemon.url).netloc)
        auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
        answer = self._json("/handshake", {"auth": auth, "client": {"type": "api", "name": "benchmark"}}, {})
        self._headers = {"Authorization": f"Bearer {answer['sessionToken']}"}
        self._json("/shell/start", {"connection": connection}, self._headers)
        self.uploads: list[float] = []
        self.writes: list[float] = []

    def upload(self, source: Path) -> str:
        """Store a file's content as a blob."""
        size = source.stat().st_size
        with source.open("rb") as file:
            self._http.request("POST", "/fs/blob", _pieces(file.read), {**self._headers, "Content-Length": str(size)})
        return str(json.loads(self._answer())["blob"])

    def write(self, blob: str, target: Path) -> None:
        """Write a file from a blob."""
        self._json("/fs/write", {"connection": self._connection, "blob": blob, "path": str(target)}, self._headers)

    def stat(self, path: Path) -> None:
        """Request ``/fs/stat`` of a file."""
        self._json("/fs/stat", {"connection": self._connection, "path": str(path)}, self._headers)

    def put(self, source: Path, target: Path) -> None:
        """Upload a file as a blob and write it."""
        begun = time.perf_counter()
        blob = self.upload(source)
        self.uploads.append(time.perf_counter() - begun)
        self.write(blob, target)
        self.writes.append(time.perf_counter() - begun - self.uploads[-1])

    def send(self, source: Path, target: Path) -> None:
        """Write a file in one request."""
        query = urlencode({"connection": self._connection, "path": str(target)})
        length = {"Content-Length": str(source.stat().st_size)}
        with source.open("rb") as file:
            self._http.request("POST", f"/fs/upload?{query}", _pieces(file.read), {**self._headers, **length})
        self._answer()

    def get(self, source: Path, target: Path) -> None:
        """Read a file into a local one."""
        body = json.dumps({"connection": self._connection, "path": str(source)})
        self._http.request("POST", "/fs/read", body, {**self._headers, "Content-Type": "application/json"})
        response = self._http.getresponse()
        with target.open("wb") as file:
            for piece in _pieces(response.read):
                file.write(piece)
        if response.status != 200 or target.stat().st_size != source.stat().st_size:
            raise RuntimeError(f"reading failed: {target.read_bytes()[:300]!r}")

    def _json(self, path: str, fields: dict[str, object], headers: dict[str, str]) -> dict[str, str]:
        self._http.request("POST", path, json.dumps(fields), {**headers, "Content-Type": "application/json"})
        return dict(json.loads(self._answer() or b"{}"))

    def _answer(self) -> bytes:
        response = self._http.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(body.decode())
        return body


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while piece := read(PIECE):
        yield piece


def main() -> None:
    """Measure SSH, then this machine, then the daemon's memory with a file of 1 GB."""
    with tempfile.TemporaryDirectory() as scratch, temporary_daemon("--blob-ttl", "5") as daemon:
        directory = Path(scratch)
        source = directory / "source"
        source.write_bytes(os.urandom(SIZE))
        _local(daemon, directory, source)
        home = directory / "home"
        home.mkdir()
        with ssh_server(home, Subsystem="sftp internal-sftp") as server:
            _over_ssh(daemon, server, directory, source)
            _memory(daemon, server, directory)


def _local(daemon: Daemon, directory: Path, source: Path) -> None:
    files, target, back = Files(daemon, LOCAL_MACHINE), directory / "target", directory / "back"
    calls: Calls = {
        "write: cp": lambda: _run("cp", str(source), str(target)),
        "write: cp, and sync": lambda: _run("sh", "-c", 'cp "$0" "$1" && sync "$1"', str(source), str(target)),
        "write: daemon, in one pass": lambda: files.send(source, target),
        "write: daemon, upload and write": lambda: files.put(source, target),
        "read: cp": lambda: _run("cp", str(source), str(back)),
        "read: daemon": lambda: files.get(source, back),
    }
    _measure("100 MB on this machine", calls, {"write": "write: cp", "read": "read: cp"}, files)


def _over_ssh(daemon: Daemon, server: Sshd, directory: Path, source: Path) -> None:
    files = Files(daemon, ssh_connection(daemon, server))
    target, back = directory / "target", directory / "back"
    with master(server) as options, _paramiko(server) as sftp, _asyncssh(server) as other:
        host = f"{server.user}@127.0.0.1"
        batch = ["sftp", "-q", *options, "-b", "-", host]
        calls: Calls = {
            "write: scp over a ControlMaster": lambda: _run("scp", "-q", *options, str(source), f"{host}:{target}"),
            "write: sftp over a ControlMaster": lambda: _run(*batch, text=f"put {source} {target}\n"),
            "write: paramiko put": lambda: sftp.put(str(source), str(target)),
            "write: asyncssh put": lambda: other("put", source, target),
            "write: daemon, in one pass": lambda: files.send(source, target),
            "write: daemon, upload and write": lambda: files.put(source, target),
            "read: scp over a ControlMaster": lambda: _run("scp", "-q", *options, f"{host}:{source}", str(back)),
            "read: sftp over a ControlMaster": lambda: _run(*batch, text=f"get {source} {back}\n"),
            "read: paramiko get": lambda: sftp.get(str(source), str(back)),
            "read: asyncssh get": lambda: other("get", source, back),
            "read: daemon": lambda: files.get(source, back),
        }
        bases = {"write": "write: scp over a ControlMaster", "read": "read: scp over a ControlMaster"}
        _measure("100 MB over SSH, connections open", calls, bases, files)
        small = directory / "small"
        small.write_bytes(os.urandom(SMALL))
        calls = {
            "daemon: /fs/stat": lambda: files.stat(small),
            "daemon: /fs/read": lambda: files.get(small, back),
            "daemon: /fs/upload": lambda: files.send(small, target),
            "daemon: /fs/blob and /fs/write": lambda: files.put(small, target),
            "scp, up": lambda: _run("scp", "-q", *options, str(small), f"{host}:{target}"),
            "paramiko stat": lambda: sftp.stat(str(small)),
            "paramiko get": lambda: sftp.get(str(small), str(back)),
            "paramiko put": lambda: sftp.put(str(small), str(target)),
        }
        taken = interleaved(calls, calls=10)
        print_timings("1 KB over SSH, connections open", taken, base="daemon: /fs/stat", repeat=REPEAT)


def _memory(daemon: Daemon, server: Sshd, directory: Path) -> None:
    rows = []
    large, back = directory / "large", directory / "back"
    with large.open("wb") as file:
        for _ in range(LARGE // MEGABYTE):
            file.write(os.urandom(MEGABYTE))
    for title, connection in (("this machine", LOCAL_MACHINE), ("SSH", ssh_connection(daemon, server))):
        files = Files(daemon, connection)
        transfers: Calls = {
            "up": lambda files=files: files.put(large, directory / "target"),  # type: ignore[misc]
            "down": lambda files=files: files.get(large, back),  # type: ignore[misc]
        }
        for way, transfer in transfers.items():
            with PeakMemory(daemon.pid) as memory:
                start = time.perf_counter()
                transfer()
                taken = time.perf_counter() - start
            after = psutil.Process(daemon.pid).memory_info().rss
            rows.append((f"{title}, {way}", f"{LARGE / MEGABYTE / taken:.0f}", *_mebibytes(memory.growth, after)))
    print_table("1 GB through the daemon", ("", "MB/s", "grew MiB", "RSS MiB"), rows, repeat=REPEAT)


def _mebibytes(*sizes: int) -> tuple[str, ...]:
    return tuple(f"{size / 2**20:.1f}" for size in sizes)


def _measure(title: str, calls: Calls, bases: dict[str, str], files: Files) -> None:
    taken = interleaved(calls, calls=1, rounds=ROUNDS)
    taken |= {"write: /fs/blob alone": files.uploads[-ROUNDS:], "write: /fs/write alone": files.writes[-ROUNDS:]}
    rows = []
    for name, seconds in taken.items():
        ratio = median(taken[bases[name.partition(":")[0]]]) / median(seconds)
        rows.append((name, f"{SIZE / MEGABYTE / median(seconds):.0f}", f"{median(seconds) * 1e3:.0f}", f"{ratio:.2f}"))
    print_table(title, ("", "MB/s", "median ms", "x the first"), rows, repeat=REPEAT)


def _run(*argv: str, text: str = "") -> None:
    subprocess.run(argv, input=text, text=True, check=True, stdout=subprocess.DEVNULL, timeout=120)


@contextlib.contextmanager
def _paramiko(server: Sshd) -> Iterator[paramiko.SFTPClient]:
    with paramiko.SSHClient() as client:
        client.get_host_keys().add(f"[127.0.0.1]:{server.port}", *_host_key(server))
        client.connect("127.0.0.1", server.port, server.user, key_filename=str(server.client_key), allow_agent=False)
        with client.open_sftp() as sftp:
            yield sftp


@contextlib.contextmanager
def _asyncssh(server: Sshd) -> Iterator[Callable[[str, Path, Path], None]]:
    """Yield a function that calls a method of asyncssh's SFTP client on an open connection."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(
        asyncssh.connect(
            "127.0.0.1",
            server.port,
            username=server.user,
            client_keys=[str(server.client_key)],
            known_hosts=None,
            encryption_algs=["aes128-gcm@openssh.com"],
            config=None,
        )
    )
    sftp = loop.run_until_complete(connection.start_sftp_client())
    try:
        yield lambda method, source, target: loop.run_until_complete(getattr(sftp, method)(str(source), str(target)))
    finally:
        connection.close()
        loop.run_until_complete(connection.wait_closed())
        loop.close()


def _host_key(server: Sshd) -> tuple[str, paramiko.PKey]:
    kind, text = server.host_keys[0].with_suffix(".pub").read_text().split()[:2]
    return kind, paramiko.Ed25519Key(data=base64.b64decode(text))


if __name__ == "__main__":
    main()
