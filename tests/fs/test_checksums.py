"""SHA-256 of many files at once, by any program, of files with any name, and of paths that are no files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import checksums, remote
from connmgr.fs.checksums import Checksums
from connmgr.fs.remote import RemoteFileSystem
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.fs.remote_hosts import NECESSARY, SHELLS, Elsewhere, busybox_tools, chosen_tools, shell_called_sh
from tests.fs.test_hostile_answers import place as scripted
from tests.fs.trees import plant
from tests.fs.wire import Caller
from tests.hostile import fill, quickly

LARGE = (1 << 20) + 100_003
"""Size of a file that gets its own process."""
SUM = b"0" * 64


def sums(place: RemoteFileSystem, path: bytes, *members: bytes) -> dict[bytes, str]:
    """Return the checksums of a remote host's files by path."""
    found = Checksums(place, path, members)
    try:
        return {one.name: one.sha256 for burst in found for one in burst}
    finally:
        found.close()


def sums_here(directory: Path) -> dict[bytes, str]:
    """Return the checksums of this machine's files by path."""
    return {
        bytes(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@contextmanager
def elsewhere(shell: Path, tools: str, directory: Path) -> Iterator[RemoteFileSystem]:
    """Lend a directory of this machine with another /bin/sh and the tools of one directory."""
    transport = Elsewhere(shell, tools, directory)
    yield RemoteFileSystem(transport, bytes(directory))
    transport.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "tree"
    directory.mkdir()
    plant(directory)
    for number in range(2):
        (directory / f"large {number}\n'").write_bytes(os.urandom(LARGE))
    return directory


TOOLS = [
    pytest.param("busybox", marks=pytest.mark.needs("busybox")),
    *(pytest.param(tool, id=tool) for tool in ("sha256sum", "openssl", "shasum")),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_any_program_tells_the_same_of_files_of_any_name(tool: str, tree: Path, tmp_path: Path) -> None:
    if tool != "busybox" and not os.access(f"/usr/bin/{tool}", os.X_OK):
        pytest.skip(f"{tool} is not installed")
    few = [*NECESSARY, "find", "stat", tool, *(["perl"] if tool == "shasum" else [])]
    tools = busybox_tools(tmp_path) if tool == "busybox" else chosen_tools(tmp_path, few)
    with elsewhere(Path("/bin/sh"), tools, tmp_path) as place:
        assert sums(place, b"tree") == sums_here(tree)


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_chooses_members_and_tells_what_is_missing(shell: str, tree: Path, tmp_path: Path) -> None:
    everything = sums_here(tree)
    names = sorted(everything)[::3]
    (tree / "link to it").symlink_to(os.fsdecode(names[0]))
    with elsewhere(shell_called_sh(tmp_path, shell), os.environ["PATH"], tmp_path) as place:
        assert sums(place, bytes(tree), *names) == {name: everything[name] for name in names}
        assert sums(place, b"tree", b"nowhere", names[0]) == {names[0]: everything[names[0]]}
        assert sums(place, b"tree/link to it") == {b"link to it": everything[names[0]]}
        assert sums(place, b"tree", b"link to it") == {}
        with pytest.raises(errors.NoSuchFile):
            sums(place, b"nowhere")


def test_names_that_one_call_cannot_take_take_several(here: RemoteFileSystem, folder: Path) -> None:
    for number in range(300):
        (folder / f"{number:03} {'n' * 200}").write_text(str(number))
    names = [bytes(path.relative_to(folder)) for path in folder.iterdir()]
    assert sum(map(len, names)) > remote.CALL_BYTES
    assert sums(here, b".", *names) == sums_here(folder)


@pytest.mark.parametrize("missing", ["find", "sha256sum"])
def test_the_error_names_the_missing_tool(missing: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tools = chosen_tools(tmp_path, [one for one in (*NECESSARY, "find", "sha256sum") if one != missing])
    with elsewhere(Path("/bin/sh"), tools, tmp_path) as place, pytest.raises(errors.FileOperationFailed, match=missing):
        sums(place, b".")


@pytest.mark.parametrize("member", [b"../x", b"/etc/passwd", b"a/../../x", b".."])
def test_members_lead_nowhere_else(here: RemoteFileSystem, member: bytes) -> None:
    with pytest.raises(errors.InvalidRequest, match="stay within"):
        sums(here, b".", member)


@pytest.mark.slow
def test_a_client_that_leaves_during_a_checksum_frees_the_slot(start_daemon: StartDaemon, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("openssl", "sha256sum"):
        slow = tools / name
        slow.write_text(f'#!/bin/sh\n[ "$(wc -c)" = 0 ] && exec {shutil.which(name)} "$@" </dev/null\nsleep 120\n')
        slow.chmod(0o755)
    daemon = start_daemon("--threads", "1", environment={"PATH": f"{tools}:{os.environ['PATH']}"})
    caller = Caller(daemon)
    caller.start()
    (tmp_path / "large").write_bytes(bytes(LARGE))
    with caller.reading(tmp_path / "large", "/fs/checksum") as response:
        assert response.status == 200
        assert response.read(1) == b" ", "nothing comes while the machine computes"
        assert caller.read(tmp_path / "large").status == 503
        response.close()
    eventually_equal(lambda: caller.read(tmp_path / "large").status, 200, "the slot is not freed")


HOSTILE: Sequence[bytes] = [
    b"",
    b"end",
    SUM + b"  ./x\0",
    b"\0MARK end",
    b"x  ./y\0MARK end",
    SUM.replace(b"0", b"g") + b"  ./x\0MARK end",
    SUM + b"  \0MARK end",
    b"-1\n\0MARK end",
    b"9" * 19 + b"\n\0MARK end",
    SUM + b"  ./x\0MARK end\0",
    fill(b"x"),
    fill(b"\0"),
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: repr(answer[:20]))
def test_whatever_a_remote_host_answers_is_read_quickly(answer: bytes) -> None:
    remote_host = scripted(b"MARK ok\n" + answer + b"MARK over 0\n", remote.CHECKSUM)
    with quickly(), pytest.raises(errors.TransferFailed):
        sums(remote_host, b".")


def test_a_remote_host_that_tells_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 20
    monkeypatch.setattr(checksums, "LISTING_BYTES", limit)
    answer = b"MARK ok\n" + fill(SUM + b"  ./x\0", 2 * limit) + b"MARK endMARK over 0\n"
    with pytest.raises(errors.TransferFailed, match="more than"):
        sums(scripted(answer, remote.CHECKSUM), b".")


def test_over_http_they_come_with_their_paths_and_are_in_the_audit_log(own_daemon: Daemon, tree: Path) -> None:
    caller = Caller(own_daemon)
    caller.start()
    with caller.reading(tree, "/fs/checksum") as response:
        found = json.loads(response.read())["entries"]
    shown = {one["name"]: one["sha256"] for one in found if isinstance(one["name"], str)}
    expected = {name: digest for name, digest in sums_here(tree).items() if re.search(rb"[\x80-\xff]", name) is None}
    assert {os.fsencode(name): digest for name, digest in shown.items() if name.isascii()} == expected
    (tree / "empty").mkdir()
    with caller.reading(tree / "empty", "/fs/checksum") as response:
        assert json.loads(response.read()) == {"entries": []}
    with caller.reading(tree / "nowhere", "/fs/checksum") as response:
        assert (response.status, json.loads(response.read())["code"]) == (400, "no_such_file")
    own_daemon.stop()
    log = [json.loads(line) for line in (own_daemon.data_dir / "audit.log").read_text().splitlines()]
    entry = next(one for one in log if one.get("path") == "/fs/checksum")
    assert f'"files": {len(found)}' in json.dumps(entry)
