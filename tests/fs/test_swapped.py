"""Writing as root into another user's directory, while that user replaces the written files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from connmgr import errors
from connmgr.fs import checksums, files
from connmgr.fs.archives import Tally, extract
from connmgr.fs.bodies import Blobs
from connmgr.fs.remote import CHUNK_BYTES, RemoteFileSystem
from connmgr.fs.search import SearchedText, search
from connmgr_local.transport import LocalTransport
from tests.deadlines import eventually
from tests.fs.conftest import Write
from tests.fs.remote_hosts import SHELLS, Elsewhere, chosen_tools, content_of, litter, names_in, shell_called_sh, stored
from tests.fs.swapper import LIMIT, PAUSE, swapped
from tests.fs.trees import archive_of

STRANGER = 54321
"""A user id without a user."""

WRITES = 15

# A link and the real thing take turns as `name`: a file, or a directory with a file.
_ATTACK = f"""
import os, sys, time
directory, name, victim = sys.argv[1:]
os.chdir(directory)
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
if name == "sub":
    os.mkdir("real")
    open("real/file", "w").close()
def pause():
    time.sleep({PAUSE})
print("ready", flush=True)
for _ in range({LIMIT}):
    try:
        os.symlink(victim, "link")
        os.rename("link", name)
        pause()
        if name == "sub":
            os.symlink("real", "link")
            os.rename("link", name)
        else:
            open("new", "w").close()
            os.rename("new", name)
    except OSError:
        pass
    pause()
"""


@pytest.fixture
def theirs(folder: Path) -> Path:
    """A directory of the stranger."""
    path = folder / "theirs"
    path.mkdir()
    os.chown(path, STRANGER, STRANGER)
    return path


@pytest.fixture
def victim(folder: Path) -> Path:
    """A directory that the stranger may not write to."""
    path = folder / "root's"
    path.mkdir()
    return path


@contextmanager
def attacked(directory: Path, name: str, victim: Path) -> Iterator[None]:
    """Let the stranger replace ``name`` by a link to ``victim`` and back, at random moments."""
    argv = [sys.executable, "-c", _ATTACK, str(directory), name, str(victim)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout
        try:
            assert attacker.stdout.readline() == b"ready\n"
            yield
            assert attacker.poll() is None, "the attack ended before the writes did"
        finally:
            attacker.kill()


@pytest.mark.needs("machine")
@pytest.mark.parametrize("move", [False, True], ids=["write", "move"])
def test_a_link_to_a_directory_in_the_target_s_place_gets_nothing(
    here: RemoteFileSystem, write: Write, theirs: Path, victim: Path, move: bool
) -> None:
    with attacked(theirs, "file", victim):
        for _ in range(WRITES):
            with suppress(errors.ConnmgrError):
                if move:
                    write(here, b"mine", b"root's")
                    files.move(here, b"mine", b"theirs/file", overwrite=True, timeout=20)
                else:
                    write(here, b"theirs/file", b"root's")
            assert names_in(victim) == [], "what was for the stranger's directory is in root's"


@pytest.mark.needs("machine")
def test_a_link_in_the_directory_s_place_does_not_give_its_files_away(
    here: RemoteFileSystem, write: Write, theirs: Path, victim: Path
) -> None:
    (victim / "file").write_bytes(b"root's")
    with attacked(theirs, "sub", victim):
        for _ in range(WRITES):
            # Only a file of the stranger has an owner that root's file must not get.
            os.chown(theirs / "real/file", STRANGER, STRANGER)
            with suppress(errors.ConnmgrError):
                write(here, b"theirs/sub/file", b"content")
            assert (victim / "file").stat().st_uid == 0, "the stranger owns a file of root's directory"


@pytest.mark.needs("machine")
def test_a_file_in_the_temporary_one_s_place_is_told(theirs: Path, blobs: Blobs) -> None:
    transport = LocalTransport()
    with stored(blobs, b"x" * 300_000) as blob:
        pieces = blob.pieces()

        def swapping() -> Iterator[bytes]:
            (temporary,) = litter(theirs)
            (theirs / temporary).unlink()
            (theirs / temporary).write_bytes(b"the stranger's")
            yield from pieces

        blob.pieces = swapping  # type: ignore[method-assign]
        with pytest.raises(errors.FileOperationFailed, match="Somebody else replaced the file"):
            files.write(RemoteFileSystem(transport, bytes(theirs)), b"file", blob, None)
    transport.close()


@pytest.mark.needs("machine")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_link_in_a_directory_s_place_gets_nothing_of_an_archive(
    tmp_path: Path, folder: Path, theirs: Path, victim: Path, shell: str
) -> None:
    transport = Elsewhere(shell_called_sh(tmp_path, shell), os.environ["PATH"], tmp_path)
    place, content = RemoteFileSystem(transport, bytes(folder)), archive_of(("sub/new", {}))
    (theirs / "sub").mkdir()
    (theirs / "other").symlink_to(victim)
    with swapped(theirs / "sub", theirs / "other"):
        for _ in range(WRITES):
            with suppress(errors.ConnmgrError):
                extract(place, b"theirs", [content], exact=False, tally=Tally())
            assert names_in(victim) == [], "what was for the stranger's directory is in root's"
    transport.close()


@pytest.mark.needs("machine")
@pytest.mark.parametrize("when", ["before", "afterwards"])
def test_an_archive_s_files_come_from_the_directory_that_was_made_for_them(
    here: RemoteFileSystem, theirs: Path, victim: Path, when: str
) -> None:
    (victim / "file").write_bytes(b"root's")
    content = archive_of(("new", {"content": bytes(3 * CHUNK_BYTES)}))

    def swapping() -> Iterator[bytes]:
        yield content[: 2 * CHUNK_BYTES]
        if when == "afterwards":
            (temporary,) = litter(theirs)
            eventually((theirs / temporary / "new").exists, "nothing was unpacked")
        (temporary,) = litter(theirs)
        (theirs / temporary).rename(theirs / "away")
        (theirs / temporary).symlink_to(victim)
        yield content[2 * CHUNK_BYTES :]

    with suppress(errors.ConnmgrError):
        extract(here, b"theirs", swapping(), exact=False, tally=Tally())
    assert (victim / "file").read_bytes() == b"root's"
    assert not (theirs / "file").exists(), "what is root's went to the stranger"


@pytest.mark.needs("machine")
@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_is_made_where_a_link_in_the_file_s_place_leads(
    tmp_path: Path, folder: Path, theirs: Path, victim: Path, write: Write, shell: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # A file whose owner cannot be kept is written in place.
    (tools / "chown").write_text(f'#!/bin/sh\nrm "{theirs}/file"; ln -s "{victim}/new" "{theirs}/file"; exit 1\n')
    (tools / "chown").chmod(0o755)
    (theirs / "file").write_bytes(b"old")
    transport = Elsewhere(shell_called_sh(tmp_path, shell), f"{tools}:{os.environ['PATH']}", tmp_path)
    with pytest.raises(errors.PermissionDenied):
        write(RemoteFileSystem(transport, bytes(folder)), b"theirs/file", b"content")
    transport.close()
    assert not names_in(victim), "an empty file was made"


@pytest.mark.needs("machine")
@pytest.mark.parametrize("parents", [False, True], ids=["", "parents"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_link_in_a_new_directory_s_place_gets_no_mode(
    tmp_path: Path, folder: Path, theirs: Path, victim: Path, shell: str, parents: bool
) -> None:
    tools, name = tmp_path / "tools", "above/new" if parents else "new"
    tools.mkdir()
    # That of busybox sets the mode by the name, after the directory was made.
    (tools / "mkdir").write_text(
        f'#!/bin/sh\nmode=\ncase "$*" in *-m*) mode=0777;; esac\n'
        f'/bin/mkdir -p "{theirs}/{name}"; rmdir "{theirs}/{name}"; ln -s "{victim}" "{theirs}/{name}"\n'
        f'[ ! "$mode" ] || chmod "$mode" "{theirs}/{name}"\n'
    )
    (tools / "mkdir").chmod(0o755)
    before = victim.stat().st_mode
    transport = Elsewhere(shell_called_sh(tmp_path, shell), f"{tools}:{os.environ['PATH']}", tmp_path)
    with suppress(errors.ConnmgrError):
        files.make_directory(
            RemoteFileSystem(transport, bytes(theirs)), name.encode(), 0o777, parents=parents, timeout=20
        )
    transport.close()
    assert victim.stat().st_mode == before


PLANTS = {
    # The stranger's directory in its place.
    "another": f'mv "$1" stolen; /bin/mkdir "$1"; ln -s "$VICTIM" "$1/sub"; chown {STRANGER} "$1"',
    # By an access list that the stranger's directory hands down.
    "ours": 'ln -s "$VICTIM" "$1/sub"',
}
"""What a stranger does to the directory in which an archive is about to be unpacked, ``$1``."""


@pytest.mark.needs("machine")
@pytest.mark.parametrize("whose", PLANTS)
@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_is_unpacked_where_a_stranger_has_put_a_link(
    tmp_path: Path, folder: Path, theirs: Path, victim: Path, shell: str, whose: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mkdir").write_text(
        f'#!/bin/sh\n/bin/mkdir "$@" || exit\nVICTIM="{victim}"\nshift $(($# - 1))\n{PLANTS[whose]}\n'
    )
    (tools / "mkdir").chmod(0o755)
    transport = Elsewhere(shell_called_sh(tmp_path, shell), f"{tools}:{os.environ['PATH']}", tmp_path)
    with pytest.raises(errors.FileOperationFailed, match="Somebody else replaced"):
        extract(
            RemoteFileSystem(transport, bytes(folder)),
            b"theirs",
            [archive_of(("sub/new", {}))],
            exact=False,
            tally=Tally(),
        )
    transport.close()
    assert not names_in(victim)


def test_a_mv_that_knows_no_options_of_other_systems_moves_nevertheless(
    tmp_path: Path, folder: Path, write: Write
) -> None:
    tools = chosen_tools(tmp_path, ["cat", "chmod", "chown", "head", "ls", "readlink", "rm", "sha256sum", "stat", "wc"])
    mv = Path(tools) / "mv"
    mv.write_text('#!/bin/sh\ncase $1 in -f) exec /bin/mv "$@";; esac\necho "mv: illegal option -- T" >&2\nexit 64\n')
    mv.chmod(0o755)
    transport = Elsewhere(Path("/bin/sh"), tools, tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    write(place, b"file", b"content")
    files.move(place, b"file", b"moved", overwrite=False, timeout=20)
    assert content_of(place, b"moved") == b"content"
    transport.close()


@pytest.mark.needs("machine")
def test_thousands_of_files_with_names_like_ours_are_neither_removed_nor_waited_for(
    here: RemoteFileSystem, write: Write, folder: Path
) -> None:
    host = os.uname().nodename
    foreign = [f".connmgr-4194999-{host}-{number}" for number in range(20_000)]
    first = folder / foreign[0]
    first.touch()
    os.chown(first, STRANGER, STRANGER)
    os.utime(first, (0, 0))
    # Hard links, since separate files would take seconds.
    for name in foreign[1:]:
        os.link(first, folder / name)
    before = time.monotonic()
    write(here, b"file", b"x")
    took = time.monotonic() - before
    assert litter(folder) == sorted(foreign), "files of another user were taken for ours"
    # One program for each would take half a minute.
    assert took < 20, f"one byte took {took:.1f} s"


def test_of_our_own_litter_a_write_clears_a_bounded_part(here: RemoteFileSystem, write: Write, folder: Path) -> None:
    host = os.uname().nodename
    first = folder / f".connmgr-4194999-{host}-0"
    first.touch()
    for number in range(1, 3000):
        os.link(first, folder / f".connmgr-4194999-{host}-{number}")
    write(here, b"file", b"x")
    assert 0 < 3000 - len(litter(folder)) <= 1000


PIPE = 'rm -f "{file}"; mkfifo "{file}"'
WAITS = {
    # The one writes in place what it cannot give to its owner, the other sums up what it has found.
    "write": ("chown", f"{PIPE}; exit 1"),
    "checksum": ("sha256sum", f'case $* in *./file*) {PIPE};; esac; exec /usr/bin/sha256sum "$@"'),
    "search": ("grep", f'case $* in *./file*) {PIPE};; esac; exec /bin/grep "$@"'),
}
"""A tool that puts a named pipe in the file's place, by the operation that it meets there."""


@pytest.mark.needs("machine")
@pytest.mark.parametrize("operation", WAITS)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_named_pipe_in_the_file_s_place_leaves_no_shell_that_waits(
    tmp_path: Path, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch, shell: str, operation: str
) -> None:
    tools, (tool, script) = tmp_path / "tools", WAITS[operation]
    tools.mkdir()
    (tools / tool).write_text(f"#!/bin/sh\n{script.format(file=folder / 'file')}\n")
    (tools / tool).chmod(0o755)
    (folder / "file").write_bytes(b"old")
    monkeypatch.setattr(files, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(checksums, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(checksums, "SIGN_SECONDS", 0.2)
    transport = Elsewhere(shell_called_sh(tmp_path, shell), f"{tools}:{os.environ['PATH']}", tmp_path)
    place = RemoteFileSystem(transport, bytes(folder))
    if operation == "search":
        assert search(place, b".", SearchedText("old", "*", 9, ignore_case=False), 1.0) == ([], False)
    elif operation == "write":
        os.chown(folder / "file", STRANGER, STRANGER)
        with pytest.raises(errors.TransferFailed, match="stopped sending"):
            write(place, b"file", b"new")
    else:
        with closing(checksums.Checksums(place, b".")) as sums, pytest.raises(errors.TransferFailed):
            list(sums)
    assert stat.S_ISFIFO((folder / "file").stat().st_mode), "the tool was not used"
    assert not [process.cmdline() for process in psutil.process_iter() if _is_of(process, tools)]
    assert not litter(folder), "what was written is left"
    transport.close()


def _is_of(process: psutil.Process, tools: Path) -> bool:
    with suppress(psutil.Error):
        return process.environ().get("PATH", "").startswith(f"{tools}:") and process.status() != psutil.STATUS_ZOMBIE
    return False
