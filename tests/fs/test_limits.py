"""Machines that let a user have little (setrlimit(2)): what is told of a file there is true, and comes at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from connmgr.engine.rpc import STALL_SECONDS
from connmgr.errors import FileOperationFailed, TransferFailed
from connmgr.fs.remote import RemoteFileSystem
from connmgr.plugin import Channel, Pty
from connmgr_local.transport import LocalTransport
from tests.fs.conftest import Write
from tests.fs.remote_hosts import SHELLS, content_of, litter, shell_called_sh

pytestmark = pytest.mark.needs("linux")


class Limited(LocalTransport):
    """This machine with another /bin/sh, and the limit that ``ulimit`` sets with these words."""

    def __init__(self, shell: Path, limit: str) -> None:
        super().__init__()
        self._lead = ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh", str(shell)]

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return super().open_channel([*self._lead, *argv[1:]], pty=pty, timeout=timeout)


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("limit", [*(f"-n {number}" for number in range(9, 19, 2)), "-f 0"])
def test_a_file_is_written_and_read_or_the_reason_is_told_at_once(
    tmp_path: Path, folder: Path, write: Write, name: str, limit: str
) -> None:
    (folder / "old").write_bytes(b"old")
    began = time.monotonic()
    with closing(Limited(shell_called_sh(tmp_path, name), limit)) as transport:
        place = RemoteFileSystem(transport, bytes(folder))
        try:
            write(place, b"old", b"new")
        except (FileOperationFailed, TransferFailed):
            assert (folder / "old").read_bytes() == b"old"
        else:
            assert (folder / "old").read_bytes() == b"new"
        try:
            assert content_of(place, b"old") == (folder / "old").read_bytes()
        except (FileOperationFailed, TransferFailed):
            # ksh93 keeps what commands print in files.
            assert limit.startswith("-n") or name == "ksh93"
    assert time.monotonic() - began < STALL_SECONDS / 4
    assert litter(folder) == []
