"""The secret source envFile: what it reads, and which files it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connmgr.errors import SecretUnavailable
from connmgr.fields import ValidationError
from connmgr.plugin import Deadline
from connmgr_sources.files import MAX_FILE, EnvFileSource

CONTENT = """
# PASSWORD=commented out
PASSWORD=first
export PASSWORD = no assignment
PASSWORD=last value # and a comment
EXPORTED=1
  export QUOTED='it''s "quoted" # here'   # not here
DOUBLE="with \\"escapes\\""
EMPTY=
UNCLOSED="hunter2
HASH=a#b
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.env"
    path.write_text(CONTENT)
    path.chmod(0o600)
    return path


def fetched(path: Path, name: str) -> str:
    source = EnvFileSource()
    return source.fetch(source.schema().load({"file": str(path), "name": name}), Deadline(60))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD", "last value"),
        ("QUOTED", 'its "quoted" # here'),
        ("DOUBLE", 'with "escapes"'),
        ("HASH", "a#b"),
        ("EMPTY", ""),
    ],
)
def test_a_variable_has_its_last_value(file: Path, name: str, value: str) -> None:
    assert fetched(file, name) == value


@pytest.mark.parametrize("name", ["MISSING", "password", "UNCLOSED"])
def test_what_is_not_there_is_named_without_any_value(file: Path, name: str) -> None:
    with pytest.raises(SecretUnavailable, match=f"no readable line {name}=") as failure:
        fetched(file, name)
    assert "hunter2" not in failure.value.message
    assert failure.value.for_tokens == "The secret source envFile failed."


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_may_open_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(SecretUnavailable, match="open to others: run chmod 600"):
        fetched(file, "PASSWORD")


def test_other_files_are_refused(tmp_path: Path) -> None:
    fifo, big, binary = tmp_path / "fifo", tmp_path / "big", tmp_path / "binary"
    os.mkfifo(fifo, 0o600)
    big.write_bytes(b"A=hunter2\n" * (MAX_FILE // 10 + 1))
    binary.write_bytes(b"A=\xffhunter2\n")
    for path in (big, binary):
        path.chmod(0o600)
    for path, why in [
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
        (big, "more than 1 MiB"),
        (binary, "not UTF-8"),
        (tmp_path / "none", "No such file"),
    ]:
        with pytest.raises(SecretUnavailable, match=why) as failure:
            fetched(path, "A")
        assert "hunter2" not in failure.value.message
        assert failure.value.__cause__ is None or "hunter2" not in repr(failure.value.__cause__)


def test_a_relative_path_would_be_another_file_elsewhere() -> None:
    with pytest.raises(ValidationError):
        EnvFileSource().schema().load({"file": "secrets.env", "name": "A"})
