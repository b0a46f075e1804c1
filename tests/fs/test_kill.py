"""A writer killed in the middle leaves the old file or the new one, and temporary files only briefly."""

from __future__ import annotations

import http.client
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from connmgr.errors import ConnmgrError
from connmgr.fs import files
from connmgr.fs.bodies import Blobs
from connmgr.fs.remote import RemoteFileSystem
from tests.api.wire import LOCAL
from tests.conftest import StartDaemon
from tests.deadlines import eventually_equal
from tests.fs.conftest import Write
from tests.fs.remote_hosts import litter, names_in, stored
from tests.fs.wire import Caller

pytestmark = pytest.mark.needs("linux")

SIZE = 2_000_000
ROUNDS = 12


def content(number: int) -> bytes:
    return (b"%07d\n" % number) * (SIZE // 8)


def writer(parent: int) -> psutil.Process | None:
    """Wait for a subshell below ``parent`` that writes a file, and return it."""
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.NoSuchProcess, AttributeError):
            if is_helper(process) and is_helper(process.parent()):  # type: ignore[arg-type]
                return process
    return None


def is_helper(process: psutil.Process) -> bool:
    return "printf %b" in " ".join(process.cmdline())


def test_the_writing_shell_is_killed(here: RemoteFileSystem, write: Write, folder: Path, blobs: Blobs) -> None:
    write(here, b"file", content(0))
    killed = 0
    # On a busy machine a writer may end before it is found, so rounds continue until one is killed.
    for number in range(1, 10 * ROUNDS + 1):
        if number > ROUNDS and killed:
            break
        outcome: list[Exception | None] = []

        def put(number: int = number, outcome: list[Exception | None] = outcome) -> None:
            try:
                with stored(blobs, content(number)) as blob:
                    files.write(here, b"file", blob, None)
            except ConnmgrError as error:
                outcome.append(error)
            else:
                outcome.append(None)

        before = (folder / "file").read_bytes()
        writing = threading.Thread(target=put)
        writing.start()
        while writing.is_alive() and (process := writer(os.getpid())) is None:
            time.sleep(0)
        # Later in each round.
        time.sleep(number % ROUNDS * 0.004)
        with suppress(psutil.NoSuchProcess, AttributeError):
            process.kill()  # type: ignore[union-attr]
        writing.join()
        after = (folder / "file").read_bytes()
        killed += outcome != [None]
        assert after in (before, content(number)), "a mixture, or neither"
        assert outcome != [None] or after == content(number), "a write that was confirmed is lost"
        assert len(litter(folder)) <= 1, "what the last writer left was not cleared"
    assert killed, "no write was hit"
    write(here, b"file", b"")
    assert names_in(folder) == ["file"]


def test_the_daemon_is_killed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(content(0))
    home = tmp_path / "home"
    for number in range(1, 6):
        daemon = start_daemon(home=home)
        caller = Caller(daemon)
        caller.start()
        blob = caller.blob(content(number))
        before = (folder / "file").read_bytes()

        def put(caller: Caller = caller, blob: str = blob) -> None:
            with suppress(OSError, http.client.HTTPException):
                caller.post("/fs/write", connection=LOCAL, blob=blob, path=str(folder / "file"))

        writing = threading.Thread(target=put)
        writing.start()
        while writing.is_alive() and writer(daemon.pid) is None:
            time.sleep(0)
        time.sleep(number * 0.005)
        daemon.kill()
        writing.join()
        assert (folder / "file").read_bytes() in (before, content(number)), "a mixture, or neither"
    last = Caller(start_daemon(home=home))
    last.start()

    def left() -> list[str]:
        assert last.write(folder / "file", b"last").status == 200
        return litter(folder)

    # Helpers end by themselves shortly after their daemon.
    eventually_equal(left, [], "what the killed daemons left was not cleared")
    assert names_in(folder) == ["file"]
