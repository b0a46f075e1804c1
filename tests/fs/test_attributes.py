"""/fs/attributes, and uploads that replace only what they know."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from tests.api.wire import LOCAL
from tests.fs.wire import Caller


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_mode_is_set_as_given(caller: Caller, tmp_path: Path) -> None:
    file, directory = tmp_path / "-file", tmp_path / "directory"
    file.write_text("x")
    directory.mkdir()
    for path, mode in ((file, 0o600), (file, 0o4755), (file, 0o755), (directory, 0o2775), (directory, 0o755)):
        answer = caller.post("/fs/attributes", connection=LOCAL, path=str(path), mode=f"{mode:04o}")
        assert answer.status == 200, answer.body
        assert (path, oct(_mode(path))) == (path, oct(mode))


def test_an_owner_and_a_group_by_number(caller: Caller, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    own = str(os.getuid()), str(os.getgid())
    answer = caller.post("/fs/attributes", connection=LOCAL, path=str(file), owner=own[0], group=own[1], mode="0640")
    assert answer.status == 200, answer.body
    assert (str(file.stat().st_uid), str(file.stat().st_gid), _mode(file)) == (*own, 0o640)


def test_what_is_wrong_is_said(caller: Caller, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")

    def refused(path: Path = file, **fields: str) -> tuple[int, str | None]:
        answer = caller.post("/fs/attributes", connection=LOCAL, path=str(path), **fields)
        return answer.status, answer.code

    assert refused() == (400, "invalid_request")
    assert refused(owner="-R") == (400, "invalid_request")
    assert refused(owner="a:b") == (400, "invalid_request")
    assert refused(tmp_path / "nowhere", mode="0600") == (400, "no_such_file")
    unknown = caller.post("/fs/attributes", connection=LOCAL, path=str(file), owner="nobody-of-this-name")
    assert unknown.code == "file_operation_failed"
    assert "no such user or group" in unknown.message


def test_an_upload_replaces_only_what_it_knows(caller: Caller, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    old, other = hashlib.sha256(b"old").hexdigest(), hashlib.sha256(b"other").hexdigest()
    assert caller.put("/fs/upload", file, b"new", create="true").code == "file_exists"
    assert caller.put("/fs/upload", file, b"new", replaces=other).code == "file_changed"
    assert file.read_bytes() == b"old"
    assert caller.put("/fs/upload", file, b"new", replaces=old, create="true").status == 400
    assert caller.put("/fs/upload", file, b"new", replaces=old).status == 200
    assert file.read_bytes() == b"new"
    assert caller.put("/fs/upload", tmp_path / "another", b"new", create="true").status == 200
