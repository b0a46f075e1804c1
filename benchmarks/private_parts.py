"""The gain from each use of a library's private parts: the daemon with all uses, and without one of them.

Run it with ``python -m benchmarks.private_parts``. A daemon without a use is the same program with one function
replaced.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.daemon import temporary_daemon
from benchmarks.files import Files
from benchmarks.http import Server, Turn, ratio, turns
from benchmarks.ssh import add, server
from benchmarks.timing import print_table
from connmgr.client import Client
from tests.daemon import Daemon

SIZE = 100_000_000
REPEAT = "python -m benchmarks.private_parts"
START = "import sys; from connmgr.__main__ import main; sys.argv[0] = 'connmgr'; main()"
ROUNDS = 60
AS_IT_IS = "as it is"
KEEPING = "waitress keeps a client's thread"
SENDING = "waitress's buffers are sent by the answering thread"
SEALING = "AES-GCM without paramiko's packet layer"

WITHOUT = {
    KEEPING: "from connmgr.daemon.channel import ClientChannel; ClientChannel._next_arrives = lambda self: False",
    SENDING: "from waitress.channel import HTTPChannel; from connmgr.daemon.channel import ClientChannel as Channel; "
    "Channel.write_soon, Channel._send_header = HTTPChannel.write_soon, lambda self: None",
    SEALING: "import connmgr_ssh.packets as packets; packets._aead = lambda options, iv: None",
}


def main() -> None:
    """Measure a bare request, a command over SSH, and a large file over SSH, with and without each use."""
    with ExitStack() as stack:
        sshd = stack.enter_context(server())
        daemons = {AS_IT_IS: stack.enter_context(temporary_daemon())}
        for name, patch in WITHOUT.items():
            program = (sys.executable, "-c", f"{patch}; {START}")
            daemons[f"without: {name}"] = stack.enter_context(temporary_daemon(program=program))
        connections = {name: add(daemon, sshd) for name, daemon in daemons.items()}
        for name, daemon in daemons.items():
            daemon.client.post("/shell/start", connection=connections[name])
        bare = turns({name: Server(each.pid, _bare(each)) for name, each in daemons.items()}, ROUNDS)
        command = turns(
            {name: Server(each.pid, _true(each, connections[name])) for name, each in daemons.items()}, ROUNDS
        )
        clients = {name: _requests_a_second(daemon) for name, daemon in daemons.items()}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # The server's user differs from this one.
        directory.chmod(0o777)
        files = _write_and_read(daemons, connections, directory)
    rows = [
        (
            name,
            *_beside(bare, name),
            f"{clients[name]:.0f}",
            *_beside(command, name),
            *(f"{speed:.0f}" for speed in files[name]),
        )
        for name in daemons
    ]
    heads = (
        *("", "bare ms", "x", "CPU ms", "x", "16 clients /s"),
        *("ssh true ms", "x", "CPU ms", "x", "write MB/s", "read MB/s"),
    )
    print_table(f"Private parts of libraries; {SIZE // 10**6} MB over ssh", heads, rows, repeat=REPEAT)


def _beside(taken: Mapping[str, list[Turn]], name: str) -> Iterator[str]:
    for what in ("wall", "cpu"):
        yield f"{median(getattr(turn, what) for turn in taken[name]) * 1e3:.2f}"
        yield f"{ratio(taken, name, AS_IT_IS, what):.2f}"


def _write_and_read(
    daemons: Mapping[str, Daemon], connections: Mapping[str, str], directory: Path
) -> dict[str, tuple[float, float]]:
    """Return each daemon's MB/s for a large file over SSH: writing from a blob, and reading."""
    source, target, back = directory / "source", directory / "target", directory / "back"
    source.write_bytes(os.urandom(SIZE))
    files = {name: Files(daemon, connections[name]) for name, daemon in daemons.items()}
    reads: dict[str, list[float]] = {name: [] for name in daemons}
    for _ in range(5):
        for name, each in files.items():
            each.put(source, target)
            begun = time.perf_counter()
            each.get(target, back)
            reads[name].append(time.perf_counter() - begun)
    return {name: (SIZE / median(each.writes) / 1e6, SIZE / median(reads[name]) / 1e6) for name, each in files.items()}


def _bare(daemon: Daemon) -> Callable[[], object]:
    return lambda: daemon.client.post("/daemon/version")


def _true(daemon: Daemon, connection: str) -> Callable[[], object]:
    return lambda: daemon.client.post("/shell/exec", connection=connection, command="true")


def _requests_a_second(daemon: Daemon) -> float:
    """Return the bare requests a second of sixteen clients together."""
    clients = [Client(daemon.url, auth_file=daemon.auth_file) for _ in range(16)]

    def repeat(client: Client) -> None:
        for _ in range(100):
            client.post("/daemon/version")

    threads = [threading.Thread(target=repeat, args=[client]) for client in clients]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 100 * len(clients) / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
