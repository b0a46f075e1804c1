"""``connmgr cp -r`` and ``-a``: directories to connections, from them and between them, and many files at once."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from connmgr.cli.copy.local import LocalTree
from connmgr.cli.copy.plan import TreeEntry
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.fs.remote_hosts import names_in
from tests.fs.trees import WHEN, facts, plant

pytestmark = pytest.mark.needs("tar")

BIG = 3_000_017


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    plant(directory)
    (directory / "big").write_bytes(os.urandom(BIG))
    return directory


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small tree with a file of each kind that exclusions choose among."""
    directory = tmp_path / "site"
    for path in ("index.html", "cache/a", "cache/deep/b", "src/main.py", "src/cache/c", "src/main.pyc"):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(path)
    return directory


def test_a_tree_comes_back_as_it_was(connmgr: CommandLine, tree: Path, tmp_path: Path) -> None:
    connmgr("cp", "-a", f"{tree}", f"local:{tmp_path}/there")
    assert facts(tmp_path / "there") == facts(tree)
    connmgr("cp", "-a", f"local:{tmp_path}/there", f"{tmp_path}/back")
    assert facts(tmp_path / "back") == facts(tree)
    connmgr("cp", "-a", f"local:{tmp_path}/there", f"local:{tmp_path}/across")
    assert facts(tmp_path / "across") == facts(tree)


@pytest.mark.needs("sshd")
def test_a_tree_goes_over_ssh(clean_connmgr: CommandLine, start_sshd: StartSshd, tree: Path, tmp_path: Path) -> None:
    clean_connmgr.add_ssh("web", start_sshd())
    done = clean_connmgr("cp", "-a", f"{tree}", "web:tree-sent")
    assert "failed" not in done.errors
    clean_connmgr("cp", "-a", "web:tree-sent", f"{tmp_path}/back")
    assert facts(tmp_path / "back") == facts(tree)
    clean_connmgr("cp", "-a", "web:tree-sent", f"local:{tmp_path}/across")
    assert facts(tmp_path / "across") == facts(tree)
    clean_connmgr("cp", "-a", f"local:{tmp_path}/across", "web:tree-again")
    assert clean_connmgr("exec", "web", "--", "diff -r --no-dereference tree-sent tree-again").output == ""


def test_without_keeping_links_are_left_and_the_umask_counts(connmgr: CommandLine, tree: Path, tmp_path: Path) -> None:
    (tree / "open").write_text("x")
    (tree / "open").chmod(0o777)
    expected = {
        path: (kind, mode & ~0o022 if kind == "file" else 0, when, content)
        for path, (kind, mode, when, content) in facts(tree).items()
        if kind != "link"
    }
    for ends in (("tree", "local:{}/there"), ("local:{}/tree", "back")):
        start, end = (end.format(tmp_path) if ":" in end else f"{tmp_path}/{end}" for end in ends)
        done = connmgr("cp", "-r", start, end)
        assert "left out (links need -a)" in done.errors
        found = facts(tmp_path / end.rpartition("/")[2])
        assert {
            path: (kind, mode if kind == "file" else 0, when, content)
            for path, (kind, mode, when, content) in found.items()
        } == expected


@pytest.mark.parametrize("way", ["up", "down", "across"])
def test_a_second_run_sends_what_differs_alone(connmgr: CommandLine, site: Path, tmp_path: Path, way: str) -> None:
    start = f"{site}" if way == "up" else f"local:{site}"
    end = f"{tmp_path}/copy" if way == "down" else f"local:{tmp_path}/copy"
    assert connmgr("cp", "-r", start, end).errors.startswith("6 files, ")
    inodes = {path: path.stat().st_ino for path in (tmp_path / "copy").rglob("*")}
    (site / "index.html").write_text("changed and longer")
    (site / "src" / "main.py").write_text("src/main.PY")
    os.utime(site / "src" / "main.py", (WHEN, WHEN))
    (site / "new").write_text("new")
    done = connmgr("cp", "-r", f"{start}/.", end)
    assert done.errors.startswith("3 files, ")
    assert "4 equal" in done.errors
    assert facts(tmp_path / "copy") == facts(site)
    same = [path.name for path, inode in inodes.items() if path.is_file() and path.stat().st_ino == inode]
    assert sorted(same) == ["a", "b", "c", "main.pyc"]


@pytest.mark.parametrize("way", ["up", "down", "across"])
def test_excluded_files_are_not_copied(connmgr: CommandLine, site: Path, tmp_path: Path, way: str) -> None:
    start = f"{site}" if way == "up" else f"local:{site}"
    end = f"{tmp_path}/copy" if way == "down" else f"local:{tmp_path}/copy"
    connmgr("cp", "-r", "--exclude", "/cache", "--exclude", "*.pyc", "--exclude", "src/c*", start, end)
    files = [os.fsdecode(path) for path, (kind, *_) in facts(tmp_path / "copy").items() if kind == "file"]
    assert sorted(files) == ["index.html", "src/main.py"]


def test_a_directory_takes_what_is_copied_under_its_name(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    connmgr("cp", "-r", f"{site}", f"local:{tmp_path}/into")
    connmgr("cp", "-r", f"local:{site}/src", f"{tmp_path}/into/")
    connmgr("cp", "-r", f"{site}/cache/.", f"local:{tmp_path}/into")
    assert names_in(tmp_path / "into") == ["a", "deep", "site", "src"]


def test_several_sources_and_patterns(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    connmgr("cp", "-r", f"local:{site}/*", f"{tmp_path}/near")
    assert facts(tmp_path / "near") == facts(site)
    done = connmgr("cp", f"{site}/index.html", f"{site}/src/main.py", f"local:{tmp_path}/far")
    assert names_in(tmp_path / "far") == ["index.html", "main.py"]
    assert done.errors.startswith("2 files, ")
    connmgr("cp", f"local:{site}/src/main.p[xy]", f"{tmp_path}/one")
    assert (tmp_path / "one").read_text() == "src/main.py"
    assert "nothing matches" in connmgr("cp", f"local:{site}/*.none", f"{tmp_path}/near", code=5).errors
    several = connmgr("cp", f"{site}/index.html", f"{site}/src/main.py", f"local:{tmp_path}/nowhere", code=1)
    assert "is not a directory" in several.errors
    made = connmgr("cp", f"local:{site}/$(touch made)*", f"{tmp_path}/near", code=5)
    assert "nothing matches" in made.errors


def test_failures_name_their_side_and_the_rest_is_copied(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "index.html").mkdir()
    for start, end, side in (
        (f"{site}/.", f"local:{tmp_path}/into", "there"),
        (f"local:{site}/.", f"{tmp_path}/into", "here"),
        (f"local:{site}/.", f"local:{tmp_path}/into", "there"),
    ):
        failed = connmgr("cp", "-r", start, end, code=1)
        assert f"connmgr: {side}: " in failed.errors
        assert "into/index.html: " in failed.errors
        assert "1 failed" in failed.errors
        assert (tmp_path / "into" / "src" / "main.py").read_text() == "src/main.py"
        shutil.rmtree(tmp_path / "into" / "src")
    failed = connmgr("cp", f"{site}/index.html", f"{site}/nowhere", f"local:{tmp_path}", code=1)
    assert f"here: {site}/nowhere: " in failed.errors
    assert (tmp_path / "index.html").read_text() == "index.html"


def test_a_directory_needs_to_be_asked_for(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    for start, end in ((f"{site}", f"local:{tmp_path}/x"), (f"local:{site}", f"{tmp_path}/x")):
        assert "-r copies directories" in connmgr("cp", start, end, code=1).errors
        assert not (tmp_path / "x").exists()


def test_copying_follows_no_local_link(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "src").symlink_to(tmp_path / "outside")
    failed = connmgr("cp", "-r", f"local:{site}/.", f"{tmp_path}/into", code=1)
    assert "here: " in failed.errors
    assert names_in(tmp_path / "outside") == []
    assert (tmp_path / "into" / "cache" / "deep" / "b").exists()


def test_a_single_file_keeps_its_time_where_asked(connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o604)
    os.utime(tmp_path / "file", (WHEN, WHEN))
    connmgr("cp", "-a", f"{tmp_path}/file", f"local:{tmp_path}/there")
    connmgr("cp", "-a", f"local:{tmp_path}/there", f"{tmp_path}/back")
    connmgr("cp", "-a", f"local:{tmp_path}/there", f"local:{tmp_path}/across")
    for name in ("there", "back", "across"):
        status = (tmp_path / name).stat()
        assert (status.st_mode & 0o777, int(status.st_mtime)) == (0o604, WHEN), name


def test_all_connections_get_the_same(clean_connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    for name, shell in (("web1", "sh"), ("web2", "bash")):
        home = tmp_path / name
        home.mkdir()
        clean_connmgr("add", "local", name, f"shell=/bin/{shell}")
        clean_connmgr("exec", name, "--", f"cd {home}")
    done = clean_connmgr("cp", "--all", "web*", "--brief", "-r", f"{site}", ":copy")
    for name in ("web1", "web2"):
        assert facts(tmp_path / name / "copy") == facts(site)
        assert f"{name}  ok" in done.output
    assert "2 connections in " in done.errors
    (tmp_path / "web2" / "copy" / "index.html").unlink()
    (tmp_path / "web2" / "copy" / "index.html").mkdir()
    (site / "index.html").write_text("newer")
    failed = clean_connmgr("cp", "--all", "web*", "--brief", "-r", f"{site}/.", ":copy", code=1)
    assert "web1  ok" in failed.output
    assert "web2  failed" in failed.output
    assert "1 ok, 1 failed" in failed.errors
    as_json = clean_connmgr("cp", "--all", "web*", "--json", "-r", f"{site}/.", ":copy", code=1).output
    lines = {one["name"]: one for one in map(json.loads, as_json.splitlines())}
    assert (lines["default/web1"]["exitCode"], lines["default/web2"]["exitCode"]) == (0, 1)
    [failure] = lines["default/web2"]["failures"]
    assert (failure["side"], failure["path"]) == ("there", "web2:copy/index.html")
    again = clean_connmgr("ls", "--format", "names", "--failed", "-", stdin=as_json)
    assert again.output == "default/web2\n"
    together = clean_connmgr("cp", "--all", "web*", "-r", f"{site}/.", ":copy", code=1).output
    assert "web2 (1): failed" in together
    assert "stderr\nthere: web2:copy/index.html" in together
    single = clean_connmgr("cp", "--json", f"{site}/index.html", "web1:one").json
    assert (single["exitCode"], single["files"], single["bytes"]) == (0, 1, 5)
    for operands in ((":x", ":y"), ("x", "y"), ("-", ":y"), (":x", "-"), ("web1:x", "y"), ("x", ":y", ":z")):
        assert "With --all" in clean_connmgr("cp", "--all", "web*", *operands, code=2).errors, operands


def test_all_connections_give_theirs_into_directories_of_their_names(
    clean_connmgr: CommandLine, site: Path, tmp_path: Path
) -> None:
    for name, shell in (("web1", "sh"), ("web2", "bash"), ("web3", "dash")):
        home = tmp_path / name
        home.mkdir()
        clean_connmgr("add", "local", name, f"shell=/bin/{shell}")
        clean_connmgr("exec", name, "--", f"cd {home}")
        if name != "web3":
            shutil.copytree(site, home / "site")
            (home / "site" / "index.html").write_text(name)
    target = tmp_path / "fetched"
    mask = os.umask(0o027)
    try:
        failed = clean_connmgr("cp", "--all", "web*", "-r", ":site", ":site/*.html", f"{target}", "--brief", code=1)
    finally:
        os.umask(mask)
    assert "2 ok, 1 failed" in failed.errors
    assert "web3  failed" in failed.output
    assert names_in(target) == ["web1", "web2"]
    for name in ("web1", "web2"):
        assert names_in(target / name) == ["index.html", "site"]
        assert {(target / name / path).read_text() for path in ("index.html", "site/index.html")} == {name}
        assert (target / name / "site" / "src" / "main.py").stat().st_mode & 0o777 == 0o640
        assert target.stat().st_mode & 0o777 == 0o750
    clean_connmgr("cp", "--all", "web[12]", ":site/src/main.py", f"{target}/files")
    assert (target / "files" / "web2" / "main.py").read_text() == "src/main.py"


def test_a_directory_of_a_name_lies_in_no_other_and_leads_nowhere(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    clean_connmgr("add", "local", "web", "shell=/bin/sh")
    clean_connmgr("add", "shellEnvironment", "root", "host=web")
    refused = clean_connmgr("cp", "--all", "web", "--all", "web/root", ":x", f"{tmp_path}/into", code=1)
    assert "web/root would go into the directory of web" in refused.errors
    clean_connmgr("add", "local", "..", "shell=/bin/bash")
    refused = clean_connmgr("cp", "--all", "..", ":x", f"{tmp_path}/into", code=1)
    assert "cannot be a directory's name" in refused.errors
    assert not (tmp_path / "into").exists()


def test_fresh_shells_leave_nothing(clean_connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    clean_connmgr("add", "local", "web", "shell=/bin/sh")
    clean_connmgr("exec", "web", "--", f"cd {tmp_path}")
    running = len(clean_connmgr.daemon.client.shell.list())
    clean_connmgr("cp", "--fresh", f"web:{site}/index.html", f"web:{tmp_path}/index.html")
    assert (tmp_path / "index.html").read_bytes() == (site / "index.html").read_bytes()
    assert clean_connmgr("cp", "--fresh", "web:site/index.html", "-", code=1).errors, (
        "not in the directory of the shell"
    )
    clean_connmgr("cp", "--fresh", "--all", "web", "-r", f"{site}", f":{tmp_path}/copy")
    assert facts(tmp_path / "copy") == facts(site)
    assert len(clean_connmgr.daemon.client.shell.list()) == running
    assert "Give --session or --fresh" in clean_connmgr("cp", "--fresh", "--session", "x", "web:x", "y", code=2).errors


def test_progress_of_a_tree(connmgr: CommandLine, tree: Path, tmp_path: Path) -> None:
    code, printed = finish(connmgr.on_terminal("cp", "-r", f"{tree}", f"local:{tmp_path}/there"))
    assert code == 0
    assert "2.9/2.9 MiB" in printed or "3.0/3.0 MiB" in printed, printed
    code, printed = finish(connmgr.on_terminal("cp", "-r", "--quiet", f"{tree}", f"local:{tmp_path}/again"))
    assert (code, printed) == (0, "")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "..", "/x", "a//x", "./x", ""])
def test_a_path_that_a_machine_lists_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    entry = TreeEntry(path, "file", 1, 0o644, WHEN)
    local = LocalTree(tmp_path / "root", 0)
    try:
        for work in (
            lambda: local.file(entry, io.BytesIO(b"x"), lambda _: None),
            lambda: local.link(entry, "target"),
            lambda: local.directory(entry),
            lambda: local.again(entry._replace(path="b"), path),
        ):
            with pytest.raises(OSError, match="leads out"):
                work()
    finally:
        local.close(times=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["root"]
    assert names_in(tmp_path / "root") == ["a"]


@pytest.mark.parametrize("way", ["up", "down", "across"])
def test_with_checksums_the_content_tells_what_is_equal(
    connmgr: CommandLine, site: Path, tmp_path: Path, way: str
) -> None:
    start = f"{site}" if way == "up" else f"local:{site}"
    end = f"{tmp_path}/copy" if way == "down" else f"local:{tmp_path}/copy"
    connmgr("cp", "-r", start, end)
    (site / "empty").touch()
    (tmp_path / "copy" / "empty").touch()
    for path in (site / "index.html", site / "empty", site / "cache" / "a"):
        os.utime(path, (WHEN, WHEN))
    main = tmp_path / "copy" / "src" / "main.py"
    status = main.stat()
    main.write_text("src/main.PY")
    os.utime(main, ns=(status.st_atime_ns, status.st_mtime_ns))
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*") if path != main}
    done = connmgr("cp", "-r", "--checksum", "--exclude", "cache", f"{start}/.", end)
    assert done.errors.startswith("1 file, 11 B in ")
    assert "3 equal" in done.errors
    assert main.read_text() == "src/main.py"
    assert {path: path.stat().st_mtime_ns for path in times if path.is_file()} == {
        path: time for path, time in times.items() if path.is_file()
    }


def test_with_checksums_a_single_file_that_is_there_is_left(connmgr: CommandLine, site: Path, tmp_path: Path) -> None:
    for start, end in ((f"{site}/index.html", "local:{}"), (f"local:{site}/index.html", "{}")):
        target = tmp_path / end[:5].strip("{}:")
        target.mkdir(exist_ok=True)
        place = end.format(target)
        assert "1 file" in connmgr("cp", "--checksum", start, place).errors
        inode = (target / "index.html").stat().st_ino
        assert "1 equal" in connmgr("cp", "--checksum", start, place).errors
        assert "1 equal" in connmgr("cp", "-c", start, f"{place}/index.html").errors
        assert (target / "index.html").stat().st_ino == inode
        (target / "index.html").write_text("INDEX.html")
        assert "1 file" in connmgr("cp", "-c", start, place).errors
        assert (target / "index.html").read_text() == "index.html"
