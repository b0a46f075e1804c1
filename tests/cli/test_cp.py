"""``connmgr cp``: files to connections, from them and between them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish

SIZE = 3_000_017


@pytest.fixture
def content() -> bytes:
    return os.urandom(SIZE)


def test_a_file_goes_there_and_back(connmgr: CommandLine, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "here").write_bytes(content)
    (tmp_path / "here").chmod(0o750)
    connmgr("cp", f"{tmp_path}/here", f"local:{tmp_path}/there")
    assert (tmp_path / "there").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o750
    connmgr("cp", f"local:{tmp_path}/there", f"{tmp_path}/back")
    assert (tmp_path / "back").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "back").stat().st_mode) == 0o750
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "here", "there"]


@pytest.mark.needs("sshd")
def test_over_ssh_and_from_one_connection_to_another(
    clean_connmgr: CommandLine, start_sshd: StartSshd, tmp_path: Path, content: bytes
) -> None:
    clean_connmgr.add_ssh("web", start_sshd())
    (tmp_path / "here").write_bytes(content)
    clean_connmgr("cp", f"{tmp_path}/here", "web:sent")
    assert clean_connmgr("exec", "web", "--", "wc -c < sent").output.strip() == str(SIZE)
    clean_connmgr("cp", "web:sent", f"local:{tmp_path}/across")
    assert (tmp_path / "across").read_bytes() == content
    clean_connmgr("cp", f"local:{tmp_path}/across", "web:~/again")
    clean_connmgr("exec", "web", "--", "cmp sent again")


def test_streams(connmgr: CommandLine, tmp_path: Path, content: bytes) -> None:
    connmgr("cp", "-", f"local:{tmp_path}/file", stdin=content)
    assert (tmp_path / "file").read_bytes() == content
    assert connmgr("cp", f"local:{tmp_path}/file", "-").stdout == content
    connmgr("cp", "-", f"local:{tmp_path}/empty", stdin=b"")
    assert (tmp_path / "empty").read_bytes() == b""
    assert connmgr("cp", f"local:{tmp_path}/empty", "-").stdout == b""


def test_a_directory_takes_the_file_under_its_name(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    for target in (f"local:{tmp_path}/far", f"local:{tmp_path}/far/"):
        connmgr("cp", f"{tmp_path}/file", target)
        assert (tmp_path / "far" / "file").read_text() == "x"
        (tmp_path / "far" / "file").unlink()
    connmgr("cp", f"local:{tmp_path}/file", f"{tmp_path}/near")
    assert (tmp_path / "near" / "file").read_text() == "x"


def test_an_empty_path_is_the_shell_s_directory(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "far").mkdir()
    clean_connmgr("exec", "local", "--", f"cd {tmp_path}/far")
    clean_connmgr("cp", f"{tmp_path}/file", "local:")
    clean_connmgr("cp", f"{tmp_path}/file", "local:other")
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["file", "other"]


def test_modes(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    connmgr("cp", "--mode", "0600", f"{tmp_path}/file", f"local:{tmp_path}/private")
    connmgr("cp", "--mode", "700", f"local:{tmp_path}/file", f"{tmp_path}/program")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "program")}
    assert modes == {"private": 0o600, "program": 0o700}
    assert "octal" in connmgr("cp", "--mode", "rw", f"{tmp_path}/file", "local:x", code=2).errors


def test_a_failed_copy_leaves_no_file_and_says_why(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for source, target, code, said in (
        (f"local:{tmp_path}/nowhere", f"{tmp_path}/old", 1, f"Error: local:{tmp_path}/nowhere: File does not exist"),
        (f"local:{tmp_path}/nowhere", "local:copy", 1, f"Error: local:{tmp_path}/nowhere: File does not exist"),
        (f"{tmp_path}/old", f"local:{tmp_path}/no/where", 1, f"Error: local:{tmp_path}/no/where: The directory"),
        (f"{tmp_path}/nowhere", f"local:{tmp_path}/old", 1, "No such file"),
        (f"local:{tmp_path}", f"{tmp_path}/old", 1, "directory"),
        (f"{tmp_path}", f"local:{tmp_path}/old", 1, "directory"),
        (f"{tmp_path}/old", f"{tmp_path}/new", 2, "CONNECTION:path"),
        ("-", "local:", 2, "name the file"),
        ("-", f"local:{tmp_path}", 2, "name the file"),
        (f"{tmp_path}/old", "nowhere:x", 5, "No connection is called"),
        (f"local:{tmp_path}/old", f"{tmp_path}/no/where", 1, "No such file"),
    ):
        assert said in connmgr("cp", source, target, code=code).errors, (source, target)
        assert (tmp_path / "old").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["old"], (source, target)


def test_local_paths_may_have_a_colon(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("x")
    connmgr("cp", f"{tmp_path}/a:b", f"local:{tmp_path}/c:d")
    assert (tmp_path / "c:d").read_text() == "x"


def test_a_local_name_may_be_as_long_as_the_system_takes(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    target = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    connmgr("cp", f"local:{tmp_path}/file", str(target))
    assert target.read_text() == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file", target.name])


def test_progress_is_shown_on_a_terminal_unless_told_otherwise(
    connmgr: CommandLine, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "big[1]").write_bytes(content)
    for options, shown in (((), True), (("--quiet",), False)):
        terminal = connmgr.on_terminal("cp", *options, f"{tmp_path}/big[1]", f"local:{tmp_path}/there")
        code, printed = finish(terminal)
        assert code == 0
        assert ("2.9/2.9 MiB" in printed) == shown, printed
        assert ("big[1]" in printed) == shown
    assert connmgr("cp", f"{tmp_path}/big[1]", f"local:{tmp_path}/there").errors == ""


def test_all_does_not_take_an_option_for_a_glob(connmgr: CommandLine) -> None:
    for option in ("--sudo", "-q"):
        errors = connmgr("cp", "--all", option, "local", "file", ":/tmp/file", code=2).errors
        assert f"--all needs a GLOB, and {option} follows it: write `--all GLOB {option}`." in errors
