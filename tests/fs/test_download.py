"""/fs/ticket and /fs/download: a browser's link stands for one file, once."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from connmgr.api.download import name_of
from tests.api.wire import LOCAL, Answer, send
from tests.fs.wire import Caller

MEBIBYTE = 1 << 20


def _ticket(caller: Caller, path: object, **fields: Any) -> Any:
    answer = caller.post("/fs/ticket", connection=LOCAL, path=str(path), **fields)
    assert answer.status == 200, answer.body
    return answer.json


def _download(caller: Caller, ticket: str, **headers: str) -> Answer:
    return send(caller.daemon.url, f"/fs/download?ticket={ticket}", headers=headers, method="GET")


def test_a_ticket_downloads_its_file_once_without_a_token(caller: Caller, tmp_path: Path) -> None:
    content = os.urandom(3 * MEBIBYTE + 17)
    (tmp_path / "naïve <b>.bin").write_bytes(content)
    found = _ticket(caller, tmp_path / "naïve <b>.bin")
    assert (found["name"], found["size"]) == ("naïve _b_.bin", len(content))
    answer = _download(caller, found["ticket"])
    assert answer.status == 200, answer.body
    assert answer.body == content
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-disposition"].startswith("attachment;")
    assert "filename*=UTF-8''na%C3%AFve%20_b_.bin" in headers["content-disposition"]
    assert headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert headers["x-content-type-options"] == "nosniff"
    again = _download(caller, found["ticket"])
    assert (again.status, again.code) == (403, "invalid_token")


def test_a_ticket_downloads_an_archive_of_members(caller: Caller, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
    found = _ticket(caller, tmp_path, archive=True, members=["one", "two"])
    assert (found["name"], found["size"]) == (f"{tmp_path.name}.tar", None)
    answer = _download(caller, found["ticket"])
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        names = sorted(member.name for member in archive if member.isfile())
    assert names == ["./one", "./two"]


def test_what_cannot_be_read_is_said_before_there_is_a_ticket(caller: Caller, tmp_path: Path) -> None:
    nowhere = caller.post("/fs/ticket", connection=LOCAL, path=str(tmp_path / "nowhere"))
    assert (nowhere.status, nowhere.code) == (400, "no_such_file")
    directory = caller.post("/fs/ticket", connection=LOCAL, path=str(tmp_path))
    assert (directory.status, directory.code) == (400, "wrong_file_type")
    members = caller.post("/fs/ticket", connection=LOCAL, path=str(tmp_path), members=["a"])
    assert (members.status, members.code) == (400, "invalid_request")


def test_a_ticket_of_a_terminal_downloads_nothing(caller: Caller) -> None:
    opened = caller.post("/terminal/open", connection=LOCAL, command="cat")
    assert opened.status == 200, opened.body
    terminal = opened.json["terminal"]
    ticket = caller.post("/terminal/ticket", terminal=terminal).json["ticket"]
    refused = _download(caller, ticket)
    assert (refused.status, refused.code) == (403, "invalid_token")
    assert caller.post("/terminal/close", terminal=terminal).status == 200


def test_another_page_cannot_use_a_ticket(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = _ticket(caller, tmp_path / "file")
    refused = _download(caller, found["ticket"], **{"Sec-Fetch-Site": "cross-site"})
    assert (refused.status, refused.code) == (403, "forbidden_origin")
    assert _download(caller, found["ticket"], **{"Sec-Fetch-Site": "same-origin"}).body == b"x"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/var/log/syslog", "syslog"),
        (b"/srv/site/", "site"),
        (b"/", "files"),
        (b"~/", "files"),
        (b"..", "files"),
        (b"/a/evil\x1b[2J\n.txt", "evil_[2J_.txt"),
        ("/a/ann\u202eexe.txt".encode(), "ann_exe.txt"),
        (b"/a/\xff", "\ufffd"),
    ],
)
def test_the_name_of_a_download(path: bytes, name: str) -> None:
    assert name_of(path) == name
