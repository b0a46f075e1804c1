"""Files whose descriptors clients pass at the daemon's Unix socket: which are taken, and that none is left open."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from connmgr import paths
from connmgr.daemon.passing import PassingSocket
from connmgr.errors import InvalidRequest, SourceFailed, TransferFailed
from connmgr.fs import bodies
from connmgr.fs.bodies import PORTION_BYTES, PassedFile
from tests.api.wire import LOCAL, address
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.fs.wire import Caller

MEBIBYTE = 1 << 20


@contextmanager
def at_unix_socket(daemon: Daemon) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(DEADLINE_SECONDS)
        connected.connect(str(paths.socket_of(daemon.auth_file, address(daemon.url)[1])))
        yield connected


def ask(connected: socket.socket, caller: Caller, endpoint: str, descriptors: list[int], **members: object) -> bytes:
    """Send a request with these descriptors, and return the answer."""
    body = json.dumps({"connection": LOCAL, **members}).encode() if endpoint == "/fs/read" else b""
    query = "&".join(f"{name}={value}" for name, value in {"connection": LOCAL, **members}.items())
    lines = [
        f"POST {endpoint if body else f'{endpoint}?{query}'} HTTP/1.1",
        f"Host: {urlsplit(caller.daemon.url).netloc}",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        *map(": ".join, caller.headers.items()),
    ]
    socket.send_fds(connected, ["\r\n".join([*lines, "", ""]).encode() + body], descriptors)
    return connected.recv(MEBIBYTE)


def test_a_descriptor_is_read_and_written_from_where_it_stands(daemon: Daemon, caller: Caller, tmp_path: Path) -> None:
    content = os.urandom(3 * MEBIBYTE)
    (tmp_path / "source").write_bytes(b"lead" + content)
    with (
        at_unix_socket(daemon) as connected,
        (tmp_path / "source").open("rb", buffering=0) as source,
        (tmp_path / "back").open("wb", buffering=0) as back,
    ):
        source.seek(4)
        back.write(b"lead")
        there = str(tmp_path / "there")
        assert b" 200 OK" in ask(connected, caller, "/fs/upload", [source.fileno()], path=there, passed="true")
        answer = ask(connected, caller, "/fs/read", [back.fileno()], path=there, passed=True)
        assert b" 200 OK" in answer
        assert answer.endswith(b"\r\n\r\n")
        assert source.tell() == back.tell() == 4 + len(content)
    assert (tmp_path / "there").read_bytes() == content
    assert (tmp_path / "back").read_bytes() == b"lead" + content


def test_what_cannot_be_passed_is_refused_and_nothing_stays_open(
    own_daemon: Daemon, tmp_path: Path, devnull: int
) -> None:
    caller, target = Caller(own_daemon), str(tmp_path / "file")
    caller.start()
    (tmp_path / "file").write_text("content")
    process = psutil.Process(own_daemon.pid)
    with at_unix_socket(own_daemon) as connected:
        ask(connected, caller, "/fs/read", [], path=target)
        before = process.num_fds()
        for descriptors, why in (([], b"No descriptor came"), ([devnull], b"not of a regular file")):
            for endpoint in ("/fs/upload", "/fs/read"):
                passed: object = "true" if endpoint == "/fs/upload" else True
                refused = ask(connected, caller, endpoint, descriptors, path=target, passed=passed)
                assert b" 400 " in refused
                assert why in refused
        # Nobody takes these.
        for descriptors in ([devnull], [devnull] * 2, [devnull] * 9):
            assert b" 200 OK" in ask(connected, caller, "/fs/read", descriptors, path=target)
        # The daemon closes it after its answer.
        eventually_equal(process.num_fds, before, "descriptors that nobody takes stay open")
        socket.send_fds(connected, [b"POST /fs/re"], [devnull])
    eventually_equal(process.num_fds, before - 1, "a client that left has left a descriptor")
    refused = caller.post("/fs/read", connection=LOCAL, path=target, passed=True)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert (tmp_path / "file").read_text() == "content"


@pytest.fixture
def devnull() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_client_that_leaves_while_its_file_is_read_changes_nothing(own_daemon: Daemon, tmp_path: Path) -> None:
    caller, target = Caller(own_daemon), tmp_path / "target"
    caller.start()
    target.write_text("old")
    # Sparse, and larger than what any machine writes before it is noticed that the client has left.
    with (tmp_path / "source").open("wb+", buffering=0) as source:
        source.truncate(1 << 34)
        with at_unix_socket(own_daemon) as connected:
            asking = threading.Thread(target=_ignored, args=(connected, caller, source.fileno(), str(target)))
            asking.start()
            eventually_equal(lambda: source.tell() > 0, True, "the daemon does not begin to read")
            connected.shutdown(socket.SHUT_RDWR)
            asking.join(DEADLINE_SECONDS)
        eventually_equal(lambda: [one.name for one in tmp_path.iterdir()].count("target"), 1, "the old file is gone")
        eventually_equal(
            lambda: sorted(one.name for one in tmp_path.iterdir()), ["source", "target"], "the new file stays"
        )
    assert target.read_text() == "old"


def _ignored(connected: socket.socket, caller: Caller, descriptor: int, target: str) -> None:
    with suppress(OSError):
        ask(connected, caller, "/fs/upload", [descriptor], path=target, passed="true")


def test_a_passed_file_that_shrinks_or_is_full_says_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MEBIBYTE))
    file = PassedFile(os.open(path, os.O_RDONLY))
    pieces = file.pieces()
    next(pieces)
    os.truncate(path, 1000)
    with pytest.raises(SourceFailed, match=f"ended after .* of {MEBIBYTE} bytes"):
        list(pieces)
    with pytest.raises(TransferFailed, match="cannot be written: Bad file descriptor"):
        file.write(b"content")
    file.close()
    for place, flags in ((tmp_path, os.O_RDONLY), (path, getattr(os, "O_PATH", os.O_WRONLY))):
        with pytest.raises(InvalidRequest):
            PassedFile(os.open(place, flags))


def test_a_connection_keeps_the_first_descriptor_until_it_is_dropped(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / name, os.O_CREAT | os.O_RDWR) for name in ("first", "second"))
    near, far = socket.socketpair()
    with near, PassingSocket(fileno=far.detach()) as passing:
        assert passing.borrow() is None
        socket.send_fds(near, [b"a"], [first])
        # Looking ahead takes nothing.
        assert passing.recv(1, socket.MSG_PEEK) == b"a"
        assert passing.borrow() is None
        assert passing.recv(10) == b"a"
        socket.send_fds(near, [b"b"], [second])
        assert passing.recv(10) == b"b"
        borrowed = passing.borrow()
        assert borrowed is not None
        assert os.path.sameopenfile(borrowed, first)
        passing.drop()
        assert passing.borrow() is None
        # What was borrowed is the borrower's.
        assert os.path.sameopenfile(borrowed, first)
        for descriptor in (borrowed, first, second):
            os.close(descriptor)


def test_what_is_received_is_flushed_while_more_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, begun = os.urandom(3 * PORTION_BYTES), list[tuple[int, int]]()
    real = bodies.begin_to_flush

    def begin(descriptor: int, start: int, size: int) -> None:
        assert Path(tmp_path / "file").stat().st_size >= start + size, "what is not written yet is flushed"
        begun.append((start, size))
        real(descriptor, start, size)

    monkeypatch.setattr(bodies, "begin_to_flush", begin)
    (tmp_path / "file").write_bytes(b"lead")
    descriptor = os.open(tmp_path / "file", os.O_WRONLY)
    os.lseek(descriptor, 4, os.SEEK_SET)
    with closing(PassedFile(descriptor)) as file:
        for at in range(0, len(content), 700_000):
            file.write(content[at : at + 700_000])
    assert (tmp_path / "file").read_bytes() == b"lead" + content
    assert [start for start, _ in begun] == [4, *(start + size for start, size in begun[:-1])]
    assert len(begun) == 2
    assert all(size >= PORTION_BYTES for _, size in begun)
