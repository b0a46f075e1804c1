"""/fs/archive and /fs/extract over HTTP: bodies that are used as they arrive, and clients that send them badly."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import socket
import tarfile
import time
from pathlib import Path
from urllib.parse import quote_from_bytes

import psutil
import pytest

from tests.api.wire import LOCAL, address, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.fs.remote_hosts import names_in
from tests.fs.trees import archive_of, facts, plant
from tests.fs.wire import Caller, received

pytestmark = pytest.mark.needs("tar")

MEBIBYTE = 1 << 20


EXTRACT = "/fs/extract"


def test_a_tree_goes_there_and_back(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    plant(tmp_path / "tree")
    answer = caller.post("/fs/archive", connection=LOCAL, path=str(tmp_path / "tree"))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-tar")
    done = caller.put(EXTRACT, tmp_path / "copy", answer.body, exact="true")
    assert done.status == 200, done.body
    found = facts(tmp_path / "tree")
    assert facts(tmp_path / "copy") == found
    files = [content for kind, _, _, content in found.values() if kind == "file"]
    links = [path for path, (kind, *_) in found.items() if kind == "link"]
    assert done.json == {"files": len(files) + len(links), "bytes": sum(map(len, files)), "failed": []}


def test_a_path_of_a_query_may_hold_any_byte(caller: Caller, tmp_path: Path) -> None:
    name = b"\xff it's & ?=+%00\n"
    path = quote_from_bytes(bytes(tmp_path) + b"/" + name)
    content = archive_of(("x", {"content": b"x"}))
    target = f"/fs/extract?connection={LOCAL}&path={path}"
    done = send(caller.daemon.url, target, content, {**caller.headers, "Content-Type": ""})
    assert done.status == 200, done.body
    assert names_in(tmp_path / os.fsdecode(name)) == ["x"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "connection"),
        (f"connection={LOCAL}", "path"),
        (f"connection={LOCAL}&path=", "path"),
        (f"connection={LOCAL}&path=a%00b", "path"),
        (f"connection={LOCAL}&path=x&path=y", "path"),
        (f"connection={LOCAL}&path=x&exact=1", "exact"),
        (f"connection={LOCAL}&path=x&more=1", "more"),
        ("connection", "query"),
        ("&".join(f"a{number}=1" for number in range(100)), "query"),
    ],
)
def test_a_bad_query_is_refused_by_its_member(caller: Caller, query: str, said: str) -> None:
    refused = send(caller.daemon.url, f"/fs/extract?{query}", b"x" * MEBIBYTE, {**caller.headers, "Content-Type": ""})
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert said in refused.message


def test_members_that_could_not_be_placed_are_in_the_answer(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = caller.put(EXTRACT, tmp_path, archive_of(("a", {"content": b"x"}), ("b", {"content": b"x"})))
    assert done.status == 200
    ((one),) = done.json["failed"]
    assert one["path"] == "a"
    assert one["message"]
    assert (tmp_path / "b").read_text() == "x"


def test_a_body_in_chunks_byte_by_byte_and_the_next_request_behind_it(caller: Caller, tmp_path: Path) -> None:
    content = archive_of(("x", {"content": b"content"}))[:2560]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (content[:700], content[700:]))
    behind = "POST /daemon/version HTTP/1.1\r\nHost: {}:{}\r\n".format(*address(caller.daemon.url))
    known = f"Authorization: {caller.headers['Authorization']}\r\n"
    rest = (
        behind + known
    ).encode() + b"Connection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    with caller.sending(EXTRACT, tmp_path / "into", "Transfer-Encoding: chunked") as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(200):
            connection.sendall(body[at : at + 1])
        connection.sendall(body[200:] + b"0\r\n\r\n" + rest)
        answers = received(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 2, answers
    assert b'"files":1' in answers
    assert b'"version"' in answers
    assert (tmp_path / "into" / "x").read_text() == "content"


def test_a_client_that_expects_100_gets_it(caller: Caller, tmp_path: Path) -> None:
    content = archive_of(("x", {"content": b"content"}))
    headers = (f"Content-Length: {len(content)}", "Expect: 100-continue", "Connection: close")
    with caller.sending(EXTRACT, tmp_path / "into", *headers) as connection:
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(content)
        assert received(connection).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("headers", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_a_client_that_leaves_writes_nothing_and_frees_its_slot(
    start_daemon: StartDaemon, tmp_path: Path, headers: str
) -> None:
    daemon = start_daemon("--threads", "1")
    caller = Caller(daemon)
    caller.start()
    content = archive_of(("x", {"content": bytes(8 * MEBIBYTE)}))[: 6 * MEBIBYTE]
    with caller.sending(EXTRACT, tmp_path / "into", headers) as connection:
        connection.sendall(content if "Length" in headers else b"1000000\r\n" + content)
        eventually(lambda: (tmp_path / "into").exists(), "the writing does not begin while the body arrives")
        busy = caller.read(tmp_path / "x")
        assert (busy.status, busy.code) == (503, "busy"), "an upload takes no slot"
    eventually_equal(lambda: caller.read(tmp_path / "x").status, 400, "the slot is not freed")
    eventually_equal(lambda: names_in(tmp_path / "into"), [], "something stays of what did not come whole")


@pytest.mark.parametrize(
    ("bad", "status"), [(b"zz\r\n", b"400"), (b"5\r\nhello", b"400"), (b"400000\r\n" + bytes(4 * MEBIBYTE), b"400")]
)
def test_a_malformed_body_is_refused_while_it_is_sent(
    caller: Caller, tmp_path: Path, bad: bytes, status: bytes
) -> None:
    with caller.sending(EXTRACT, tmp_path / "into", "Transfer-Encoding: chunked") as connection:
        connection.sendall(bad)
        connection.sendall(b"1\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = received(connection)
    # A client that ends its side counts as gone, and may be told that instead.
    assert answer.startswith(b"HTTP/1.1 " + status) or b"command_cancelled" in answer or answer == b"", answer
    assert b"Connection: close" in answer or answer == b""


def test_without_a_token_nothing_is_taken(caller: Caller, tmp_path: Path) -> None:
    target = f"/fs/extract?connection={LOCAL}&path={tmp_path}/into"
    content = archive_of(("x", {}))
    refused = send(caller.daemon.url, target, content, {"Content-Type": ""})
    assert (refused.status, refused.code) == (401, "not_authenticated")
    assert send(caller.daemon.url, target, bytes(MEBIBYTE), {"Content-Type": ""}).status == 401
    assert not (tmp_path / "into").exists()


def test_an_error_is_told_before_the_body_was_sent(caller: Caller, tmp_path: Path) -> None:
    with caller.sending(EXTRACT, tmp_path / "no" / "where", "Content-Length: 1000000000") as connection:
        connection.sendall(bytes(1000))
        answer = received(connection)
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "no_such_directory"


def test_memory_stays_flat_both_ways(own_daemon: Daemon, tmp_path: Path) -> None:
    caller = Caller(own_daemon)
    caller.start()
    caller.put(EXTRACT, tmp_path / "warm", archive_of(("x", {"content": bytes(MEBIBYTE)})))
    process = psutil.Process(own_daemon.pid)
    before = process.memory_info().rss
    size = 96 * MEBIBYTE
    head = tarfile.TarInfo("large")
    head.size = size
    with caller.sending(
        EXTRACT, tmp_path / "into", f"Content-Length: {size + 1536}", "Connection: close"
    ) as connection:
        connection.sendall(head.tobuf(tarfile.USTAR_FORMAT))
        most = 0
        for _ in range(size // MEBIBYTE):
            connection.sendall(bytes(MEBIBYTE))
            most = max(most, process.memory_info().rss)
        connection.sendall(bytes(1024))
        assert received(connection).startswith(b"HTTP/1.1 200 OK")
    with caller.reading(tmp_path / "into", "/fs/archive") as response:
        # A client that reads slowly pauses the remote host; the daemon buffers nothing for it.
        response.read(MEBIBYTE)
        time.sleep(0.3)
        most = max(most, process.memory_info().rss)
        while response.read(MEBIBYTE):
            most = max(most, process.memory_info().rss)
    assert most - before < 32 * MEBIBYTE, f"{(most - before) / MEBIBYTE:.0f} MiB more"


def test_transferred_archives_are_in_the_audit_log(own_daemon: Daemon, tmp_path: Path) -> None:
    caller = Caller(own_daemon)
    caller.start()
    (tmp_path / "file").write_text("content")
    caller.put(EXTRACT, tmp_path / "into", archive_of(("x", {"content": b"12345"})))
    answer = caller.post("/fs/archive", connection=LOCAL, path=str(tmp_path / "file"))
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as found:
        assert found.getnames() == ["./file"]
    own_daemon.stop()
    log = (own_daemon.data_dir / "audit.log").read_text()
    entries = {entry["path"]: entry for entry in map(json.loads, log.splitlines()) if "path" in entry}
    for path, what, files, size in (
        ("/fs/extract", tmp_path / "into", 1, 5),
        ("/fs/archive", tmp_path / "file", 1, 7),
    ):
        shown = json.dumps(entries[path])
        assert str(what) in shown
        assert f'"files": {files}' in shown
        assert f'"bytes": {size}' in shown


DYING = """\
#!/bin/sh
case "$*" in *--help*|*--version*) exec TAR "$@";; esac
TAR "$@" | head -c SIZE
kill -9 $$
"""


@pytest.mark.parametrize("size", [0, 512, 700, 20_000])
def test_a_tar_that_is_killed_early_is_an_error_with_a_status(
    start_daemon: StartDaemon, tmp_path: Path, size: int
) -> None:
    """As the system kills it when memory runs out."""
    tools, tree = tmp_path / "tools", tmp_path / "tree"
    for directory in (tools, tree):
        directory.mkdir()
    (tree / "file").write_bytes(b"x" * 100_000)
    dying = tools / "tar"
    dying.write_text(DYING.replace("TAR", str(shutil.which("tar"))).replace("SIZE", str(size)))
    dying.chmod(0o755)
    caller = Caller(start_daemon(environment={"PATH": f"{tools}:{os.environ['PATH']}"}))
    caller.start()
    answer = caller.post("/fs/archive", connection=LOCAL, path=str(tree))
    assert (answer.status, answer.code) == (500, "transfer_failed")
    assert "was killed by signal 9" in answer.message


def test_an_archive_of_which_a_part_was_sent_ends_its_connection(start_daemon: StartDaemon, tmp_path: Path) -> None:
    tools, tree = tmp_path / "tools", tmp_path / "tree"
    for directory in (tools, tree):
        directory.mkdir()
    with (tree / "file").open("wb") as file:
        file.truncate(64 << 20)
    dying = tools / "tar"
    dying.write_text(DYING.replace("TAR", str(shutil.which("tar"))).replace("SIZE", str(32 << 20)))
    dying.chmod(0o755)
    caller = Caller(start_daemon(environment={"PATH": f"{tools}:{os.environ['PATH']}"}))
    caller.start()
    with caller.reading(tree, "/fs/archive") as response:
        assert response.status == 200
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
