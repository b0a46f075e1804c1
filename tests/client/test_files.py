"""Files through the client: streamed both ways, with progress, and with an error if the transfer breaks."""

from __future__ import annotations

import hashlib
import io
import os
import resource
from pathlib import Path
from typing import IO, Any

import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError, Unreachable
from tests.daemon import Daemon

SIZE = 1_000_003
MEBIBYTE = 1 << 20


def test_bytes_and_files_go_both_ways(client: Client, tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    client.fs.upload(LOCAL_MACHINE, content, tmp_path / "bytes", mode=0o640)
    assert (tmp_path / "bytes").stat().st_mode & 0o777 == 0o640
    with (tmp_path / "bytes").open("rb") as file:
        file.seek(1)
        client.fs.upload(LOCAL_MACHINE, file, tmp_path / "rest")
    assert client.fs.read(LOCAL_MACHINE, tmp_path / "rest") == content[1:]
    client.fs.upload(LOCAL_MACHINE, io.BytesIO(content), tmp_path / "stream")
    with (tmp_path / "target").open("wb") as file:
        assert client.fs.download(LOCAL_MACHINE, tmp_path / "stream", file) == SIZE
    assert (tmp_path / "target").read_bytes() == content


def test_a_write_replaces_what_was_read_or_nothing(client: Client, tmp_path: Path) -> None:
    def write(content: bytes, **options: Any) -> str:
        try:
            client.fs.write(LOCAL_MACHINE, client.fs.blob(content), path, **options)
        except ClientError as error:
            return error.code
        return ""

    path = tmp_path / "file"
    assert write(b"first", create=True) == ""
    assert write(b"second", create=True) == "file_exists"
    assert write(b"second", replaces=hashlib.sha256(b"first").hexdigest()) == ""
    assert write(b"third", replaces=hashlib.sha256(b"first").hexdigest()) == "file_changed"
    assert write(b"third", replaces="0" * 64, create=True) == write(b"third", replaces="A" * 64) == "invalid_request"
    assert path.read_bytes() == b"second"


class Streamed(io.BufferedIOBase):
    """A file that is sent piece by piece, because only its own class knows what is in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.read, self.tell, self.fileno = file.read, file.tell, file.fileno  # type: ignore[method-assign]


def test_progress_is_told_up_to_the_end(client: Client, tmp_path: Path) -> None:
    content = os.urandom(SIZE)
    (tmp_path / "file").write_bytes(content)
    told: list[tuple[int, int | None]] = []
    with (tmp_path / "file").open("rb") as file:
        client.fs.upload(LOCAL_MACHINE, Streamed(file), tmp_path / "there", progress=lambda *known: told.append(known))
    assert told[-1] == (SIZE, SIZE)
    assert told == sorted(told)
    assert len(told) > 2
    told.clear()
    client.fs.upload(LOCAL_MACHINE, io.BytesIO(content), tmp_path / "x", progress=lambda *known: told.append(known))
    assert told[-1] == (SIZE, None)
    told.clear()
    client.fs.download(LOCAL_MACHINE, tmp_path / "there", io.BytesIO(), progress=lambda *known: told.append(known))
    assert told[-1] == (SIZE, SIZE)


def test_from_one_machine_to_another_without_holding_the_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(64 * MEBIBYTE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with client.clone() as reading, reading.fs.open(LOCAL_MACHINE, tmp_path / "big") as content:
        client.fs.upload(LOCAL_MACHINE, content, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == 64 * MEBIBYTE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_a_download_that_is_left_early_does_no_harm(client: Client, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(8 * MEBIBYTE))
    with client.fs.open(LOCAL_MACHINE, tmp_path / "big") as content:
        assert content.size == 8 * MEBIBYTE
        assert next(iter(content))
    assert client.shell.exec(LOCAL_MACHINE, "echo after").stdout == "after"


def test_a_source_that_fails_or_shrinks_sends_nothing(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(SIZE))

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(ClientError, match="cannot be read: Input/output error") as failed:
        client.fs.upload(LOCAL_MACHINE, Failing(), tmp_path / "there")
    assert failed.value.code == "source_failed"

    with (tmp_path / "file").open("rb") as file:
        os.truncate(tmp_path / "file", SIZE)

        def shrink(done: int, _: int | None) -> None:
            os.truncate(tmp_path / "file", done)

        with pytest.raises(ClientError, match="ended after") as short:
            client.fs.upload(LOCAL_MACHINE, Streamed(file), tmp_path / "there", progress=shrink)
    assert short.value.code == "source_failed"
    assert not (tmp_path / "there").exists()
    assert client.daemon.version().build


def test_a_file_is_passed_to_the_daemon_with_progress(client: Client, tmp_path: Path) -> None:
    content, told = os.urandom(SIZE), list[tuple[int, int | None]]()
    (tmp_path / "file").write_bytes(b"before" + content)
    with (tmp_path / "file").open("rb") as file, (tmp_path / "back").open("wb") as back:
        assert file.read(6) == b"before"
        # What was read ahead would be missing: this file is sent by the client itself.
        client.fs.upload(LOCAL_MACHINE, file, tmp_path / "there")
        assert (tmp_path / "there").read_bytes() == content
        file.seek(0, os.SEEK_END)
        file.seek(6)
        sent = client.fs.upload(LOCAL_MACHINE, file.raw, tmp_path / "again", progress=lambda *known: told.append(known))  # type: ignore[attr-defined]
        back.write(b"lead")
        got = client.fs.download(LOCAL_MACHINE, tmp_path / "again", back, lambda *known: told.append(known))
        back.write(b"tail")
    assert sent == got == SIZE
    assert told[-1] == (SIZE, None)
    assert (SIZE, SIZE) in told
    assert (tmp_path / "back").read_bytes() == b"lead" + content + b"tail"


def test_a_refused_download_leaves_its_target_alone(client: Client, tmp_path: Path) -> None:
    with (tmp_path / "back").open("wb") as back:
        back.write(b"lead")
        with pytest.raises(ClientError) as refused:
            client.fs.download(LOCAL_MACHINE, tmp_path / "nowhere", back)
        back.write(b"tail")
    assert refused.value.code == "no_such_file"
    assert (tmp_path / "back").read_bytes() == b"leadtail"


def test_a_truncated_file_is_an_error(own_daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(64 * MEBIBYTE))
    with Client(own_daemon.url, auth_file=own_daemon.auth_file) as client:
        client.shell.start(LOCAL_MACHINE)
        with client.fs.open(LOCAL_MACHINE, tmp_path / "big") as content:
            pieces = iter(content)
            next(pieces)
            own_daemon.kill()
            with pytest.raises(Unreachable, match="broke off after"):
                list(pieces)


def test_entries_directories_and_moves(client: Client, tmp_path: Path) -> None:
    client.fs.mkdir(LOCAL_MACHINE, tmp_path / "a/b", parents=True)
    client.fs.upload(LOCAL_MACHINE, b"12345", tmp_path / "a" / "file")
    (tmp_path / "a" / "link").symlink_to("file")
    entries = {entry.name: entry for entry in client.fs.list(LOCAL_MACHINE, tmp_path / "a")}
    assert {name: entry.type for name, entry in entries.items()} == {"b": "directory", "file": "file", "link": "link"}
    assert entries["file"].size == 5
    assert client.fs.stat(LOCAL_MACHINE, tmp_path / "a" / "link").type == "file"
    assert client.fs.stat(LOCAL_MACHINE, tmp_path / "a" / "link", follow=False).target == "file"
    client.fs.move(LOCAL_MACHINE, tmp_path / "a" / "file", tmp_path / "moved")
    assert (tmp_path / "moved").read_bytes() == b"12345"
    client.fs.remove(LOCAL_MACHINE, tmp_path / "a", recursive=True)
    assert not (tmp_path / "a").exists()
    script = client.fs.script(LOCAL_MACHINE, client.fs.blob(b"#!/bin/sh\necho ran"))
    assert client.shell.exec(LOCAL_MACHINE, script).stdout == "ran"


def test_names_that_are_not_utf_8(client: Client, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\xfe")
    client.fs.upload(LOCAL_MACHINE, b"x", tmp_path / odd)
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"\xff\xfe"]
    assert [entry.name for entry in client.fs.list(LOCAL_MACHINE, tmp_path)] == [odd]
    assert client.fs.read(LOCAL_MACHINE, tmp_path / odd) == b"x"
