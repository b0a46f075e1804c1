"""/fs/upload: files written while they arrive, and clients that stop in the middle."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from pathlib import Path

import psutil
import pytest

from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.fs.remote_hosts import names_in
from tests.fs.wire import Caller, received

MEBIBYTE = 1 << 20


UPLOAD = "/fs/upload"


@pytest.mark.parametrize("size", [0, 1, 65_536, 3 * MEBIBYTE + 17])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_writes_the_content(caller: Caller, tmp_path: Path, size: int, chunked: bool) -> None:
    content = os.urandom(size)
    if chunked:
        with caller.sending(UPLOAD, tmp_path / "file", "Transfer-Encoding: chunked", "Connection: close") as connection:
            for start in range(0, size, 100_000):
                piece = content[start : start + 100_000]
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
            assert connection.recv(17) == b"HTTP/1.1 200 OK\r\n"
    else:
        done = caller.put(UPLOAD, tmp_path / "file", content)
        assert done.status == 200, done.body
        assert done.json == {"bytes": size, "sha256": hashlib.sha256(content).hexdigest()}
    assert (tmp_path / "file").read_bytes() == content
    assert names_in(tmp_path) == ["file"]


def test_mode_and_time(caller: Caller, tmp_path: Path) -> None:
    for modified in ("2001-09-09T01:46:40Z", "2001-09-09T03:46:40.5+02:00"):
        done = caller.put(UPLOAD, tmp_path / "file", b"x", mode="0600", modified=modified)
        assert done.status == 200, done.body
        status = (tmp_path / "file").stat()
        assert (stat.S_IMODE(status.st_mode), int(status.st_mtime)) == (0o600, 1_000_000_000)


@pytest.mark.parametrize("modified", ["", "yesterday", "2001-09-09", "2001-09-09T01:46:40", "1969-01-01T00:00:00Z"])
def test_a_malformed_time_is_refused(caller: Caller, tmp_path: Path, modified: str) -> None:
    refused = caller.put(UPLOAD, tmp_path / "file", b"x", modified=modified)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert "modified" in refused.message
    assert not (tmp_path / "file").exists()


def test_errors_equal_those_of_a_write(caller: Caller, tmp_path: Path) -> None:
    for path, code in ((tmp_path, "wrong_file_type"), (tmp_path / "no" / "where", "no_such_directory")):
        for size in (1, 8 * MEBIBYTE):
            refused = caller.put(UPLOAD, path, bytes(size))
            assert (refused.status, refused.code) == (400, code), size


@pytest.mark.parametrize("headers", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_a_client_that_leaves_keeps_the_old_file_and_frees_its_slot(
    start_daemon: StartDaemon, tmp_path: Path, headers: str
) -> None:
    daemon = start_daemon("--threads", "1")
    caller = Caller(daemon)
    caller.start()
    (tmp_path / "file").write_text("old")
    with caller.sending(UPLOAD, tmp_path / "file", headers) as connection:
        connection.sendall((b"1000000\r\n" if "chunked" in headers else b"") + bytes(6 * MEBIBYTE))
        eventually_equal(lambda: len(names_in(tmp_path)), 2, "the writing does not begin while the body arrives")
        busy = caller.read(tmp_path / "file")
        assert (busy.status, busy.code) == (503, "busy")
    eventually_equal(
        lambda: caller.read(tmp_path / "file").body, b"old", "the slot is not freed, or the old file is gone"
    )
    eventually_equal(lambda: names_in(tmp_path), ["file"], "something stays of what did not come whole")


def test_memory_stays_flat_and_no_blob_is_made(own_daemon: Daemon, tmp_path: Path) -> None:
    caller = Caller(own_daemon)
    caller.start()
    caller.put(UPLOAD, tmp_path / "warm", bytes(2 * MEBIBYTE))
    process, size = psutil.Process(own_daemon.pid), 128
    before, most = process.memory_info().rss, 0
    length = f"Content-Length: {size * MEBIBYTE}"
    with caller.sending(UPLOAD, tmp_path / "file", length, "Connection: close") as connection:
        for _ in range(size):
            connection.sendall(bytes(MEBIBYTE))
            most = max(most, process.memory_info().rss)
        status = caller.post("/daemon/status").json
        assert status["blobs"] == {"count": 0, "bytes": 0}, status["blobs"]
        assert connection.recv(17) == b"HTTP/1.1 200 OK\r\n"
    assert (tmp_path / "file").stat().st_size == size * MEBIBYTE
    assert most - before < 32 * MEBIBYTE, f"{(most - before) / MEBIBYTE:.0f} MiB more"


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("endpoint", [UPLOAD, "/fs/extract"])
def test_a_request_that_does_not_say_that_it_has_a_body_empties_no_file(
    caller: Caller, tmp_path: Path, version: str, endpoint: str
) -> None:
    (tmp_path / "file").write_text("old")
    with caller.sending(endpoint, tmp_path / "file", "Connection: close", version=version) as connection:
        answer = received(connection)
    assert b" 400 " in answer.partition(b"\r\n")[0], answer
    assert b"Content-Length" in answer.partition(b"\r\n\r\n")[2]
    # A client that ends its side, as the end of a body in HTTP/1.0, counts as gone: then it may be told that.
    with caller.sending(endpoint, tmp_path / "file", "Connection: close", version=version) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = received(connection)
    assert b" 400 " in answer.partition(b"\r\n")[0] or b"command_cancelled" in answer, answer
    assert (tmp_path / "file").read_text() == "old"
