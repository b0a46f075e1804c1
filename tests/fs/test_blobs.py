"""Blobs: their limits, lifetime and owners, and that nothing is left of them."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.errors import BlobQuotaExceeded, UnknownBlob
from connmgr.fs.bodies import ALL_IN_MEMORY_BYTES, OVERHEAD_BYTES, Blobs
from tests.api.wire import LOCAL, address, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually_equal, eventually_raises
from tests.fs.remote_hosts import OWNER, names_in, stored
from tests.fs.wire import Caller

MEBIBYTE = 1 << 20


def spool_of(daemon: Daemon) -> Path:
    return daemon.data_dir / "spool"


def spooled(daemon: Daemon) -> list[str]:
    """Return the open files of the daemon's spool directory."""
    links = []
    for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(spool_of(daemon)))]


@pytest.mark.parametrize("size", [0, 1, 70_000, MEBIBYTE, MEBIBYTE + 1, 20 * MEBIBYTE])
def test_a_blob_is_what_was_sent(caller: Caller, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert caller.write(tmp_path / "file", content).status == 200
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize(
    "kind", ["", "application/octet-stream", "application/json", "text/plain; charset=latin-1", "multipart/form-data"]
)
def test_the_content_type_is_not_looked_at(caller: Caller, tmp_path: Path, kind: str) -> None:
    content = b'\xff{"not": json\r\n--x'
    answer = caller.upload(content, **{"Content-Type": kind})
    assert answer.status == 200
    written = caller.post("/fs/write", connection=LOCAL, blob=answer.json["blob"], path=str(tmp_path / "file"))
    assert (written.status, written.json) == (200, {})
    assert (tmp_path / "file").read_bytes() == content


def test_a_chunked_upload(caller: Caller, tmp_path: Path) -> None:
    pieces = [b"a" * 100_000, b"\r\n0\r\n\r\n", os.urandom(3 * MEBIBYTE)]
    connection = http.client.HTTPConnection(*address(caller.daemon.url), timeout=DEADLINE_SECONDS)
    connection.request("POST", "/fs/blob", iter(pieces), caller.headers, encode_chunked=True)
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    connection.close()
    blob = answer.decode().split('"')[3]
    assert caller.post("/fs/write", connection=LOCAL, blob=blob, path=str(tmp_path / "file")).status == 200
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_a_blob_can_be_written_more_than_once(caller: Caller, tmp_path: Path) -> None:
    blob = caller.blob(b"content")
    for name in ("one", "two"):
        assert caller.post("/fs/write", connection=LOCAL, blob=blob, path=str(tmp_path / name)).status == 200
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == b"content"


@pytest.mark.parametrize("endpoint", ["/fs/write", "/fs/script"])
def test_a_blob_is_its_session_s_alone(caller: Caller, tmp_path: Path, endpoint: str) -> None:
    blob = caller.blob(b"content")
    path = {"path": str(tmp_path / "file")} if endpoint == "/fs/write" else {}
    for one, name in ((Caller(caller.daemon), blob), (caller, LOCAL)):
        refused = one.post(endpoint, connection=LOCAL, blob=name, **path)
        assert (refused.status, refused.code) == (400, "unknown_blob")
    assert names_in(tmp_path) == []
    assert caller.post(endpoint, connection=LOCAL, blob=blob, **path).status == 200


def test_uploading_needs_a_token_and_a_sane_size(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--max-blob", "100000")
    caller = Caller(daemon)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = send(daemon.url, "/fs/blob", b"content", {"Content-Type": "", **headers})
        assert (refused.status, refused.code) in {(401, "not_authenticated"), (403, "invalid_token")}
    assert caller.upload(b"x" * 100_000).status == 200
    refused = caller.upload(b"x" * 100_001)
    assert (refused.status, refused.code) == (413, "body_too_large")


@pytest.mark.needs("descriptors")
def test_the_quota_counts_what_is_stored_and_what_is_on_its_way(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--blob-quota", str(5 * MEBIBYTE))
    caller = Caller(daemon)
    caller.blob(b"x" * (3 * MEBIBYTE))
    refused = caller.upload(b"x" * (3 * MEBIBYTE))
    assert (refused.status, refused.code) == (400, "blob_quota_exceeded")
    half = half_an_upload(caller, MEBIBYTE + MEBIBYTE // 2)
    large = b"x" * MEBIBYTE
    # A blob gets a file after its first mebibyte, and this one then leaves no room for another.
    eventually_equal(lambda: len(spooled(daemon)), 2, "the upload does not arrive")
    assert caller.upload(large).status == 400, "what is on its way does not count"
    half.close()
    eventually_equal(lambda: caller.upload(large[: MEBIBYTE // 2]).status, 200, "what never arrived counts for ever")


def test_a_blob_expires_by_itself(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--blob-quota", str(5 * MEBIBYTE), "--blob-ttl", "1")
    caller = Caller(daemon)
    caller.start()
    kept = caller.blob(b"x" * (3 * MEBIBYTE))
    eventually_equal(lambda: caller.upload(b"x" * (5 * MEBIBYTE)).status, 200, "its space is not freed")
    gone = caller.post("/fs/write", connection=LOCAL, blob=kept, path=str(tmp_path / "file"))
    assert (gone.status, gone.code) == (400, "unknown_blob")


def half_an_upload(caller: Caller, size: int) -> socket.socket:
    """Send ``size`` bytes of an upload that is announced twice as long."""
    connection = socket.create_connection(address(caller.daemon.url), timeout=DEADLINE_SECONDS)
    head = f"POST /fs/blob HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {caller.headers['Authorization']}\r\n"
    port = address(caller.daemon.url)[1]
    head = head.replace("127.0.0.1", f"127.0.0.1:{port}")
    connection.sendall(f"{head}Content-Length: {2 * size}\r\n\r\n".encode() + b"x" * size)
    return connection


@pytest.mark.needs("linux", "descriptors")
def test_spooled_blobs_have_no_name_and_are_gone_with_the_daemon(own_daemon: Daemon) -> None:
    caller = Caller(own_daemon)
    caller.blob(b"in memory")
    assert spooled(own_daemon) == []
    caller.blob(os.urandom(3 * MEBIBYTE))
    half = half_an_upload(caller, 2 * MEBIBYTE)
    eventually_equal(lambda: len(spooled(own_daemon)), 2, "uploads do not go to the spool")
    assert all(link.endswith(" (deleted)") for link in spooled(own_daemon))
    assert spool_of(own_daemon).stat().st_mode & 0o7777 == 0o700
    assert names_in(spool_of(own_daemon)) == []
    own_daemon.kill()
    half.close()
    assert names_in(spool_of(own_daemon)) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home for a daemon whose spool has 4 MiB."""
    home = tmp_path / "home"
    spool = home / "data" / "connmgr" / "spool"
    spool.mkdir(parents=True, mode=0o700)
    for directory in (home / "data", home / "data" / "connmgr"):
        directory.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(spool)], check=True, timeout=20)
    yield home
    subprocess.run(["umount", "--lazy", str(spool)], check=True, timeout=20)


@pytest.mark.needs("machine", "descriptors")
def test_a_full_disk_of_the_daemon_s_is_told(small_disk: Path, start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(home=small_disk)
    caller = Caller(daemon)
    caller.start()
    for size in (6 * MEBIBYTE, 4 * MEBIBYTE + 1):
        refused = caller.upload(b"x" * size)
        assert (refused.status, refused.code) == (500, "no_space")
    assert spooled(daemon) == []
    assert caller.write(tmp_path / "file", b"x" * (2 * MEBIBYTE)).status == 200


def test_a_blob_that_expires_while_it_is_read_can_be_read_to_its_end(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "spool", quota=10 * MEBIBYTE, ttl=600)
    content = os.urandom(3 * MEBIBYTE)
    with stored(blobs, content) as blob:
        pieces = blob.pieces()
        first = next(pieces)
        blobs.close()
        assert first + b"".join(pieces) == content
        assert blobs.used == len(content)
    assert blobs.used == 0


def test_a_blob_has_its_time(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "spool", quota=MEBIBYTE, ttl=0.2)
    identifier = blobs.store(OWNER, blobs.spool())

    def borrow() -> None:
        with blobs.borrowed(OWNER, identifier):
            pass

    eventually_raises(borrow, UnknownBlob, "a blob is kept beyond its time")
    blobs.close()


@pytest.mark.needs("descriptors")
def test_all_blobs_together_take_little_memory(own_daemon: Daemon) -> None:
    caller = Caller(own_daemon)
    content = b"x" * MEBIBYTE
    uploads = 2 * ALL_IN_MEMORY_BYTES // MEBIBYTE
    before = memory_of(own_daemon)
    for _ in range(uploads):
        assert caller.upload(content).status == 200
    grown = memory_of(own_daemon) - before
    assert grown < 1.5 * ALL_IN_MEMORY_BYTES, f"{uploads} blobs of 1 MiB keep {grown >> 20} MiB of memory"
    assert len(spooled(own_daemon)) >= uploads // 2


def memory_of(daemon: Daemon) -> int:
    """Return the daemon's resident memory in bytes."""
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class TestRoom:
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Iterator[Blobs]:
        kept = Blobs(tmp_path / "spool", quota=1 << 40, ttl=3600)
        yield kept
        kept.close()

    @staticmethod
    def files() -> int:
        return sum("spool" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    @staticmethod
    def store(blobs: Blobs, content: bytes) -> str:
        spool = blobs.spool()
        spool.append(content)
        return blobs.store("me", spool)

    def test_the_overhead_of_small_blobs_counts(self, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("connmgr.fs.bodies.ALL_IN_MEMORY_BYTES", 10 * OVERHEAD_BYTES)
        for _ in range(20):
            self.store(blobs, b"x")
        assert self.files() >= 10, "blobs of one byte are kept in memory without end"

    def test_memory_and_files_that_are_given_back_are_used_again(
        self, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("connmgr.fs.bodies.ALL_IN_MEMORY_BYTES", MEBIBYTE)
        for _ in range(10):
            spools = [blobs.spool() for _ in range(2)]
            for spool in spools:
                spool.append(b"x" * 700_000)
            assert self.files() == 1
            for spool in spools:
                spool.close()
                spool.close()
            assert self.files() == 0

    def test_so_many_files_that_others_could_not_be_opened_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("connmgr.fs.bodies.MAX_FILES", 2)
        blobs = Blobs(tmp_path / "spool", quota=1 << 40, ttl=3600)
        large = b"x" * (MEBIBYTE + 1)
        for _ in range(2):
            self.store(blobs, large)
        with pytest.raises(BlobQuotaExceeded, match=r"blobs in files \(2\)"):
            self.store(blobs, large)
        self.store(blobs, b"small")
        assert blobs.used == 2 * len(large) + 5
        blobs.close()
