"""Lines with a text, found on hosts with any shell and tools, in files of any name; and where a search ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import search
from connmgr.fs.remote import RemoteFileSystem
from connmgr.fs.search import SearchedText, TextLine
from tests.fs.gates import Patterns
from tests.fs.remote_hosts import NECESSARY, SHELLS, busybox_tools, chosen_tools, shell_called_sh
from tests.fs.test_checksums import elsewhere

LONG = "x" * 20_000


def found(
    place: RemoteFileSystem, path: str, text: str, names: str = "*", most: int = 100, *, ignore_case: bool = False
) -> tuple[set[tuple[str, int, str]], bool]:
    """Return the name, number and text of each line that is found, and whether these are all."""
    lines, complete = search.search(place, path.encode(), SearchedText(text, names, most, ignore_case), 30)
    assert len(lines) == len(set(lines))
    return {(os.fsdecode(one.name), one.line, one.text) for one in lines}, complete


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    (directory / "sub" / "deep").mkdir(parents=True)
    (directory / "one.conf").write_text("first\nthe needle: is here\nNEEDLE:\n\nand needle: again")
    (directory / "sub" / "two\nlines:3:needle:.log").write_text("needle: in an odd file\n")
    (directory / "sub" / "deep" / "-e").write_text(f"{LONG} needle: {LONG}\n")
    (directory / "binary").write_bytes(b"needle: \0 needle:")
    (directory / "empty").touch()
    (directory / "link").symlink_to("one.conf")
    (directory / "latin").write_bytes(b"caf\xe9 needle:\n")
    return directory


ALL = {
    ("one.conf", 2, "the needle: is here"),
    ("one.conf", 5, "and needle: again"),
    ("sub/two\nlines:3:needle:.log", 1, "needle: in an odd file"),
    ("latin", 1, "caf� needle:"),
}
"""Without the line that is too long to be shown."""


def without_long(lines: set[tuple[str, int, str]]) -> set[tuple[str, int, str]]:
    return {one for one in lines if one[0] != "sub/deep/-e"}


def expect_the_same(place: RemoteFileSystem) -> None:
    everything, complete = found(place, "tree", "needle:")
    assert (without_long(everything), complete) == (ALL, True)
    assert len(everything) == len(ALL) + 1
    assert found(place, "tree", "needle:", "*.conf") == ({one for one in ALL if one[0] == "one.conf"}, True)
    both, _ = found(place, "tree", "nEEdle:", "*.conf", ignore_case=True)
    assert {line for _, line, _ in both} == {2, 3, 5}
    # Never a pattern, an option or the beginning of a script.
    for text in ("needle.", "-r", "$(echo needle:)", "'", "*"):
        assert found(place, "tree", text) == (set(), True)
    some, complete = found(place, "tree", "needle:", most=2)
    assert (len(some), complete) == (2, False)
    assert found(place, "tree/link", "again") == ({("link", 5, "and needle: again")}, True)
    with pytest.raises(errors.NoSuchFile):
        found(place, "nowhere", "needle:")


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_finds_the_same(shell: str, tree: Path, tmp_path: Path) -> None:
    with elsewhere(shell_called_sh(tmp_path, shell), os.environ["PATH"], tmp_path) as place:
        expect_the_same(place)


@pytest.mark.needs("busybox")
def test_busybox_s_tools_find_the_same(tree: Path, tmp_path: Path) -> None:
    with elsewhere(Path("/bin/sh"), busybox_tools(tmp_path), tmp_path) as place:
        expect_the_same(place)


def test_under_rules_over_paths_the_same_is_found_and_nothing_elsewhere(tree: Path, tmp_path: Path) -> None:
    with elsewhere(Path("/bin/sh"), os.environ["PATH"], tmp_path) as open_place:
        allowed = Patterns(bytes(tree) + b"/**", denied=(bytes(tree) + b"-not/**",))
        place = RemoteFileSystem(open_place.transport, open_place.directory, gate=allowed)
        everything, complete = found(place, "tree", "needle:")
        assert (without_long(everything), complete) == (ALL, True)
        assert found(place, "tree", "needle:", "*.conf")[0] == {one for one in ALL if one[0] == "one.conf"}
        for path in (".", "/", "tree/../other"):
            with pytest.raises(errors.PolicyDenied):
                found(place, path, "needle:")


def test_a_long_line_is_shown_around_the_text(tree: Path, tmp_path: Path) -> None:
    with elsewhere(Path("/bin/sh"), os.environ["PATH"], tmp_path) as place:
        (tree / "wide").write_text(f"{'y' * 9000} here it is {LONG}\n")
        [(_, _, text)] = found(place, "tree", "here it is")[0]
        assert len(text) == search.SHOWN_CHARACTERS
        assert " here it is x" in text


@pytest.mark.parametrize("missing", ["find", "grep"])
def test_the_error_names_the_missing_tool(missing: str, tree: Path, tmp_path: Path) -> None:
    tools = chosen_tools(tmp_path, [one for one in (*NECESSARY, "find", "grep", "cut", "tr") if one != missing])
    with elsewhere(Path("/bin/sh"), tools, tmp_path) as place, pytest.raises(errors.FileOperationFailed, match=missing):
        found(place, "tree", "needle:")


def test_a_search_that_is_not_over_in_time_tells_what_it_has_found(tree: Path, tmp_path: Path) -> None:
    tools = chosen_tools(tmp_path, [*NECESSARY, "find", "cut", "tr"])
    slow = Path(tools, "grep")
    slow.write_text('#!/bin/sh\ncase $* in *--\\ *) printf "./a\\0001:needle\\n"; exec sleep 120;; esac\necho x\n')
    slow.chmod(0o755)
    (Path(tools) / "sleep").symlink_to("/bin/sleep")
    with elsewhere(Path("/bin/sh"), tools, tmp_path) as place:
        lines, complete = search.search(place, b"tree", SearchedText("needle", "*", 10, ignore_case=False), 1)
        assert not complete
        assert set(lines) <= {TextLine(b"a", 1, "needle")}
