"""Path rules: files that are not allowed are out of reach by any path, over each kind of link, in each shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.bodies import Blob, Blobs
from connmgr.fs.remote import RemoteFileSystem
from tests.fs.gates import (
    FOLLOWING,
    LEADING_OUT,
    NAMING,
    OPEN,
    REFUSAL,
    SHUT,
    Operation,
    Patterns,
    facts_of,
    plant_ways_out,
)
from tests.fs.remote_hosts import SHELLS, Elsewhere, busybox_tools, content_of, shell_called_sh, stored
from tests.fs.test_places import inhabitant_by, oneself_by


@dataclass(frozen=True)
class Guarded:
    """A remote host where only ``allowed`` may be used."""

    place: RemoteFileSystem
    folder: Path
    blob: Blob
    number: int
    """The index of the way."""

    def path(self, text: str) -> bytes:
        """Return a path of the tables in bytes."""
        folder = os.fsdecode(self.place.directory)
        return os.fsencode(text.replace("{folder}", folder).replace("{name}", Path(folder).name))


WAYS = [
    *(pytest.param(shell.values[0], marks=shell.marks) for shell in SHELLS),
    pytest.param("busybox's tools", marks=pytest.mark.needs("busybox")),
    pytest.param("ssh to oneself", marks=pytest.mark.needs("sshd", "bash")),
    pytest.param("sudo over ssh", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
    pytest.param("su on a terminal", marks=pytest.mark.needs("machine", "sudo", "su", "sshd", "bash")),
]


@pytest.fixture(scope="module", params=WAYS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as held:
        blobs = Blobs(tmp_path_factory.mktemp("blobs") / "spool", quota=1 << 30, ttl=600)
        held.callback(blobs.close)
        blob = held.enter_context(stored(blobs, b"written"))
        place, folder = _reached(request, held, tmp_path_factory)
        plant_ways_out(folder)
        yield Guarded(
            replace(place, gate=Patterns(place.directory + b"/allowed/**")), folder, blob, request.param_index
        )


def _reached(
    request: pytest.FixtureRequest, held: ExitStack, directories: pytest.TempPathFactory
) -> tuple[RemoteFileSystem, Path]:
    way = str(request.param)
    if "ssh" in way or "su " in way:
        reached = (oneself_by if "oneself" in way else inhabitant_by)(request, held)
        return reached.place, reached.directory
    directory = directories.mktemp("far")
    folder = directory / "folder"
    folder.mkdir()
    busybox = way.startswith("busybox's")
    tools = busybox_tools(directory) if busybox else os.environ["PATH"]
    transport = Elsewhere(shell_called_sh(directory, "busybox" if busybox else way), tools, folder / "secret")
    held.callback(transport.close)
    return RemoteFileSystem(transport, bytes(folder)), folder


@pytest.mark.parametrize("name", [*FOLLOWING, *NAMING])
def test_a_refusal_does_not_tell_whether_the_file_exists(guarded: Guarded, name: str) -> None:
    operation = {**FOLLOWING, **NAMING}[name]
    before = facts_of(guarded.folder)
    for path in _share(SHUT, name, guarded, len(WAYS)):
        refused(guarded, operation, path)
        assert facts_of(guarded.folder) == before, path


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_link_that_leads_out_leads_nowhere(guarded: Guarded, name: str) -> None:
    before = facts_of(guarded.folder)
    for path in _share(LEADING_OUT, name, guarded, len(FOLLOWING)):
        refused(guarded, FOLLOWING[name], path)
        assert files.stat_file(guarded.place, guarded.path(path), follow=False).type == "link", path
        assert facts_of(guarded.folder) == before, path


def test_an_allowed_file_is_reached_by_every_path(guarded: Guarded) -> None:
    for path in OPEN:
        assert content_of(guarded.place, guarded.path(path)) == b"content", path
        assert files.stat_file(guarded.place, guarded.path(path), follow=True).size == len(b"content"), path


def refused(guarded: Guarded, operation: Operation, path: str) -> None:
    """Fail unless ``operation`` is refused with the same error as always."""
    try:
        operation(guarded.place, guarded.path(path), guarded.blob)
        answer = "nothing was refused"
    except errors.PolicyDenied as refusal:
        answer = refusal.message
    assert answer == REFUSAL, path


def _share(paths: list[str], name: str, guarded: Guarded, shares: int) -> list[str]:
    """Return this operation's share of ``paths`` for this way.

    Over all tests each path meets each operation on some way, and each way by some operation.
    """
    return paths[([*FOLLOWING, *NAMING].index(name) + guarded.number) % shares :: shares]
